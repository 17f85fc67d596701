"""A launch runs with the settings of the process at its call, also when it runs later, on another thread."""

from __future__ import annotations

import pytest
import torch
from torch import neuron

BUSY = 30_000_000  # cycles: some ten milliseconds


@pytest.fixture(autouse=True)
def always_on_the_executor():
    from torch_neuronx import _C

    _C._set_hand_off("always")
    yield
    _C._set_hand_off("measured")


def known_then_busy(call):
    """The result of `call`, launched with a known signature while the stream is busy."""
    call()
    neuron._sleep(BUSY)
    return call()


def test_onednn_switched_off_for_one_call() -> None:
    weight, x = torch.randn(8, 4, 3, 3), torch.randn(2, 4, 16, 16)
    weight_there, x_there = weight.to("neuron"), x.to("neuron")
    results = []
    for w, value in ((weight, x), (weight_there, x_there)):
        with torch.backends.mkldnn.flags(enabled=False):
            results.append(known_then_busy(lambda w=w, value=value: torch.conv2d(value, w)))
    assert torch.equal(results[1].cpu(), results[0])


@pytest.mark.parametrize("function", [torch.logsumexp, torch.erfinv, torch.atan2])
def test_default_dtype_set_back_right_after(function) -> None:
    x = torch.arange(1, 5)
    arguments = {torch.logsumexp: lambda x: (x, 0), torch.erfinv: lambda x: (x - 1,), torch.atan2: lambda x: (x, x)}
    results = []
    for device in ("cpu", "neuron"):
        there = arguments[function](x.to(device))
        try:
            torch.set_default_dtype(torch.float64)
            results.append(known_then_busy(lambda there=there: function(*there)))
        finally:
            torch.set_default_dtype(torch.float32)
    assert results[1].dtype == results[0].dtype == torch.float64
    assert torch.equal(results[1].cpu().nan_to_num(), results[0].nan_to_num())


def test_deterministic_mode_raises_at_the_call_and_only_while_it_is_on() -> None:
    x, index, values = torch.zeros(4), torch.tensor([1]), torch.ones(1)
    with pytest.raises(RuntimeError) as on_cpu:
        torch.use_deterministic_algorithms(True)
        try:
            x.put_(index, values)
        finally:
            torch.use_deterministic_algorithms(False)
    there = [t.to("neuron") for t in (x, index, values)]
    known_then_busy(lambda: there[0].put_(*there[1:]))
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError) as on_neuron:
            there[0].put_(*there[1:])
    finally:
        torch.use_deterministic_algorithms(False)
    assert str(on_neuron.value).splitlines()[0] == str(on_cpu.value).splitlines()[0]
    neuron.synchronize()


def test_flush_denormal_is_followed_by_all_threads_and_ends() -> None:
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor cannot flush denormal numbers")
    tiny = torch.full((5000,), 1e-39).to("neuron")
    leaf = torch.ones(5000, device="neuron", requires_grad=True)
    try:
        for flush in (True, False, True, False):
            torch.set_flush_denormal(flush)
            expected = 0 if flush else 5000
            assert torch.count_nonzero(known_then_busy(lambda: tiny * 0.5).cpu()) == expected
            leaf.grad = None
            (leaf * tiny * 0.5).sum().backward()  # on a thread of autograd
            assert torch.count_nonzero(leaf.grad.cpu()) == expected
    finally:
        torch.set_flush_denormal(False)
