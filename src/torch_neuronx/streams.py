"""Streams and events of the neuron device, in the conventions of torch.cuda.

Work submitted to one stream runs in order; streams run at the same time. An event marks a position in a stream.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from torch_neuronx import _C
from torch_neuronx.chip import ChipSpec
from torch_neuronx.config import active_config
from torch_neuronx.devices import DEVICE_TYPE, Device, core_index

_LONGEST_SLEEP_NS = 365 * 24 * 3600 * 10**9
_DEVICE_TYPE_ID: int = torch._C._autograd.DeviceType.PrivateUse1.value


def _require(value: object, kind: type[Any], what: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be a torch.{kind.__name__}, but got {type(value).__name__}: {value!r}")


class Stream(torch.Stream):
    """A queue of launches that run one after the other.

    Args:
        device: the device of the stream; the current one by default.
        priority: negative for a stream of the high-priority pool. The order of work between streams is the host's.

    Attributes:
        stream_id (int): 0 for the default stream.
        device_index (int), device (torch.device).

    Raises:
        RuntimeError: no such device.
        ValueError: another device type.
    """

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" in kwargs:
            kwargs.setdefault("device_type", _DEVICE_TYPE_ID)
            return super().__new__(cls, **kwargs)
        _C.ensure_started()
        index = -1 if device is None else core_index(device, optional=True)
        where = torch.device(DEVICE_TYPE, _C.current_device() if index < 0 else index)
        return super().__new__(cls, device=where, priority=priority, **kwargs)

    @property
    def priority(self) -> int:
        """Priority as the stream has it: -1 (high) or 0."""
        return _C.stream_priority(self.stream_id, self.device_index)

    @property
    def neuron_stream(self) -> int:
        """An address that is different for each stream of the process."""
        return _C.stream_handle(self.stream_id, self.device_index)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority: (0, -1)."""
        return 0, -1

    def wait_event(self, event: torch.Event) -> None:
        """Makes what is submitted to this stream from now on wait for `event`. Returns at once.

        Raises:
            TypeError: `event` is no event.
        """
        _require(event, torch.Event, "event")
        event.wait(self)

    def wait_stream(self, stream: torch.Stream) -> None:
        """Makes what is submitted from now on wait for what `stream` has been given so far. Returns at once.

        Raises:
            TypeError: `stream` is no stream.
        """
        _require(stream, torch.Stream, "stream")
        self.wait_event(stream.record_event())

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Records `event` (a new one by default) at the end of this stream and returns it.

        Raises:
            TypeError: `event` is no event.
        """
        if event is None:
            event = Event()
        _require(event, torch.Event, "event")
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether everything submitted so far is done."""
        return super().query()

    def synchronize(self) -> None:
        """Waits until everything submitted so far is done; raises the error of an earlier launch, once."""
        super().synchronize()

    def __repr__(self) -> str:
        return f"<torch.neuron.Stream device={self.device} stream_id={self.stream_id}>"


class Event(torch.Event):
    """Marks a position in a stream.

    Args:
        enable_timing: whether `elapsed_time` will be asked.
        blocking: accepted; waiting threads sleep in any case.
        interprocess: not supported.

    Raises:
        NotImplementedError: `interprocess` is true.
    """

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        if interprocess:
            raise NotImplementedError(
                "torch.neuron.Event(interprocess=True): events of the neuron device cannot be shared between processes"
            )
        return super().__new__(cls, device=torch.device(DEVICE_TYPE), enable_timing=enable_timing, blocking=blocking)

    def record(self, stream: torch.Stream | None = None) -> None:
        """Marks the end of `stream` (the current one by default); recording again moves the mark.

        Raises:
            RuntimeError: the event was recorded on another device before.
            TypeError: `stream` is no stream.
        """
        if stream is None:
            super().record()
        else:
            _require(stream, torch.Stream, "stream")
            super().record(stream)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Makes what is submitted to `stream` (the current one by default) from now on wait for the mark.

        Raises:
            TypeError: `stream` is no stream.
        """
        if stream is None:
            super().wait()
        else:
            _require(stream, torch.Stream, "stream")
            super().wait(stream)

    def query(self) -> bool:
        """Whether the mark has been reached; true when there is none."""
        return super().query()

    def synchronize(self) -> None:
        """Waits until the mark has been reached; raises the error of an earlier launch of that stream, once."""
        super().synchronize()

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Milliseconds between the moments at which the device reached this event and `end_event`.

        Raises:
            TypeError: `end_event` is no event.
            ValueError: an event was made without timing, was not recorded, or has not been reached yet.
        """
        _require(end_event, torch.Event, "end_event")
        if end_event.device.type != DEVICE_TYPE:
            raise ValueError(f"Both events must be of the neuron device, got one of {end_event.device}")
        # Not torch.Event's method, which refuses subclasses of torch.Event as its argument.
        return _C.event_elapsed_ms(self.event_id, end_event.event_id)

    def __repr__(self) -> str:
        return f"<torch.neuron.Event {self.event_id:#x}>" if self.event_id else "<torch.neuron.Event uninitialized>"


def _make_stream(id_and_device: tuple[int, int]) -> Stream:
    return Stream(stream_id=id_and_device[0], device_index=id_and_device[1])


def current_stream(device: Device = None) -> Stream:
    """The calling thread's current stream on `device` (the current device by default)."""
    _C.ensure_started()
    return _make_stream(_C.current_stream(core_index(device, optional=True)))


def default_stream(device: Device = None) -> Stream:
    """The stream that a device has from the beginning, on `device` (the current device by default)."""
    _C.ensure_started()
    return _make_stream(_C.default_stream(core_index(device, optional=True)))


def set_stream(stream: torch.Stream | None) -> None:
    """Makes `stream` the current stream, and its device the current device. None changes nothing.

    Raises:
        RuntimeError: no such stream or device.
        TypeError: `stream` is no stream.
    """
    if stream is not None:
        _require(stream, torch.Stream, "stream")
        _C.ensure_started()
        _C.set_stream(stream.stream_id, stream.device_index)


class StreamContext:
    """Context manager that makes a stream and its device current, and restores both; None changes nothing.

    When the stream is on another device than the current one, that device's current stream is restored, too.

    Raises:
        TypeError: `stream` is no stream.
    """

    def __init__(self, stream: torch.Stream | None) -> None:
        if stream is not None:
            _require(stream, torch.Stream, "stream")
        self.stream = stream
        self._previous_device = -1
        self._previous: tuple[int, int] | None = None

    def __enter__(self) -> torch.Stream | None:
        if self.stream is None:
            return None
        _C.ensure_started()
        self._previous_device = _C.current_device()
        self._previous = _C.current_stream(self.stream.device_index)
        set_stream(self.stream)
        return self.stream

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            _C.set_stream(*self._previous)
            _C.exchange_device(self._previous_device)
            self._previous = None


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager under which `stream` is current; errors as `StreamContext`."""
    return StreamContext(stream)


def wait_stream(stream: torch.Stream) -> None:
    """Makes the current stream wait for what `stream` has been given so far."""
    current_stream().wait_stream(stream)


def wait_event(event: torch.Event) -> None:
    """Makes the current stream wait for `event`."""
    current_stream().wait_event(event)


def record_event(event: torch.Event | None = None) -> torch.Event:
    """Records `event` (a new one by default) on the current stream and returns it."""
    return current_stream().record_event(event)


def query() -> bool:
    """Whether everything submitted to the current stream is done."""
    return current_stream().query()


def _sleep(cycles: int) -> None:
    """Keeps the current stream busy for so many cycles of the chip's base clock; returns at once. For tests.

    Raises:
        TypeError: `cycles` is no number.
        ValueError: it is negative, or more than a year.
    """
    if not isinstance(cycles, (int, float)):
        raise TypeError(f"cycles must be a number, but got {type(cycles).__name__}: {cycles!r}")
    _C.ensure_started()
    chip: ChipSpec = active_config().chip
    if not 0 <= cycles / chip.base_clock <= _LONGEST_SLEEP_NS:
        raise ValueError(f"cycles must not be negative, nor more than a year, but got {cycles}")
    _C.sleep_ns(round(cycles / chip.base_clock))
