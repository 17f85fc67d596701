"""Runs a function compiled on neuron and uncompiled on the CPU, and compares all that can be seen of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

# Reassociated sums and contracted multiply-adds, in units of the dtype's rounding.
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def copied_to(values: Any, device: str) -> Any:
    """The same values on `device`; tensors keep requires_grad."""

    def copy(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().clone().to(device).requires_grad_(value.requires_grad)
        return value

    return pytree.tree_map(copy, values)


def assert_close(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    tolerance = TOLERANCE.get(expected.dtype, 0)
    torch.testing.assert_close(
        actual.detach().cpu(), expected.detach(), rtol=tolerance, atol=tolerance, equal_nan=True,
        msg=lambda message: f"{what}: {message}",
    )  # fmt: skip


def check(
    function: Callable[..., Any],
    *arguments: Any,
    calls: int = 2,
    device: str = "neuron",
    same_strides: bool = True,
    **compile_arguments: Any,
) -> list[dict[str, Any]]:
    """Compares results, changed inputs and gradients; calls the compiled function twice, so that the second is enqueued.

    Returns:
        the metrics of the graphs that were compiled.
    """
    torch._dynamo.reset()
    torch.neuron.reset_dynamo_metrics()
    on_host = copied_to(arguments, "cpu")
    expected = function(*on_host)
    backward(expected)
    compiled = torch.compile(function, backend="neuron", **compile_arguments)
    for _ in range(calls):
        on_device = copied_to(arguments, device)
        actual = compiled(*on_device)
        backward(actual)
        compare(actual, expected, "result", same_strides)
        compare(on_device, on_host, "input", same_strides)
    return torch.neuron.get_dynamo_metrics()


def backward(results: Any) -> None:
    losses = [value.float().square().sum() for value in tensors(results) if value.requires_grad]
    if losses:
        sum(losses[1:], losses[0].cpu() if len({loss.device for loss in losses}) > 1 else losses[0]).backward()


def compare(actual: Any, expected: Any, what: str, same_strides: bool) -> None:
    pairs = list(zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True))
    for index, (mine, theirs) in enumerate(pairs):
        if not isinstance(theirs, torch.Tensor):
            assert mine == theirs, f"{what} {index}"
            continue
        assert_close(mine, theirs, f"{what} {index}")
        if same_strides:
            assert mine.stride() == theirs.stride(), f"strides of {what} {index}"
        if theirs.is_leaf and theirs.grad is not None:
            assert mine.grad is not None, f"gradient of {what} {index}"
            assert mine.grad.device == mine.device
            assert_close(mine.grad, theirs.grad, f"gradient of {what} {index}")


def tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]
