"""How launches that are queued run: each by itself, or runs of element-wise ones together."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from torch_neuronx import _C


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
        `cuts`: how often a region ended, by reason. "end of queue": nothing was queued behind it; "not element-wise":
        the next launch was of a kind that regions do not hold; "arguments": the next operator's arguments are nothing
        for tiles, or tiles would not give the kernel's bits; "other sizes"; "shared memory": with tensors of the
        region, but not as the very same memory; "length".
        `kinds`: for each operator and kinds of arguments tried so far, whether tiles give the bits of PyTorch's kernel.
    """
    statistics = _C._adaptive_statistics()
    return {**statistics, "launches_saved": statistics["launches_in_regions"] - statistics["regions"]}
