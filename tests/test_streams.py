"""Streams and events: order, waiting, current streams, timing."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable

import pytest
import torch

neuron = torch.neuron
MILLISECOND = 1_200_000  # cycles of torch.neuron._sleep at 1.2 GHz


def learn(op: Callable[[], object]) -> None:
    """Calls `op` on a busy stream: the first such call waits, to learn the shapes of the results; later ones do not."""
    neuron._sleep(MILLISECOND)
    op()
    neuron.synchronize()


@pytest.fixture(autouse=True)
def default_streams():
    neuron.set_device(0)
    yield
    neuron.set_device(0)
    neuron.synchronize()


def test_default_and_current_stream() -> None:
    default = neuron.default_stream()
    assert default.stream_id == 0
    assert default.device_index == 0
    assert default.device == torch.device("neuron:0")
    assert default.priority == 0
    assert neuron.current_stream() == default
    assert neuron.default_stream(1) != default
    assert neuron.current_stream("neuron:1").device_index == 1
    assert isinstance(default, neuron.Stream)
    assert isinstance(default, torch.Stream)
    assert repr(default) == "<torch.neuron.Stream device=neuron:0 stream_id=0>"
    assert default.neuron_stream != neuron.default_stream(1).neuron_stream
    assert torch.accelerator.current_stream() == default


def test_equality_and_hash() -> None:
    stream = neuron.Stream()
    same = neuron.Stream(stream_id=stream.stream_id, device_index=stream.device_index)
    assert stream == same
    assert hash(stream) == hash(same)
    assert stream == torch.Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )
    assert stream != neuron.default_stream()
    assert len({stream, same, neuron.default_stream()}) == 2


@pytest.mark.parametrize("device", [None, 1, "neuron:1", torch.device("neuron:1")])
def test_new_streams(device: object) -> None:
    stream = neuron.Stream(device)
    assert stream.device_index == (0 if device is None else 1)
    assert stream.stream_id != 0
    assert stream != neuron.Stream(device)
    assert stream.query()


@pytest.mark.parametrize(("asked", "given"), [(0, 0), (-1, -1), (-5, -1), (3, 0)])
def test_priority(asked: int, given: int) -> None:
    assert neuron.Stream(priority=asked).priority == given


def test_priority_range() -> None:
    assert neuron.Stream.priority_range() == (0, -1)


def test_stream_on_missing_device() -> None:
    with pytest.raises(RuntimeError, match="invalid neuron device index"):
        neuron.Stream(9)
    with pytest.raises(ValueError, match="Expected a neuron device"):
        neuron.Stream("cpu")
    with pytest.raises(RuntimeError, match="no stream 12345"):
        neuron.Stream(stream_id=12345, device_index=0).synchronize()


def test_stream_context() -> None:
    stream, other = neuron.Stream(), neuron.Stream(device=2)
    with neuron.stream(stream) as entered:
        assert entered is stream
        assert neuron.current_stream() == stream
        with neuron.stream(other):
            assert neuron.current_stream() == other
            assert neuron.current_device() == 2
            assert neuron.current_stream(0) == stream
        assert neuron.current_stream() == stream
        assert neuron.current_device() == 0
        assert neuron.current_stream(2) == neuron.default_stream(2)
        with neuron.stream(None):
            assert neuron.current_stream() == stream
    assert neuron.current_stream() == neuron.default_stream()


def test_stream_context_restores_after_an_error() -> None:
    with pytest.raises(KeyError), neuron.stream(neuron.Stream()):
        raise KeyError
    assert neuron.current_stream() == neuron.default_stream()


@pytest.mark.parametrize("kind", [neuron.Stream, torch.Stream])
def test_stream_is_a_context_manager(kind: type[torch.Stream]) -> None:
    stream = kind(device=torch.device("neuron:1"))
    with stream:
        assert neuron.current_stream() == stream
        assert neuron.current_device() == 1
    assert neuron.current_device() == 0
    assert neuron.current_stream(1) == neuron.default_stream(1)


def test_set_stream() -> None:
    stream = neuron.Stream(device=1)
    neuron.set_stream(stream)
    assert neuron.current_device() == 1
    assert neuron.current_stream() == stream
    neuron.set_stream(None)
    assert neuron.current_stream() == stream
    neuron.set_stream(neuron.default_stream(1))


def test_current_stream_belongs_to_the_thread() -> None:
    stream = neuron.Stream()
    seen = []
    with neuron.stream(stream):
        thread = threading.Thread(target=lambda: seen.append(neuron.current_stream()))
        thread.start()
        thread.join()
    assert seen == [neuron.default_stream()]


def test_work_is_asynchronous() -> None:
    start = time.perf_counter()
    neuron._sleep(100 * MILLISECOND)
    assert time.perf_counter() - start < 0.08
    assert not neuron.current_stream().query()
    neuron.current_stream().synchronize()
    assert time.perf_counter() - start > 0.09
    assert neuron.current_stream().query()
    assert neuron.query()


def test_waiting_lets_other_threads_run() -> None:
    ticks = []
    done = threading.Event()

    def count() -> None:
        while not done.wait(0.002):
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=count)
    for wait in (
        neuron.synchronize,
        torch.accelerator.synchronize,
        lambda: neuron.current_stream().synchronize(),
        lambda: neuron.record_event().synchronize(),
    ):
        ticks.clear()
        done.clear()
        thread = threading.Thread(target=count)
        neuron._sleep(100 * MILLISECOND)
        thread.start()
        wait()
        done.set()
        thread.join()
        assert len(ticks) > 5


def test_streams_do_not_wait_for_each_other() -> None:
    slow, fast = neuron.Stream(), neuron.Stream()
    with neuron.stream(slow):
        neuron._sleep(200 * MILLISECOND)
    with neuron.stream(fast):
        x = torch.ones(8, device="neuron") * 2
    fast.synchronize()
    assert not slow.query()
    assert x.sum().item() == 16
    slow.synchronize()


@pytest.mark.parametrize("how", ["wait_stream", "wait_event", "module wait_stream", "module wait_event", "event.wait"])
def test_waiting_orders_streams(how: str) -> None:
    producer, consumer = neuron.Stream(), neuron.Stream()
    x = torch.zeros(4, device="neuron")
    learn(lambda: x.add_(0))
    learn(lambda: x * 2)
    with neuron.stream(producer):
        neuron._sleep(200 * MILLISECOND)
        x += 3
    with neuron.stream(consumer):
        if how == "wait_stream":
            consumer.wait_stream(producer)
        elif how == "wait_event":
            consumer.wait_event(producer.record_event())
        elif how == "module wait_stream":
            neuron.wait_stream(producer)
        elif how == "module wait_event":
            neuron.wait_event(producer.record_event())
        else:
            producer.record_event(neuron.Event()).wait()
        y = x * 2
    assert not producer.query()
    assert not consumer.query()
    consumer.synchronize()
    assert y.tolist() == [6.0] * 4


def test_waiting_across_devices() -> None:
    event = neuron.Event()
    x = torch.zeros(4, device="neuron:1")
    neuron.synchronize(1)
    with neuron.device(1):
        neuron._sleep(30 * MILLISECOND)
        x += 5
        event.record()
    neuron.current_stream(0).wait_event(event)
    neuron._sleep(0)
    neuron.synchronize(0)
    assert event.query()
    assert x.tolist() == [5.0] * 4


def test_event() -> None:
    event = neuron.Event()
    assert isinstance(event, torch.Event)
    assert event.query()
    event.synchronize()
    assert "uninitialized" in repr(event)
    neuron._sleep(30 * MILLISECOND)
    event.record()
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert repr(event) == f"<torch.neuron.Event {event.event_id:#x}>"


def test_event_can_be_recorded_again() -> None:
    event = neuron.Event()
    event.record()
    event.synchronize()
    neuron._sleep(30 * MILLISECOND)
    event.record()
    assert not event.query()
    event.synchronize()
    assert event.query()


def test_event_stays_on_its_device() -> None:
    event = neuron.Event()
    event.record(neuron.default_stream(0))
    with pytest.raises(RuntimeError, match="Event device index 0 does not match recording stream's device index 1"):
        event.record(neuron.default_stream(1))


@pytest.mark.parametrize("kind", [neuron.Event, torch.Event])
def test_elapsed_time(kind: type[torch.Event]) -> None:
    start, end = kind(enable_timing=True), kind(enable_timing=True)
    start.record()
    neuron._sleep(50 * MILLISECOND)
    end.record()
    end.synchronize()
    # A busy machine can only make it longer.
    assert 45 < start.elapsed_time(end) < 2000
    assert end.elapsed_time(start) == -start.elapsed_time(end)


def test_elapsed_time_counts_device_time_only() -> None:
    start, end = neuron.Event(enable_timing=True), neuron.Event(enable_timing=True)
    neuron._sleep(100 * MILLISECOND)
    start.record()
    neuron._sleep(10 * MILLISECOND)
    end.record()
    neuron.synchronize()
    assert 9 < start.elapsed_time(end) < 90


def test_elapsed_time_errors() -> None:
    timed, other, untimed = neuron.Event(enable_timing=True), neuron.Event(enable_timing=True), neuron.Event()
    with pytest.raises(ValueError, match="must be recorded"):
        timed.elapsed_time(other)
    timed.record()
    untimed.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        timed.elapsed_time(untimed)
    neuron._sleep(50 * MILLISECOND)
    other.record()
    with pytest.raises(ValueError, match="must be completed"):
        timed.elapsed_time(other)


def test_events_between_processes_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="cannot be shared between processes"):
        neuron.Event(interprocess=True)
    with pytest.raises(NotImplementedError, match="ipc is not supported"):
        neuron.Event().ipc_handle()


def test_blocking_events_are_accepted() -> None:
    event = neuron.Event(enable_timing=False, blocking=True)
    event.record()
    event.synchronize()
    assert event.query()


def test_synchronize_waits_for_all_streams_of_the_device() -> None:
    streams = [neuron.Stream() for _ in range(3)]
    for stream in streams:
        with neuron.stream(stream):
            neuron._sleep(20 * MILLISECOND)
    neuron.synchronize()
    assert all(stream.query() for stream in streams)


def test_record_stream() -> None:
    side = neuron.Stream()
    x = torch.full((1024,), 3.0, device="neuron")
    learn(functools.partial(torch.add, x, 1))
    with neuron.stream(side):
        neuron._sleep(200 * MILLISECOND)
        y = x + 1
    x.record_stream(side)
    address = x.data_ptr()
    del x
    again = torch.zeros(1024, device="neuron")
    assert again.data_ptr() != address, "the block was handed out while another stream used it"
    side.synchronize()
    assert y.sum().item() == 4096


def test_backward_runs_on_the_stream_of_the_forward() -> None:
    stream = neuron.Stream()
    seen = []

    class Watch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            seen.append(neuron.current_stream())
            return grad * 2

    x = torch.ones(3, device="neuron", requires_grad=True)
    neuron.synchronize()
    with neuron.stream(stream):
        loss = Watch.apply(x).sum()
    loss.backward()
    assert seen == [stream]
    neuron.synchronize()
    assert x.grad.tolist() == [2.0] * 3


def test_generic_stream_and_event() -> None:
    stream = torch.Stream(device="neuron", priority=-1)
    event = torch.Event("neuron")
    with stream:
        x = torch.ones(2, device="neuron") + 1
        event.record()
    neuron.current_stream().wait_event(event)
    assert torch.neuron.current_stream() == neuron.default_stream()
    assert x.sum().item() == 4
    assert event.device.type == "neuron"
    assert stream.native_handle == neuron.Stream(stream_id=stream.stream_id, device_index=0).neuron_stream
