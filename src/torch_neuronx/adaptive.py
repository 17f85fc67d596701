"""How launches that are queued run: each by itself, or runs of element-wise ones together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

from torch_neuronx import _C
from torch_neuronx.devices import synchronize_all


class eager_mode:
    """Sets the eager mode at once and for all threads; as a context manager it restores the mode before.

    Args:
        mode: "strict" (each launch by itself), "adaptive" (runs of element-wise launches are computed together, with
            the same results), or "verify" (as adaptive, and each region is compared with strict execution).

    Raises:
        ValueError: another word.
    """

    def __init__(self, mode: str) -> None:
        self._before = _C._eager_mode()
        _C._set_eager_mode(mode)

    def __enter__(self) -> eager_mode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _C._set_eager_mode(self._before)


def get_eager_mode() -> str:
    """The eager mode: "strict", "adaptive" or "verify"."""
    return _C._eager_mode()


def adaptive_stats() -> dict[str, Any]:
    """What adaptive execution has done in this process, over all devices.

    Returns:
        `regions`: how many were executed.
        `launches_in_regions` and `launches_saved`, which is their number less the regions.
        `verified`: regions that were compared with strict execution, and `mismatches` among these.
        `cuts`: how often a region ended, by reason; `record_adaptive_cuts` says where. "end of queue": nothing was
        queued behind it; "not an operator": a copy, an event, a compiled graph was next; "not element-wise": an
        operator that regions do not hold; "arguments": the next operator's arguments are nothing for tiles, or tiles
        would not give the kernel's bits; "other sizes"; "shared memory": with tensors of the region, but not as the
        very same memory; "length".
        `kinds`: for each operator and kinds of arguments tried so far, whether tiles give the bits of PyTorch's kernel.
    """
    statistics = _C._adaptive_statistics()
    return {**statistics, "launches_saved": statistics["launches_in_regions"] - statistics["regions"]}


def reset_adaptive_stats() -> None:
    """Sets what `adaptive_stats` counts to zero; `kinds` stays."""
    _C._reset_adaptive_statistics()


class AdaptiveCut(NamedTuple):
    """A place where regions ended."""

    reason: str  # as in adaptive_stats()["cuts"]
    operator: str  # which did not fit; of "end of queue" and "length", the last one of the region
    line: str | None  # of the user's program; None for what Python did not submit, such as autograd's thread
    times: int


@contextmanager
def record_adaptive_cuts() -> Iterator[list[AdaptiveCut]]:
    """Where regions end while the block runs, and why; for finding the lines that keep operators apart.

    Yields:
        A list, empty until the block ends; then it has the places, the most frequent first. Some 4,000 of them are
        told apart, those after them are counted as "others".

    Raises:
        RuntimeError: another such block is running, in any thread.
        The error of an earlier launch, as `torch.neuron.synchronize` does.
    """
    cuts: list[AdaptiveCut] = []
    synchronize_all()
    _C._start_cut_log()
    try:
        yield cuts
        synchronize_all()
    finally:
        cuts += [AdaptiveCut(*cut) for cut in _C._finish_cut_log()]
