"""Random numbers in compiled graphs: they follow from the device's seed and offset, in program order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torch_neuronx.compiler.random_operators import DrawFromDevice


def draws(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5) + torch.randn_like(x) + torch.rand(x.shape, device=x.device)


@pytest.mark.parametrize("fallback_random", [False, True])
def test_a_seed_gives_the_same_numbers_again(fallback_random: bool, device: torch.device) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(draws, backend="neuron", options={"fallback_random": fallback_random})
    x = torch.ones(32, 32, device=device)
    compiled(x)
    torch.manual_seed(3)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(3)
    assert torch.equal(compiled(x), first)
    assert torch.equal(compiled(x), second)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    eager = draws(x)
    assert torch.equal(eager, first) == fallback_random


def test_the_cpus_generator_is_not_drawn_from(device: torch.device) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(draws, backend="neuron")
    x = torch.ones(8, 8, device=device)
    compiled(x)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    compiled(x)
    assert torch.equal(torch.rand(3), expected)


def test_backward_uses_the_mask_of_the_forward(device: torch.device) -> None:
    torch._dynamo.reset()
    x = torch.ones(1000, device=device, requires_grad=True)
    y = torch.compile(lambda x: F.dropout(x, 0.5), backend="neuron")(x)
    y.sum().backward()
    assert torch.equal(y.detach(), x.grad)
    assert 300 < int((y == 0).sum()) < 700


def branches_that_draw(x: Tensor) -> Tensor:
    """Control flow: generated code that is run as Python."""

    def noisy(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5) + torch.randn_like(x)

    def other(x: Tensor) -> Tensor:
        return torch.bernoulli(x.sigmoid()) + torch.rand(x.shape, device=x.device)

    return torch.cond(x.sum() > 0, noisy, other, (x,)) + torch.randn_like(x)


def attention_without_dropout(x: Tensor) -> Tensor:
    def attend(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)

    return torch.cond(x.sum() > 0, attend, torch.clone, (x,)) + torch.randn_like(x)


@pytest.mark.parametrize("function", [branches_that_draw, attention_without_dropout])
@pytest.mark.parametrize("sign", [1, -1])
def test_code_run_as_python_draws_from_the_device_too(
    function: Callable[[Tensor], Tensor], sign: int, device: torch.device
) -> None:
    torch._dynamo.reset()
    torch.neuron.reset_dynamo_metrics()
    compiled = torch.compile(function, backend="neuron", options={"fallback_random": True})
    x = torch.full((1, 1, 16, 16), 0.5 * sign, device=device)
    compiled(x)
    assert any(graph["python_reason"] for graph in torch.neuron.get_dynamo_metrics())
    torch.manual_seed(5)
    expected = [torch.rand(3), function(x), function(x), torch.rand(3)]
    torch.manual_seed(5)
    for found, wanted in zip([torch.rand(3), compiled(x), compiled(x), torch.rand(3)], expected, strict=True):
        assert torch.equal(found, wanted)


def test_code_run_as_python_draws_what_the_cpu_draws_in_host_rng_mode(device: torch.device) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(branches_that_draw, backend="neuron", options={"fallback_random": True})
    x = torch.full((16, 16), 0.5)
    compiled(x.to(device))
    torch.manual_seed(6)
    expected = branches_that_draw(x)
    with torch.neuron.host_rng(True):
        torch.manual_seed(6)
        assert torch.equal(compiled(x.to(device)).cpu(), expected)


def test_an_operator_that_can_only_draw_from_the_hosts_generator_is_refused() -> None:
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    x = torch.ones(1, 2, 3, 4)
    with DrawFromDevice(0):
        attention(x, x, x, dropout_p=0.0)
        with pytest.raises(NotImplementedError, match="flash_attention_for_cpu"):
            attention(x, x, x, dropout_p=0.5)
