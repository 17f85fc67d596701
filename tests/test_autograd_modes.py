"""Autograd around the device: anomaly mode, saved tensors, inference mode, torch.func, the choice of attention kernels,
and models that lie on several devices. Expected values are the CPU's."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DEVICES = ("cpu", "neuron")


def both(function) -> list:
    return [function(torch.device(device)) for device in DEVICES]


def assert_same(results: list) -> None:
    on_cpu, on_neuron = (torch.utils._pytree.tree_leaves(result) for result in results)
    assert len(on_cpu) == len(on_neuron) > 0
    for left, right in zip(on_cpu, on_neuron, strict=True):
        assert right.device.type == "neuron" and torch.equal(left, right.cpu())


def values(device: torch.device, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


# ---- modes of autograd -----------------------------------------------------------------------------------------------


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * float("nan")


def test_anomaly_mode_names_the_function() -> None:
    x = values(torch.device("neuron"), 4).requires_grad_()
    with torch.autograd.detect_anomaly(check_nan=True):
        y = FailsBackward.apply(x)
        with pytest.raises(RuntimeError, match="'FailsBackwardBackward' returned nan values in its 0th output"):
            y.sum().backward()
    x.grad = None
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2.0] * 4


def test_saved_tensors_are_packed_and_unpacked() -> None:
    packed = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor.device.type)
        return tensor.cpu()

    x = values(torch.device("neuron"), 4).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor.to("neuron")):
        y = (x.exp() * x).sum()
    y.backward()
    assert packed and set(packed) == {"neuron"}
    reference = x.detach().cpu().requires_grad_()
    (reference.exp() * reference).sum().backward()
    assert torch.equal(x.grad.cpu(), reference.grad)


@pytest.mark.parametrize("pin_memory", [False, True])
def test_saved_tensors_on_the_cpu(pin_memory: bool) -> None:
    x = values(torch.device("neuron"), 64).requires_grad_()
    with torch.autograd.graph.save_on_cpu(pin_memory=pin_memory):
        y = x.sigmoid().square().sum()
    y.backward()
    reference = x.detach().cpu().requires_grad_()
    reference.sigmoid().square().sum().backward()
    assert torch.equal(x.grad.cpu(), reference.grad)


def test_inference_mode() -> None:
    x = values(torch.device("neuron"), 4)
    with torch.inference_mode():
        y = (x * 2).view(2, 2)
        y[0].add_(1)
        assert y.is_inference() and not y.requires_grad
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        y * torch.ones(2, 2, device="neuron", requires_grad=True)
    expected = (x.cpu() * 2).view(2, 2)
    expected[0] += 1
    assert torch.equal(y.cpu(), expected)


# ---- torch.func ------------------------------------------------------------------------------------------------------


def energy(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x.roll(1)).sum() + x.pow(3).sum()


@pytest.mark.parametrize(
    "transform",
    [
        lambda x: torch.func.grad(energy)(x),
        lambda x: torch.func.grad_and_value(energy)(x),
        lambda x: torch.func.jacrev(torch.sin)(x),
        lambda x: torch.func.jacfwd(torch.sin)(x),
        lambda x: torch.func.hessian(energy)(x),
        lambda x: torch.func.jvp(energy, (x,), (torch.ones_like(x),)),
        lambda x: torch.func.vjp(lambda t: t.cumsum(0), x)[1](torch.ones_like(x)),
        lambda x: torch.func.vmap(torch.func.grad(energy))(torch.stack([x, x * 2])),
        lambda x: torch.func.functionalize(lambda t: t.clone().add_(1))(x),
        lambda x: torch.func.linearize(torch.sin, x)[1](torch.ones_like(x)),
    ],
    ids=["grad", "grad_and_value", "jacrev", "jacfwd", "hessian", "jvp", "vjp", "per sample", "functionalize", "linearize"],
)  # fmt: skip
def test_torch_func(transform) -> None:
    assert_same(both(lambda device: transform(values(device, 5))))


def test_random_numbers_under_vmap() -> None:
    x = torch.zeros(3, 100, device="neuron")
    different = torch.func.vmap(lambda t: F.dropout(t + 1, 0.5), randomness="different")(x)
    same = torch.func.vmap(lambda t: F.dropout(t + 1, 0.5), randomness="same")(x)
    assert torch.equal(same[0], same[1]) and not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="called random operation while in randomness error mode"):
        torch.func.vmap(lambda t: F.dropout(t + 1, 0.5))(x)


def test_functional_call_of_a_module() -> None:
    module = torch.nn.Linear(5, 3)

    def loss(device: torch.device):
        parameters = {name: p.detach().to(device) for name, p in module.named_parameters()}

        def of(parameters, x):
            return torch.func.functional_call(module, parameters, (x,)).square().sum()

        return torch.func.grad(of)(parameters, values(device, 2, 5))

    assert_same(both(loss))


# ---- attention -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_choice_of_attention_kernels(backend: SDPBackend, causal: bool) -> None:
    def run(device: torch.device):
        q, k, v = (values(device, 2, 2, 16, 8, seed=seed).requires_grad_() for seed in range(3))
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return out.detach(), torch.autograd.grad(out.square().sum(), (q, k, v))

    torch.neuron.clear_op_tracking()
    assert_same(both(run))
    ran = {name.split(".")[0] for name in torch.neuron.get_executed_ops()}
    flash = {name for name in ran if "flash_attention" in name}
    assert bool(flash) == (backend is SDPBackend.FLASH_ATTENTION), ran


def test_attention_kernels_that_the_host_lacks() -> None:
    q = values(torch.device("neuron"), 1, 2, 8, 8)
    errors = []
    for device in DEVICES:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), pytest.raises(RuntimeError) as raised:
            F.scaled_dot_product_attention(*[q.to(device)] * 3)
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


# ---- several devices -------------------------------------------------------------------------------------------------


def train_across(first: str, second: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    lower, upper = torch.nn.Linear(64, 64).to(first), torch.nn.Linear(64, 1).to(second)
    optimizer = torch.optim.SGD([*lower.parameters(), *upper.parameters()], lr=0.01)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(30):
        hidden = lower(torch.randn(32, 64, generator=generator).to(first)).relu()
        # There and back, so that the backward pass copies in both directions at once.
        loss = (upper(hidden.to(second)) + hidden.to(second).to(first).sum(-1, keepdim=True).to(second)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().cpu())
    return losses


def test_model_on_two_devices() -> None:
    assert train_across("neuron:0", "neuron:1") == train_across("cpu", "cpu")


def test_copies_in_both_directions_from_two_threads() -> None:
    """Each copy uses a stream of either device; taking their locks in two orders would never end."""
    failed = []

    def copy(source: int, target: int) -> None:
        tensor = torch.full((1000,), float(source), device=f"neuron:{source}")
        for _ in range(2000):
            there = tensor.to(f"neuron:{target}")
        if not torch.equal(there.cpu(), tensor.cpu()):
            failed.append((source, target))

    threads = [threading.Thread(target=copy, args=pair, daemon=True) for pair in ((0, 1), (1, 0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a copy waits for ever"
    assert not failed


def changed_chunk(device: str) -> torch.Tensor:
    """A view that autograd refuses to follow, since another view of its base was changed."""
    first, second = (torch.ones(6, 4, device=device, requires_grad=True) * 2).chunk(2)
    with torch.no_grad():
        second.zero_()
    return first


@pytest.mark.parametrize("source", ["cpu", "neuron"])
@pytest.mark.parametrize("target", ["cpu", "neuron"])
def test_data_is_swapped_without_autograd(source: str, target: str) -> None:
    """`.data = x` takes the memory and asks for no gradient, so also of tensors that have none to give."""
    other = changed_chunk(source)
    leaf = torch.ones(3, device=target)
    leaf.data = other
    assert leaf.device.type == source and not leaf.requires_grad
    assert torch.equal(leaf.cpu(), torch.full((3, 4), 2.0))
    with pytest.raises(RuntimeError, match="multiple views"):
        other.grad_fn  # noqa: B018
    swapped = changed_chunk(source)
    swapped.data = torch.zeros(2, device=target)
    assert torch.equal(swapped.detach().cpu(), torch.zeros(2))
