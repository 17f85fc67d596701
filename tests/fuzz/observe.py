"""What a step did, as far as a user can see it, and how two such observations differ."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.conformance.compare import value_difference


@dataclass
class Observation:
    """The outcome of one step: "done", "raised" or "left out", and what its tensors look like."""

    outcome: str
    error: BaseException | None = None
    tensors: dict[str, dict[str, Any]] = field(default_factory=dict)
    value: Any = None


def grad_fn_name(tensor: torch.Tensor) -> str:
    try:
        name = type(tensor.grad_fn).__name__
    except RuntimeError as error:  # a view whose base was written to in a way that autograd can't follow
        return first_line(error)
    # `t[...] = number` fills on the CPU and copies on every other device; the gradient is the same. Copying to integers
    # leaves what comparisons in place gave them, filling does not.
    if name != "NoneType" and not (tensor.is_floating_point() or tensor.is_complex()):
        return "history of integers"
    # A gradient that went from one device to another was copied; on the CPU, both are one device.
    node = tensor.grad_fn
    while type(node).__name__ == "ToCopyBackward0":
        node = node.next_functions[0][0]
        name = type(node).__name__
    if name == "AccumulateGrad":
        return "NoneType"
    return "CopyBackwards" if name.startswith("FillBackward") else name


def is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return not tensor.requires_grad or tensor.grad_fn is None
    except RuntimeError:  # as in `grad_fn_name`
        return False


def version(tensor: torch.Tensor) -> int:
    try:
        return 0 if tensor.is_inference() else tensor._version
    except RuntimeError:  # it has taken the data of a tensor of inference mode, and nobody counts
        return 0


def metadata(tensor: torch.Tensor, seen_version: int) -> dict[str, Any]:
    """Everything about a tensor but its values; does not wait for the device.

    Args:
        seen_version: its version when it was last looked at. Whether that is still so must be the same on both
            devices; how often a kernel that is made of others has counted is its own affair.
    """
    return {
        "shape": tuple(tensor.shape),
        "stride": tensor.stride(),
        "offset": tensor.storage_offset(),
        "dtype": tensor.dtype,
        "requires_grad": tensor.requires_grad,
        "grad_fn": grad_fn_name(tensor),
        "written": version(tensor) != seen_version,
        "conj": tensor.is_conj(),
        "neg": tensor.is_neg(),
    }


def contents(tensor: torch.Tensor) -> torch.Tensor:
    """The values, in CPU memory that nobody else writes to."""
    return tensor.detach().resolve_conj().resolve_neg().cpu().clone()


def observed_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return contents(value)
    if isinstance(value, (list, tuple)):
        return [observed_value(item) for item in value]
    return value


def first_line(error: BaseException) -> str:
    """What an error says, without what names a device or a place in memory."""
    lines = str(error).strip().splitlines()
    text = lines[0].removesuffix(" (") if lines else ""  # the bracket opens what a late error says about its launch
    text = re.sub(r"(privateuseone|neuron|cpu)(:\d+)?", "<device>", text, flags=re.IGNORECASE)
    text = re.sub(r"<device>(\w+)Type\b", r"torch.\1Tensor", text)
    text = re.sub(r"torch\.<device>\.", "torch.", text)
    text = re.sub(r"is at version \d+; expected version \d+", "is at another version", text)
    return re.sub(r"0x[0-9a-f]+", "<address>", text)


def same_error(expected: BaseException, actual: BaseException) -> bool:
    return type(expected) is type(actual) and first_line(expected) == first_line(actual)


def brief(error: BaseException | None) -> str:
    return "nothing" if error is None else f"{type(error).__name__}: {first_line(error)[:300]}"


def difference(expected: Observation, actual: Observation) -> str | None:
    if expected.outcome != actual.outcome:
        return f"{expected.outcome} ({brief(expected.error)}) on the CPU, {actual.outcome} ({brief(actual.error)}) on neuron"
    if expected.error is not None and actual.error is not None:
        if same_error(expected.error, actual.error):
            return None
        return f"the CPU raised {brief(expected.error)}, neuron raised {brief(actual.error)}"
    if expected.tensors.keys() != actual.tensors.keys():
        return f"tensors {sorted(expected.tensors)} on the CPU, {sorted(actual.tensors)} on neuron"
    for name, facts in expected.tensors.items():
        for fact, left in facts.items():
            right = actual.tensors[name].get(fact)
            found = _value_difference(left, right)
            if found is not None:
                return f"{fact} of {name}: {found}"
    return _value_difference(expected.value, actual.value)


def _value_difference(left: Any, right: Any) -> str | None:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        if left.shape != right.shape or left.dtype != right.dtype:
            return f"{left.dtype} {tuple(left.shape)} on the CPU, {right.dtype} {tuple(right.shape)} on neuron"
        return value_difference(left, right)
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return next((found for a, b in zip(left, right, strict=True) if (found := _value_difference(a, b))), None)
    same = type(left) is type(right) and (left == right or repr(left) == repr(right))
    return None if same else f"{left!r} on the CPU, {right!r} on neuron"
