"""Finding the calls that wait for the device, in the conventions of torch.cuda."""

from __future__ import annotations

from torch_neuronx import _C

_MODES = ("default", "warn", "error")


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Makes operations that wait for the device warn or raise RuntimeError, on all threads.

    These are: reading a value (`item()`, `print`, `.cpu()`), operators whose results have a shape that depends on
    values, copies of more than 256 KiB from host memory that are not both pinned and `non_blocking`, and
    `Stream.synchronize()`. As on cuda, `torch.neuron.synchronize()` and events may wait in every mode.

    Args:
        debug_mode: 0 or "default", 1 or "warn", 2 or "error".

    Raises:
        RuntimeError: another word.
        ValueError: another number.
        TypeError: neither a word nor a number.
    """
    if isinstance(debug_mode, str):
        if debug_mode not in _MODES:
            raise RuntimeError(f"invalid value of debug_mode, expected one of `default`, `warn`, `error`: {debug_mode}")
        debug_mode = _MODES.index(debug_mode)
    if not isinstance(debug_mode, int):
        raise TypeError(f"debug_mode must be an int or a str, but got: {debug_mode!r}")
    if not 0 <= debug_mode < len(_MODES):
        raise ValueError(f"invalid value of debug_mode, expected 0, 1 or 2, but got: {debug_mode}")
    _C.set_sync_debug_mode(debug_mode)


def get_sync_debug_mode() -> int:
    """The mode set by `set_sync_debug_mode`: 0 (default), 1 (warn) or 2 (error)."""
    return _C.sync_debug_mode()
