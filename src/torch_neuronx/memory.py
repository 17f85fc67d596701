"""Device memory: statistics, limits and snapshots, in the conventions of torch.cuda.memory.

Work is asynchronous: call `torch.neuron.synchronize()` before reading a statistic, so that launches which still hold
memory are done. What the counters mean is in docs/memory.md. Sizes are bytes.

A function that takes a device takes what `torch.neuron.set_device` takes, or None for the current device. An index that
does not exist raises RuntimeError once the device is in use, another device type ValueError.
"""

from __future__ import annotations

import collections
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torch_neuronx import _C
from torch_neuronx.devices import Device, core_index
from torch_neuronx.streams import current_stream


class MemoryStats(collections.OrderedDict[str, Any]):
    """Statistics by flat name, each an int; nested names give dictionaries.

    `stats["allocated_bytes.all.current"]` is torch.cuda's key, and what iterating gives. `stats["allocated_bytes"]` is
    a dictionary with the keys `current`, `peak`, `allocated` and `freed` of all pools, as TorchNeuron has it, and with
    `all`, `small_pool` and `large_pool`, each with those four.
    """

    def __init__(self, nested: dict[str, Any]) -> None:
        super().__init__(sorted(_flatten(nested)))
        self._nested: dict[str, Any] = {}
        for name, value in nested.items():
            if isinstance(value, dict):
                self._nested[name] = {**value, **value.get("all", {})}

    def __missing__(self, key: str) -> Any:
        if key in self._nested:
            return self._nested[key]
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self._nested

    def get(self, key: str, default: Any = None) -> Any:
        """The int or the dictionary that `self[key]` is, or `default`."""
        # dict.get does not ask __missing__.
        try:
            return self[key]
        except KeyError:
            return default

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_stats, (dict(self), self._nested)


def _restore_stats(flat: dict[str, Any], nested: dict[str, Any]) -> MemoryStats:
    stats = MemoryStats({})
    stats.update(flat)
    stats._nested = nested
    return stats


def _flatten(nested: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in nested.items():
        if isinstance(value, dict):
            flat += _flatten(value, f"{prefix}{name}.")
        else:
            flat.append((prefix + name, value))
    return flat


def _index(device: Device) -> int:
    index = core_index(device, optional=True)
    if _C.is_started() and not 0 <= index < _C.device_count():
        raise RuntimeError(
            f"invalid neuron device index {index}: this process sees {_C.device_count()} neuron device(s)"
        )
    return index


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """The result of `memory_stats` as nested dictionaries; empty before the device was used."""
    return _C.memory_stats(_index(device)) if _C.is_started() else {}


def memory_stats(device: Device = None) -> MemoryStats:
    """Counters of the memory allocator of `device` (the current one by default); empty before the device was used.

    Keys, for `X` one of `all`, `small_pool` (requests up to 1 MiB) and `large_pool`, and `Y` one of `current`, `peak`,
    `allocated` (everything ever added) and `freed`:

    - `reserved_bytes.X.Y`, `segment.X.Y`: bytes and number of segments taken from the device's HBM.
    - `allocated_bytes.X.Y`, `allocation.X.Y`: blocks that cannot be handed out: those of tensors, and freed ones that
      another stream may still use (`record_stream`). Bytes are after rounding.
    - `active_bytes.X.Y`, `active.X.Y`: blocks of tensors. So reserved >= allocated >= active.
    - `requested_bytes.X.Y`: the bytes of tensors before rounding.
    - `inactive_split_bytes.X.Y`, `inactive_split.X.Y`: free blocks in segments that are in use, which no cleaning of
      the cache can give back.
    - `oversize_allocations.Y`, `oversize_segments.Y`: blocks and segments above `max_split_size`.
    - `num_alloc_retries`: allocations that had to give cached memory back first; `num_ooms`: those that failed.
    - `num_sync_all_streams`, `num_device_alloc`, `num_device_free`: waits for the whole device on behalf of an
      allocation, and segments taken and given back.
    - `allocation_requests`, `num_tensor_frees`: allocations and frees so far.

    Each group can also be reached as a dictionary: `memory_stats()["allocated_bytes"]["current"]`.
    """
    return MemoryStats(memory_stats_as_nested_dict(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Starts the `allocated` and `freed` statistics and the `num_...` counters of `device` again at 0."""
    _C.ensure_started()
    _C.reset_accumulated_memory_stats(_index(device))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Starts the `peak` statistics of `device` again at the current values."""
    _C.ensure_started()
    _C.reset_peak_memory_stats(_index(device))


def _warn_resets_all(name: str) -> None:
    warnings.warn(
        f"torch.neuron.{name} calls torch.neuron.reset_peak_memory_stats, which resets all peak memory stats",
        FutureWarning,
        stacklevel=3,
    )


def reset_max_memory_allocated(device: Device = None) -> None:
    """Kept for scripts written for torch.cuda: `reset_peak_memory_stats`, with a warning."""
    _warn_resets_all("reset_max_memory_allocated")
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: Device = None) -> None:
    """Kept for scripts written for torch.cuda: `reset_peak_memory_stats`, with a warning."""
    _warn_resets_all("reset_max_memory_cached")
    reset_peak_memory_stats(device)


def memory_allocated(device: Device = None) -> int:
    """Bytes of device memory that tensors hold, after rounding."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: Device = None) -> int:
    """The highest value of `memory_allocated` since the start or the last `reset_peak_memory_stats`."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: Device = None) -> int:
    """Bytes of device memory that the allocator has taken: those of tensors and those it keeps for new ones."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: Device = None) -> int:
    """The highest value of `memory_reserved` since the start or the last `reset_peak_memory_stats`."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def memory_cached(device: Device = None) -> int:
    """Kept for scripts written for torch.cuda: `memory_reserved`, with a warning."""
    warnings.warn("torch.neuron.memory_cached is torch.neuron.memory_reserved", FutureWarning, stacklevel=2)
    return memory_reserved(device)


def max_memory_cached(device: Device = None) -> int:
    """Kept for scripts written for torch.cuda: `max_memory_reserved`, with a warning."""
    warnings.warn("torch.neuron.max_memory_cached is torch.neuron.max_memory_reserved", FutureWarning, stacklevel=2)
    return max_memory_reserved(device)


def empty_cache() -> None:
    """Gives cached memory that no tensor uses back: to the device's HBM, and its pages to the host.

    Waits for the launches that may still use such memory.
    """
    if _C.is_started():
        _C.empty_cache()


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and total bytes of HBM of `device`. Memory the allocator has cached is not free."""
    _C.ensure_started()
    return _C.memory_info(_index(device))


def device_memory_used(device: Device = None) -> int:
    """Bytes of HBM of `device` that are taken: by this process, since no other shares its virtual devices."""
    free, total = mem_get_info(device)
    return total - free


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Limits what the process may reserve on `device` to `fraction` of its HBM.

    Args:
        fraction: from 0 to 1.
        device: the current one by default.

    Raises:
        TypeError: `fraction` is not a float.
        ValueError: it is not in [0, 1].
    """
    _C.ensure_started()
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _C.set_memory_fraction(_index(device), fraction)


def get_per_process_memory_fraction(device: Device = None) -> float:
    """The fraction set by `set_per_process_memory_fraction`; 1.0 by default."""
    _C.ensure_started()
    return _C.memory_fraction(_index(device))


def caching_allocator_alloc(size: int, device: Device = None, stream: torch.Stream | int | None = None) -> int:
    """Allocates device memory for another library; to be freed by `caching_allocator_delete`.

    Args:
        size: bytes.
        device: the current one by default.
        stream: the stream, or its `stream_id`, that uses the memory; the current one by default.

    Returns:
        The address of the memory; 0 for a size of 0.

    Raises:
        torch.OutOfMemoryError: the device has not that much left.
        TypeError: `stream` is neither a stream nor an id.
        ValueError: `size` is negative.
    """
    index = _index(device)
    if stream is None:
        stream = current_stream(index)
    if isinstance(stream, torch.Stream):
        stream = stream.stream_id
    if not isinstance(stream, int):
        raise TypeError("Invalid type for stream argument, must be `torch.neuron.Stream` or a stream's id")
    if size < 0:
        raise ValueError(f"Invalid size: {size}. It must not be negative")
    _C.ensure_started()
    return _C.raw_alloc(size, index, stream)


def caching_allocator_delete(mem_ptr: int) -> None:
    """Frees memory of `caching_allocator_alloc`.

    Raises:
        ValueError: the address was not returned by it, or was freed already.
    """
    _C.raw_delete(mem_ptr)


# ---- summary --------------------------------------------------------------------------------------------------------


def _format_size(size: int, scale_of: int) -> str:
    """`size` in the unit in which `scale_of` reads well, so that a row has one unit."""
    units = ["B  ", "KiB", "MiB", "GiB", "TiB", "PiB"]
    unit = 0
    while scale_of >= 768 * 1024 and unit + 1 < len(units):
        unit += 1
        size //= 1024
        scale_of //= 1024
    return f"{size:6d} {units[unit]}"


def _format_count(count: int, scale_of: int) -> str:
    units = [" ", "K", "M"]
    unit = 0
    while scale_of >= 750 * 1000 and unit + 1 < len(units):
        unit += 1
        count //= 1000
        scale_of //= 1000
    return f"{count:7d} {units[unit]} "


_SUMMARY_ROWS: list[tuple[str, str, Callable[[int, int], str]]] = [
    ("allocated_bytes", "Allocated memory", _format_size),
    ("active_bytes", "Active memory", _format_size),
    ("requested_bytes", "Requested memory", _format_size),
    ("reserved_bytes", "Reserved memory", _format_size),
    ("inactive_split_bytes", "Non-releasable memory", _format_size),
    ("allocation", "Allocations", _format_count),
    ("active", "Active allocs", _format_count),
    ("segment", "Reserved segments", _format_count),
    ("inactive_split", "Non-releasable allocs", _format_count),
]
_SUMMARY_COLUMNS = ("current", "peak", "allocated", "freed")


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """A table of the statistics of `device` for people to read, with how fragmented its free memory is.

    Args:
        device: the current one by default.
        abbreviated: leaves the rows of the two pools out.
    """
    _C.ensure_started()
    index = _index(device)
    stats = memory_stats(index)
    free, total = mem_get_info(index)
    width = 75
    rule, double_rule = "-" * width, "=" * width

    def row(name: str, prefix: str, scale_of: list[int], form: Callable[[int, int], str]) -> str:
        cells = [
            form(stats[f"{prefix}.{column}"], scale) for column, scale in zip(_SUMMARY_COLUMNS, scale_of, strict=True)
        ]
        return f" {name:<21} | " + " | ".join(cells) + " "

    lines = [
        double_rule,
        f"PyTorch Neuron memory summary, device ID {index}".center(width),
        rule,
        f"OOMs: {stats['num_ooms']:<8d} | Allocation retries: {stats['num_alloc_retries']:<8d}".center(width),
        double_rule,
        "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ",
    ]
    for key, name, form in _SUMMARY_ROWS:
        lines.append(rule)
        scale_of = [stats[f"{key}.all.{column}"] for column in _SUMMARY_COLUMNS]
        lines.append(row(name, f"{key}.all", scale_of, form))
        if not abbreviated:
            lines.append(row("      from large pool", f"{key}.large_pool", scale_of, form))
            lines.append(row("      from small pool", f"{key}.small_pool", scale_of, form))
    for key, name in (("oversize_allocations", "Oversize allocations"), ("oversize_segments", "Oversize segments")):
        lines.append(rule)
        lines.append(row(name, key, [stats[f"{key}.{column}"] for column in _SUMMARY_COLUMNS], _format_count))
    largest = _C.largest_free_block(index)
    cached = stats["reserved_bytes.all.current"] - stats["allocated_bytes.all.current"]
    hbm_text, free_text, cached_text, largest_text = (
        _format_size(size, size).strip() for size in (total, free, cached, largest)
    )
    lines += [
        rule,
        f" HBM: {hbm_text}, of which {free_text} not reserved".ljust(width),
        f" Cached and free: {cached_text}, largest piece {largest_text}".ljust(width),
        double_rule,
    ]
    return "".join(f"|{line}|\n" for line in lines)


# ---- pinned host memory ---------------------------------------------------------------------------------------------


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """The result of `host_memory_stats` as nested dictionaries; empty before the device was used."""
    return _C.host_memory_stats() if _C.is_started() else {}


def host_memory_stats() -> MemoryStats:
    """Counters of pinned host memory, by torch.cuda's names; empty before the device was used.

    `allocations.Y`, `allocated_bytes.Y`: blocks the allocator has, in use or cached; `active_requests.Y`,
    `active_bytes.Y`: those in use, by a tensor or by a copy that is still queued; `host_alloc_time.Z`,
    `host_free_time.Z`: microseconds spent in the host's allocator; `num_host_alloc`, `num_host_free`.
    """
    return MemoryStats(host_memory_stats_as_nested_dict())


def reset_accumulated_host_memory_stats() -> None:
    """Starts the `allocated` and `freed` statistics of pinned host memory again at 0."""
    _C.reset_accumulated_host_memory_stats()


def reset_peak_host_memory_stats() -> None:
    """Starts the `peak` statistics of pinned host memory again at the current values."""
    _C.reset_peak_host_memory_stats()


# ---- snapshots ------------------------------------------------------------------------------------------------------


def memory_snapshot(mempool_id: tuple[int, int] | None = None, include_traces: bool = True) -> list[dict[str, Any]]:
    """The segments of all devices and the blocks in them, in the form of `torch.cuda.memory_snapshot`.

    Args:
        mempool_id: of a private pool, of which there are none: only None and (0, 0) give segments.
        include_traces: as in torch.cuda; the traces are in `_snapshot()`, not in this result.
    """
    if mempool_id not in (None, (0, 0)) or not _C.is_started():
        return []
    return _C.memory_snapshot(include_traces)["segments"]


def _record_memory_history(
    enabled: str | bool | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: Device = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: list[str] | None = None,
) -> None:
    """Records where memory is allocated, for `_snapshot`; the arguments are torch.cuda's.

    Args:
        enabled: None or False to stop, "state" to remember where live memory was allocated, "all" (or True) to keep a
            history of what was allocated and freed, too.
        context: for what stacks are kept: None, "state" (live memory), "alloc" (allocations in the history), "all".
        stacks: "python", or "all" for C++ frames, too.
        max_entries: of the history of each device; the oldest are dropped.
        device: accepted; the history is recorded on all devices.
        clear_history: drops what was recorded before.
        compile_context, global_record_annotations: accepted; have no effect.
        skip_actions: names of actions that are left out of the history.

    Raises:
        ValueError: an unknown word for `enabled`, `context`, `stacks` or an action.
    """
    if isinstance(enabled, bool):
        enabled = "all" if enabled else None
    _C.record_memory_history(enabled, context, stacks, max_entries, clear_history, skip_actions or [])


def _snapshot(device: Device = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """The state of the memory of all devices, and its history: the form that pytorch.org/memory_viz reads.

    Args:
        device: accepted; the snapshot is of all devices.
        augment_with_fx_traces: adds the source of compiled code to stack frames.
    """
    snapshot = _C.memory_snapshot(True)
    if augment_with_fx_traces:
        from torch._utils import _augment_memory_snapshot_stack_traces

        snapshot = _augment_memory_snapshot_stack_traces(snapshot)
    return snapshot


def _dump_snapshot(filename: str | Path = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
    """Writes `_snapshot()` to a file for pytorch.org/memory_viz or `python -m torch.cuda._memory_viz`."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(augment_with_fx_traces=augment_with_fx_traces), file)


def _save_segment_usage(filename: str | Path = "output.svg", snapshot: dict[str, Any] | None = None) -> None:
    """Draws the segments as a flame graph. Fetches the drawing script from the network, as torch.cuda's does."""
    from torch.cuda._memory_viz import segments

    Path(filename).write_text(segments(_snapshot() if snapshot is None else snapshot))


def _save_memory_usage(filename: str | Path = "output.svg", snapshot: dict[str, Any] | None = None) -> None:
    """Draws the blocks as a flame graph. Fetches the drawing script from the network, as torch.cuda's does."""
    from torch.cuda._memory_viz import memory

    Path(filename).write_text(memory(_snapshot() if snapshot is None else snapshot))


def _set_memory_metadata(metadata: str) -> None:
    """Attaches `metadata` to what this thread adds to the history from now on; "" for nothing."""
    _C.set_memory_metadata(metadata)


def _get_memory_metadata() -> str:
    """What `_set_memory_metadata` has set in this thread."""
    return _C.memory_metadata()


def _allocation_traceback(data_ptr: int) -> list[dict[str, Any]] | None:
    """Where the live memory at `data_ptr` was allocated; None when it is not known or was not recorded."""
    return _C.allocation_traceback(data_ptr)


def _attach_out_of_memory_observer(observer: Callable[[int, int, int, int], None]) -> None:
    """Calls `observer(device, requested, reserved, allowed)` before each OutOfMemoryError is raised.

    `device` is an index, the others are bytes: what was asked for, what is reserved, and the limit.
    """
    _C.attach_out_of_memory_observer(observer)


def get_allocator_backend() -> str:
    """Name of the allocator, as in torch.cuda: "native"."""
    return "native"


__all__ = [
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "device_memory_used",
    "empty_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]
