"""Operators that draw random numbers: whether a call draws, and how it is made to draw from the device's generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from torch_neuronx import _C

# The probability with which these operators drop; at 0 they draw nothing.
DROPOUT_ARGUMENTS = ("dropout_p", "dropout")

# Their CPU kernels call other operators, which draw.
MADE_OF_OPERATORS = (torch.ops.aten.native_dropout.default,)


def is_random(op: Any) -> bool:
    """True for an operator that may draw from a generator of PyTorch's."""
    return isinstance(op, OpOverload) and torch.Tag.nondeterministic_seeded in op.tags


def draws(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True for a call that draws from a generator: a random operator's, unless its dropout is 0."""
    if not is_random(op):
        return False
    for position, formal in enumerate(op._schema.arguments):
        if formal.name in DROPOUT_ARGUMENTS:
            given = args[position] if position < len(args) else kwargs.get(formal.name)
            return bool((formal.default_value if given is None else given) != 0)
    return True


def with_generator(op: OpOverload) -> OpOverload | None:
    """The overload of a random operator that draws from a given generator, and takes the same arguments besides.

    None when there is none: the operator draws from the process's generator.
    """
    wanted = [formal.name for formal in op._schema.arguments]
    if "generator" in wanted:
        return op
    packet = op._overloadpacket
    for overload in packet.overloads():
        other: OpOverload = getattr(packet, overload)
        names = [formal.name for formal in other._schema.arguments]
        if "generator" in names and [name for name in names if name != "generator"] == wanted:
            return other
    return None


class DrawFromDevice(TorchDispatchMode):
    """While it is on, random operators on host tensors draw what they would draw as launches on a neuron device.

    For generated code that is run as Python. Each operator reserves its part of the device's generator, in order; in
    host-RNG mode the CPU's generator is drawn from, as everywhere.

    Raises:
        NotImplementedError: an operator that can only draw from the process's generator.
    """

    def __init__(self, device_index: int) -> None:
        super().__init__()
        self.device_index = device_index

    def __enter__(self) -> DrawFromDevice:
        # Kernels run below Python's dispatch, and this one is Python.
        excluded = torch._C._dispatch_tls_local_exclude_set()
        for key in (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot):
            excluded = excluded.remove(key)
        self._guard = torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)
        self._guard.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._guard.__exit__(*exception)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not draws(func, args, kwargs) or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        op = with_generator(func)
        if op is not None:
            return op(*args, **{**kwargs, "generator": _C.launch_generator(self.device_index)})
        if func not in MADE_OF_OPERATORS:
            raise NotImplementedError(f"{func} in a compiled graph would draw from the host's generator")
        with self:
            return func._op_dk(torch._C.DispatchKey.CPU, *args, **kwargs)
