"""What ran on the neuron devices, launch by launch, as tests and tools want it.

For a profile with CPU ops, arrows and a timeline use `torch.profiler.profile(activities=[ProfilerActivity.CPU,
ProfilerActivity.PrivateUse1])`. Both read the same trace, and may do so at the same time.

All times are measured on the host while it executes launches on virtual NeuronCores. They predict nothing for a chip.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch_neuronx import _C
from torch_neuronx.devices import synchronize_all

__all__ = ["Launch", "Launches", "launches"]


class Launch(NamedTuple):
    """One launch: an ATen op, a copy, a wait. Times are nanoseconds since the unix epoch, measured on the host."""

    name: str  # "aten::mm", "neuron::copy_host_to_device", "neuron::event_wait"
    signature: int  # equal for launches with the same op, shapes, strides and dtypes; 0 when there is none
    op_id: int  # "External id" of the CPU op in a torch.profiler profile that runs at the same time, else 0
    annotation_id: int  # the same for the innermost torch.profiler.record_function
    enqueue_ns: int  # submission; 0 when it was submitted before the trace began
    start_ns: int
    end_ns: int
    device: int
    stream: int  # 0 is the default stream
    thread: int  # a small number for the host thread that executed it
    inline: bool  # executed by the thread that submitted it
    region: int = 0  # equal, on one stream, for launches that adaptive execution computed together; else 0

    @property
    def duration_ns(self) -> int:
        """How long it was executed for. Launches of a region have equal parts of the region's time."""
        return self.end_ns - self.start_ns

    @property
    def queued_ns(self) -> int:
        """How long it waited between submission and execution; 0 when the submission was not seen."""
        return max(0, self.start_ns - self.enqueue_ns) if self.enqueue_ns else 0


class Launches:
    """What `launches()` has seen. Empty until the block ends, or until `take`.

    Attributes:
        records: the launches taken so far, in the order in which they ended.
        dropped: how many of the oldest are missing, because more than the capacity ended between two takes.
    """

    def __init__(self, capacity: int) -> None:
        self.records: list[Launch] = []
        self.dropped = 0
        self._reader = _C._TraceReader(capacity)

    def take(self) -> list[Launch]:
        """Adds what has ended since the last call to `records`, and returns just that. Waits for no launch.

        For traces longer than the capacity: call it now and then.
        """
        new = [Launch._make(fields) for fields in self._reader.take()]
        self.records += new
        self.dropped = self._reader.dropped
        return new

    def names(self) -> list[str]:
        """The names of `records`, in order."""
        return [record.name for record in self.records]

    def _close(self) -> None:
        self._reader.close()


@contextmanager
def launches(capacity: int = 1 << 16) -> Iterator[Launches]:
    """Records the launches of all devices, streams and threads that are submitted within the block.

    The devices are synchronized at both ends, so that the block's launches are seen, all of them and no others.

        with torch_neuronx.profiler.launches() as trace:
            y = model(x)
        print(len(trace.records), sum(r.duration_ns for r in trace.records))

    Args:
        capacity: how many launches are kept between two calls of `take` (at least; the trace is shared). When more
            end, the oldest are overwritten, and `dropped` says how many.

    Yields:
        The trace; `records` is filled when the block ends.

    Raises:
        ValueError: `capacity` is not positive.
        The error of an earlier launch, as `torch.neuron.synchronize` does.
    """
    if capacity <= 0:
        raise ValueError(f"capacity must be positive, but it is {capacity}")
    synchronize_all()
    trace = Launches(capacity)
    try:
        yield trace
        synchronize_all()
    finally:
        trace.take()
        trace._close()
