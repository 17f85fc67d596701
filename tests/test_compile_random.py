"""Random numbers in compiled graphs: they follow from the device's seed and offset, in program order."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor


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
