"""One training step of a model: what it returns, its gradients, and how Dynamo cut it into graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

# The part of the tolerance that is relative to the largest gradient of the model, for gradients that cancel: that of a
# bias of keys is zero but for rounding.
CANCELLATION = 0.05


@dataclass
class Step:
    """The floating-point results of a forward; gradients and changed buffers by their names; all on the CPU."""

    results: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Graphs:
    """What Dynamo and AOTAutograd made of a model."""

    captured: int
    breaks: int


def inputs_on(device: str, inputs: dict[str, Any]) -> dict[str, Any]:
    return pytree.tree_map(lambda value: value.to(device) if isinstance(value, torch.Tensor) else value, inputs)


def inputs_in(dtype: torch.dtype, inputs: dict[str, Any]) -> dict[str, Any]:
    return pytree.tree_map(lambda value: value.to(dtype) if _is_floating(value) else value, inputs)


def step(model: nn.Module, forward: Callable[..., Any], inputs: dict[str, Any]) -> Step:
    """Runs `forward` and the backward of its loss; where it has none, of the mean square of its first result.

    The model is left as it was, but for its gradients, so that each step of it computes the same.
    """
    model.zero_grad(set_to_none=True)
    before = {name: value.clone() for name, value in model.named_buffers()}
    output = dict(forward(**inputs))
    results = [value for value in pytree.tree_leaves(output) if _is_floating(value)]
    loss = output.get("loss")
    (loss if loss is not None else results[0].square().mean()).backward()
    gradients = {name: value.grad.cpu() for name, value in model.named_parameters() if value.grad is not None}
    buffers = {
        name: value.to("cpu", copy=True)
        for name, value in model.named_buffers()
        if not torch.equal(value, before[name])
    }
    with torch.no_grad():
        for name in buffers:
            model.get_buffer(name).copy_(before[name])
    return Step([value.detach().cpu() for value in results], gradients, buffers)


def assert_close(actual: Step, expected: Step, tolerance: float) -> None:
    """Compares within `tolerance` of the largest value of each tensor; 0 asks for every bit."""
    assert len(actual.results) == len(expected.results)
    for index, (mine, theirs) in enumerate(zip(actual.results, expected.results, strict=True)):
        _assert_tensor(mine, theirs, tolerance * _largest(theirs), f"result {index}")
    noise = CANCELLATION * tolerance * max(map(_largest, expected.gradients.values()))
    for name, theirs in expected.gradients.items():
        _assert_tensor(actual.gradients[name], theirs, tolerance * _largest(theirs) + noise, f"gradient of {name}")
    # Where a graph returns what nobody uses, autograd gives its parameters zeros; uncompiled ones get no gradient.
    for name in actual.gradients.keys() - expected.gradients.keys():
        assert tolerance and not actual.gradients[name].any(), f"a gradient of {name}, which is not used"
    assert actual.buffers.keys() == expected.buffers.keys()
    for name, theirs in expected.buffers.items():
        _assert_tensor(actual.buffers[name], theirs, tolerance * _largest(theirs), f"buffer {name}")


def assert_as_precise(actual: Step, eager: Step, exact: Step, tolerance: float) -> None:
    """Compares with float32: `actual` may be off by as much as the tolerance allows, and twice what `eager` is off.

    For dtypes whose rounding makes more of a gradient than any fixed tolerance: the first layers of a network with batch
    normalisation have gradients that are off by a fifth in bfloat16, compiled or not.
    """
    noise = CANCELLATION * tolerance * max(map(_largest, exact.gradients.values()))
    pairs = {
        f"result {i}": tensors
        for i, tensors in enumerate(zip(actual.results, eager.results, exact.results, strict=True))
    }
    for name, theirs in exact.gradients.items():
        pairs[f"gradient of {name}"] = (actual.gradients[name], eager.gradients[name], theirs)
    for name, theirs in exact.buffers.items():
        pairs[f"buffer {name}"] = (actual.buffers[name], eager.buffers[name], theirs)
    for what, (mine, eagers, exacts) in pairs.items():
        allowed = tolerance * _largest(exacts) + noise + 2 * _largest(eagers.double() - exacts.double())
        _assert_tensor(mine.double(), exacts.double(), allowed, what)


def _assert_tensor(actual: torch.Tensor, expected: torch.Tensor, difference: float, what: str) -> None:
    torch.testing.assert_close(
        actual, expected, rtol=0, atol=difference, equal_nan=False, msg=lambda message: f"{what}: {message}"
    )


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _largest(value: torch.Tensor) -> float:
    return value.abs().max().item() if value.numel() else 0.0


def graphs_since_reset() -> Graphs:
    """Of what was compiled since `reset_counters`."""
    return Graphs(captured=counters["stats"]["unique_graphs"], breaks=sum(counters["graph_break"].values()))


def reset_counters() -> None:
    torch._dynamo.reset()
    counters.clear()
