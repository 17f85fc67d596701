"""Does it work at all? A few seconds, run first."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable

import torch

AssertSame = Callable[[torch.Tensor, torch.Tensor], None]


def test_import_torch_is_enough(device: torch.device) -> None:
    assert torch.neuron.is_available()
    assert torch.neuron.device_count() >= 1
    assert torch.accelerator.current_accelerator() == torch.device("neuron")
    assert torch.empty(1, device="neuron").device == device


def test_round_trip(device: torch.device, assert_same: AssertSame) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        host = torch.randint(0, 2, (5, 7)).to(dtype)
        there = host.to(device)
        assert there.device == device and there.dtype == dtype
        assert_same(there, host)


def test_add_and_matmul(device: torch.device, assert_same: AssertSame) -> None:
    a, b = torch.randn(33, 33), torch.randn(33, 33)
    assert_same(a.to(device) + b.to(device), a + b)
    assert_same(a.to(device) @ b.to(device), a @ b)


def test_backward(device: torch.device, assert_same: AssertSame) -> None:
    host = torch.randn(16, 16, requires_grad=True)
    there = host.detach().to(device).requires_grad_()
    for x in (host, there):
        (x @ x.t()).relu().sum().backward()
    assert there.grad is not None and there.grad.device == device
    assert host.grad is not None
    assert_same(there.grad, host.grad)


def test_training_step_equals_the_cpus(device: torch.device, assert_same: AssertSame) -> None:
    on_cpu = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)
    )
    on_neuron = copy.deepcopy(on_cpu).to(device)
    inputs, targets = torch.randn(16, 8), torch.randint(0, 4, (16,))
    losses = []
    for model, where in ((on_cpu, "cpu"), (on_neuron, device)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(2):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs.to(where)), targets.to(where))
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    assert_same(losses[1], losses[0])
    for there, host in zip(on_neuron.parameters(), on_cpu.parameters(), strict=True):
        assert_same(there, host)


def test_memory_is_given_back(device: torch.device) -> None:
    gc.collect()
    torch.neuron.synchronize(device)
    before = torch.neuron.memory_allocated(device)
    tensor = torch.zeros(1 << 20, device=device)
    product = tensor * 2
    torch.neuron.synchronize(device)
    assert torch.neuron.memory_allocated(device) >= before + 2 * tensor.nbytes
    del tensor, product
    torch.neuron.synchronize(device)
    assert torch.neuron.memory_allocated(device) == before
