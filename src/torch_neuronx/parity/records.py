"""Named values that a run hands over for comparison, in a file of pickled (kind, name, array or text).

Needs nothing of torch_neuronx: the run on the CPU loads this file by itself, without the device.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# The file to append to; unset outside of a parity run.
RECORDS_VARIABLE = "TORCH_NEURONX_PARITY_RECORDS"


def log(name: str, value: Any) -> None:
    """Hands a value over for comparison. Does nothing outside of `python -m torch_neuronx.parity`.

    Values of the same name are compared in the order in which they were logged.

    Args:
        name: says in the report where a difference is.
        value: a number, a tensor or array of any shape and dtype on any device (waits for the device), or a list,
            tuple or dictionary of such values.

    Raises:
        TypeError: the value is none of these.
    """
    append("logged", name, value)


def append(kind: str, name: str, value: Any) -> None:
    """Writes one record. `kind` tells apart what the script logged from what was watched."""
    path = os.environ.get(RECORDS_VARIABLE)
    if path is None:
        return
    frames = [pickle.dumps((kind, part, array)) for part, array in _arrays(name, value)]
    # One write in append mode a value: processes that the script started may write at the same time.
    with open(path, "ab", buffering=0) as file:
        file.write(b"".join(frames))


def read(path: Path) -> Iterator[tuple[str, str, np.ndarray]]:
    """All records in the order in which they were written, as (kind, name, array)."""
    if not path.exists():
        return
    with path.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                return


def _arrays(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, str):
        yield name, np.asarray(value)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _arrays(f"{name}.{key}", part)
    elif isinstance(value, Sequence):
        for index, part in enumerate(value):
            yield from _arrays(f"{name}[{index}]", part)
    elif hasattr(value, "detach"):
        yield name, _tensor_to_array(value)
    else:
        array = np.asarray(value)
        if array.dtype == object:
            raise TypeError(
                f"parity.log({name!r}, ...): cannot compare a {type(value).__name__}; give numbers or tensors"
            )
        yield name, array


def _tensor_to_array(tensor: Any) -> np.ndarray:
    import torch

    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    if tensor.is_floating_point() and tensor.dtype is not torch.float64:
        tensor = tensor.float()  # numpy has no bfloat16 and no float8; float32 holds all of them exactly
    return tensor.numpy().copy()
