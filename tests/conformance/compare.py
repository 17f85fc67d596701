"""What a call did, on either device, and how two such outcomes differ."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree


@dataclass
class TensorFacts:
    """Everything about a result that a user can see, with its values on the CPU."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device_type: str
    layout: torch.layout
    requires_grad: bool
    conj: bool
    neg: bool
    offset: int
    values: torch.Tensor | None

    @staticmethod
    def of(tensor: torch.Tensor, *, values: bool = True) -> TensorFacts:
        strided = tensor.layout == torch.strided
        on_cpu = None
        if values:
            on_cpu = tensor.detach().resolve_conj().resolve_neg().cpu() if strided else tensor.detach().cpu().to_dense()
            on_cpu = (
                on_cpu.clone() if on_cpu.data_ptr() == tensor.data_ptr() and tensor.device.type == "cpu" else on_cpu
            )
        return TensorFacts(
            shape=tuple(tensor.shape),
            stride=tuple(tensor.stride()) if strided else (),
            dtype=tensor.dtype,
            device_type=tensor.device.type,
            layout=tensor.layout,
            requires_grad=tensor.requires_grad,
            conj=tensor.is_conj(),
            neg=tensor.is_neg(),
            offset=tensor.storage_offset() if strided else 0,
            values=on_cpu,
        )


@dataclass
class Outcome:
    """The results of a call, or the exception that it raised."""

    leaves: list[Any] = field(default_factory=list)
    structure: Any = None
    error: BaseException | None = None


def observe(call: Callable[[], Any], synchronize: Callable[[], None], *, values: bool = True) -> Outcome:
    """Runs `call` and everything it left pending, and looks at what came out."""
    try:
        result = call()
        synchronize()
        leaves, structure = pytree.tree_flatten(result)
        facts = [TensorFacts.of(leaf, values=values) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        synchronize()
    except Exception as error:
        failed = error.with_traceback(None)
        with contextlib.suppress(Exception):
            synchronize()  # what else was pending must not be seen by the next call
        return Outcome(error=failed)
    return Outcome(leaves=facts, structure=structure)


def difference(expected: Outcome, actual: Outcome, device_type: str | None, *, tolerance: float = 0.0) -> str | None:
    """What is not the same, in words; None when everything is. Results on the CPU are wrong unless `device_type` is None.

    Floats must have the same bits, or lie within `tolerance` times the largest value of the tensor.
    """
    if expected.error is not None or actual.error is not None:
        return _error_difference(expected.error, actual.error)
    if expected.structure != actual.structure:
        return f"structure: {expected.structure} became {actual.structure}"
    for number, (left, right) in enumerate(zip(expected.leaves, actual.leaves, strict=True)):
        found = _leaf_difference(left, right, device_type, tolerance)
        if found is not None:
            return f"result {number}: {found}"
    return None


def _leaf_difference(left: Any, right: Any, device_type: str | None, tolerance: float) -> str | None:
    if not isinstance(left, TensorFacts) or not isinstance(right, TensorFacts):
        same = type(left) is type(right) and (left == right or (left != left and right != right))
        return None if same or _same_device(left, right, device_type) else f"{left!r} became {right!r}"
    for name in ("shape", "dtype", "layout", "stride", "requires_grad", "conj", "neg", "offset"):
        if getattr(left, name) != getattr(right, name):
            return f"{name}: {getattr(left, name)} became {getattr(right, name)}"
    if device_type is not None and right.device_type != device_type and left.device_type == "cpu":
        return f"device: on {right.device_type}"
    if left.values is None or right.values is None:
        return None
    found = value_difference(left.values, right.values)
    if found is not None and tolerance and (left.values.is_floating_point() or left.values.is_complex()):
        gap = (left.values - right.values).abs().max()
        return None if gap <= tolerance * left.values.abs().max() else found
    return found


def _same_device(left: Any, right: Any, device_type: str | None) -> bool:
    return isinstance(left, torch.device) and isinstance(right, torch.device) and right.type == device_type


def value_difference(left: torch.Tensor, right: torch.Tensor) -> str | None:
    """None when the values have the same bits; any NaN equals any other."""
    if left.numel() == 0 or torch.equal(_bits(left), _bits(right)):
        return None
    if left.is_complex():
        return value_difference(torch.view_as_real(left.resolve_conj()), torch.view_as_real(right.resolve_conj()))
    if left.is_floating_point():
        differs = (left.view(_INTEGER[left.element_size()]) != right.view(_INTEGER[left.element_size()])) & ~(
            left.isnan() & right.isnan()
        )
        if not differs.any():
            return None
        gap = (left.double() - right.double()).abs()[differs].max().item()
        return f"values: {int(differs.sum())} of {left.numel()} differ, by {gap:.3g} at most"
    count = int((left != right).sum())
    return f"values: {count} of {left.numel()} differ"


_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    # clone: contiguous() keeps odd strides of dimensions of size one, which view() refuses.
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


# ---- errors ---------------------------------------------------------------------------------------------------------


def _error_difference(expected: BaseException | None, actual: BaseException | None) -> str | None:
    if expected is None:
        return f"raised {_brief(actual)}"
    if actual is None:
        return f"did not raise; the CPU raised {_brief(expected)}"
    if type(actual) is not type(expected):
        return f"raised {_brief(actual)} instead of {_brief(expected)}"
    if not _similar(str(expected), str(actual)):
        return f"message: {_brief(actual)} instead of {_brief(expected)}"
    return None


def _brief(error: BaseException | None) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}({text.splitlines()[0][:220] if text else ''!r})"


def _similar(expected: str, actual: str) -> bool:
    return _first_line(expected) == _first_line(actual)


def _first_line(message: str) -> str:
    lines = message.strip().splitlines()
    text = lines[0] if lines else ""
    # Names of devices, of their tensor types and of kernels' source lines are no part of what an error says.
    text = re.sub(r"neuron(:\d+)?|privateuseone(:\d+)?|\bcpu(:\d+)?\b", "<device>", text, flags=re.IGNORECASE)
    text = re.sub(r"torch\.<device>\.", "torch.", text)
    return re.sub(r"0x[0-9a-f]+", "<address>", text)
