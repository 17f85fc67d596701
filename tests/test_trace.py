"""The trace of launches: what torch_neuronx.profiler.launches() sees, and what the trace costs."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from torch_neuronx import _C
from torch_neuronx.profiler import Launch, launches

MS = 1_000_000  # nanoseconds


def _sleep(milliseconds: float) -> None:
    _C.sleep_ns(int(milliseconds * MS))


@pytest.fixture(autouse=True)
def trace_is_off_outside():
    assert not _C._trace_enabled()
    yield
    assert not _C._trace_enabled()


def test_records_each_op_once_in_order():
    a = torch.randn(8, 8, device="neuron")
    torch.mm(a, a)  # the signature is known from here on
    with launches() as trace:
        b = torch.mm(a, a)
        b.relu_()
        b.sum()
    names = [name for name in trace.names() if name.startswith("aten::")]
    assert [name.split(".")[0] for name in names] == ["aten::mm", "aten::relu_", "aten::sum"]
    assert trace.dropped == 0


def test_same_signature_same_id():
    a, b = (torch.randn(n, n, device="neuron") for n in (4, 5))
    with launches() as trace:
        for x in (a, b, a, b):
            torch.mm(x, x)
    ids = [record.signature for record in trace.records if record.name.startswith("aten::mm")]
    assert len(ids) == 4
    assert ids[0] == ids[2] and ids[1] == ids[3] and ids[0] != ids[1]
    assert 0 not in ids


SQUARE = (16, 16)
# Operators that have a shortcut for small tensors on an idle stream (csrc/eager/typed_kernels.cpp).
SHORTCUTS = {
    "aten::add.Tensor": lambda a, b: a + b,
    "aten::add_.Tensor": lambda a, b: a.add_(b),
    "aten::sub.Tensor": lambda a, b: a - b,
    "aten::mul.Tensor": lambda a, b: a * 2.5,
    "aten::mul_.Tensor": lambda a, b: a.mul_(b),
    "aten::div.Tensor": lambda a, b: a / b,
    "aten::neg": lambda a, b: -a,
    "aten::exp": lambda a, b: a.exp(),
    "aten::sqrt": lambda a, b: a.sqrt(),
    "aten::rsqrt": lambda a, b: a.rsqrt(),
    "aten::tanh": lambda a, b: a.tanh(),
    "aten::sigmoid": lambda a, b: a.sigmoid(),
    "aten::relu": lambda a, b: a.relu(),
    "aten::relu_": lambda a, b: a.relu_(),
    "aten::eq.Tensor": lambda a, b: a == b,
    "aten::lt.Tensor": lambda a, b: a < b,
    "aten::gt.Tensor": lambda a, b: a > b,
    "aten::zero_": lambda a, b: a.zero_(),
    "aten::fill_.Scalar": lambda a, b: a.fill_(3),
    "aten::sum": lambda a, b: a.sum(),
    "aten::sum.dim_IntList": lambda a, b: a.sum(0),
    "aten::mm": lambda a, b: a @ b,
    "aten::addmm": lambda a, b: torch.addmm(b, a, b),
    "aten::bmm": lambda a, b: torch.bmm(a[None], b[None]),
}


@pytest.mark.parametrize("name", SHORTCUTS)
def test_a_small_op_is_recorded_once_with_everything(name):
    op = SHORTCUTS[name]
    a, b = torch.ones(SQUARE, device="neuron"), torch.ones(SQUARE, device="neuron")
    side = torch.neuron.Stream()
    torch.neuron.synchronize()
    with launches() as trace:
        for stream in (torch.neuron.current_stream(), side):
            with torch.neuron.stream(stream):
                op(a, b)  # learns the signature, or finds it
                op(a, b)
            torch.neuron.synchronize()
    records = [record for record in trace.records if record.name == name]
    assert len(records) == 4 and trace.dropped == 0
    assert len({record.signature for record in records}) == 1 and records[0].signature != 0
    assert [record.stream for record in records] == [0, 0, side.stream_id, side.stream_id]
    for record in records:
        assert record.device == 0
        assert 0 < record.enqueue_ns <= record.start_ns < record.end_ns
    assert all(one.end_ns <= next_one.start_ns for one, next_one in itertools.pairwise(records))


@pytest.mark.parametrize("name", SHORTCUTS)
def test_a_small_op_has_the_signature_that_it_has_when_it_is_queued(name):
    op = SHORTCUTS[name]
    a, b = torch.ones(SQUARE, device="neuron"), torch.ones(SQUARE, device="neuron")
    torch.neuron.synchronize()
    with launches() as trace:
        op(a, b)
        op(a, b)
        torch.neuron.synchronize()
        _C._set_hand_off("always")
        try:
            op(a, b)
            torch.neuron.synchronize()
        finally:
            _C._set_hand_off("measured")
    records = [record for record in trace.records if record.name == name]
    assert len(records) == 3
    assert len({record.signature for record in records}) == 1
    if not _C.launch_blocking():
        assert [record.inline for record in records] == [True, True, False]


def test_signatures_of_small_ops_differ_by_all_that_decides_the_result():
    """The quick way to an id agrees with the whole key: made anew by each mode in turn."""

    def square(dtype=torch.float32):
        return torch.ones(4, 4, device="neuron", dtype=dtype)

    a = square()
    pair = torch.ones(2, 4, 4, device="neuron").unbind()
    calls = {
        "plain": lambda: a + square(),
        "other dtype": lambda: a + square(torch.int32),
        "transposed": lambda: a + square().t(),
        "broadcast": lambda: a + square()[0],
        "a number": lambda: a + 1.5,
        "an integer": lambda: a + 1,
        "a bool": lambda: a + True,
        "alpha": lambda: torch.add(a, square(), alpha=2),  # shapes nothing: the same signature
        "the same tensor": lambda: a + a,
        "in place": lambda: square().add_(a),
        "in place on itself": lambda: a.add_(a),
        "in place on its neighbour": lambda: pair[0].add_(pair[1]),
        "in place on its other neighbour": lambda: pair[1].add_(pair[0]),
        "sum": lambda: a.sum(),
        "sum as double": lambda: a.sum(dtype=torch.float64),
        "sum over rows": lambda: a.sum(0),
        "sum over columns": lambda: a.sum(1),
        "sum, kept": lambda: a.sum(0, keepdim=True),
        "sum of both": lambda: a.sum((0, 1)),
        "filled": lambda: a.fill_(2.0),
        "without grad": lambda: torch.no_grad()(lambda: a + square())(),
    }
    ids: dict[str, set[int]] = {}
    torch.neuron.synchronize()
    for mode in ("measured", "measured", "never", "measured"):
        _C._set_hand_off(mode)
        for name, call in calls.items():
            for _ in range(2):
                with launches() as trace:
                    call()
                    torch.neuron.synchronize()
                ids.setdefault(name, set()).add(trace.records[-1].signature)
    _C._set_hand_off("measured")
    assert all(len(found) == 1 and 0 not in found for found in ids.values()), ids
    different = {name: next(iter(found)) for name, found in ids.items() if name not in ("the same tensor", "alpha")}
    assert len(set(different.values())) == len(different), different


def test_tracing_changes_no_result_and_no_count():
    a = torch.randn(SQUARE, device="neuron")
    results = []
    for traced in (False, True):
        torch.neuron.clear_op_tracking()
        x = a.clone()
        with launches() if traced else contextlib.nullcontext():
            for _ in range(3):
                x = (x @ a).tanh() + x.sum(0)
                x.relu_()
        results.append((x.cpu(), sorted(torch.neuron.get_executed_ops())))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_times_are_ordered_and_measured():
    with launches() as trace:
        _sleep(5)
        _sleep(1)
    first, second = trace.records
    assert first.name == second.name == "neuron::sleep"
    for record in trace.records:
        assert 0 < record.enqueue_ns <= record.start_ns <= record.end_ns
    assert first.duration_ns >= 5 * MS and second.duration_ns >= 1 * MS
    assert second.start_ns >= first.end_ns
    if not _C.launch_blocking():  # it was submitted at once, and waited for the first one
        assert second.queued_ns >= 4 * MS


def test_devices_and_streams():
    if torch.neuron.device_count() < 2:
        pytest.skip("needs two devices")
    side = torch.neuron.Stream()
    with launches() as trace:
        _sleep(0)
        with torch.neuron.stream(side):
            _sleep(0)
        with torch.neuron.device(1):
            _sleep(0)
    assert {(r.device, r.stream) for r in trace.records} == {(0, 0), (0, side.stream_id), (1, 0)}
    assert side.stream_id != 0


def test_op_behind_a_busy_stream_is_queued_and_runs_on_another_thread():
    if _C.launch_blocking():
        pytest.skip("everything is inline in the blocking mode")
    a = torch.ones(8, device="neuron")
    for _ in range(3):  # the signature becomes known when the stream is busy
        _sleep(1)
        a + a
    with launches() as trace:
        _sleep(20)
        a + a
    sleep, add = trace.records
    assert add.name.startswith("aten::add") and not add.inline
    assert add.queued_ns >= 10 * MS
    assert sleep.thread == add.thread


def test_copies_are_recorded():
    host = torch.ones(100)
    with launches() as trace:
        there = host.to("neuron")  # at once: nothing uses the new memory
        there.cpu()
        if torch.neuron.device_count() > 1:
            there.to("neuron:1")
    copies = [name for name in trace.names() if name.startswith("neuron::copy_")]
    expected = ["neuron::copy_host_to_device", "neuron::copy_device_to_host", "neuron::copy_device_to_device"]
    assert copies == expected[: 2 + (torch.neuron.device_count() > 1)]


def test_readers_do_not_take_from_each_other():
    with launches() as outer:
        _sleep(0)
        with launches() as inner:
            _sleep(0)
            _sleep(0)
        _sleep(0)
    assert len(inner.records) == 2
    assert len(outer.records) == 4
    for seen, also_seen in zip(outer.records[1:3], inner.records, strict=True):
        no_times = {"enqueue_ns": 0, "start_ns": 0, "end_ns": 0}
        assert seen._replace(**no_times) == also_seen._replace(**no_times)
        # Each reader compares the processor's counter with the system's clock by itself.
        assert abs(seen.start_ns - also_seen.start_ns) < MS / 100
        assert seen.duration_ns == pytest.approx(also_seen.duration_ns, rel=0.01, abs=100)


def test_larger_reader_joins_while_a_smaller_one_reads():
    with launches(capacity=64) as small:
        _sleep(0)
        with launches(capacity=1 << 18) as large:
            for _ in range(100):
                _sleep(0)
    assert len(large.records) == 100
    # The trace is shared: with the larger reader there is room for the smaller one, too.
    assert len(small.records) == 101 and small.dropped == 0


def test_take_in_between():
    with launches() as trace:
        assert trace.take() == []
        _sleep(0)
        torch.neuron.synchronize()
        assert [record.name for record in trace.take()] == ["neuron::sleep"]
        _sleep(0)
        _sleep(0)
    assert len(trace.records) == 3
    assert trace.take() == []


def test_nothing_is_recorded_after_the_block():
    with launches() as trace:
        _sleep(0)
    _sleep(0)
    torch.neuron.synchronize()
    assert trace.take() == [] and len(trace.records) == 1


def test_an_error_in_the_block_ends_the_trace():
    with pytest.raises(KeyError), launches() as trace:
        raise KeyError
    assert trace.records == []


def test_launches_of_several_threads():
    threads, each = 4, 500

    def work() -> None:
        stream = torch.neuron.Stream()
        with torch.neuron.stream(stream):
            for _ in range(each):
                _sleep(0)

    with launches() as trace:
        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert len(trace.records) + trace.dropped == threads * each
    assert trace.dropped == 0
    assert all(a.end_ns <= b.end_ns for a, b in zip(trace.records, trace.records[1:], strict=False))


@pytest.mark.parametrize("capacity", [0, -1])
def test_capacity_must_be_positive(capacity):
    with pytest.raises(ValueError, match="capacity must be positive"), launches(capacity):
        pass


OVERWRITING = """
import torch
from torch_neuronx import _C
from torch_neuronx.profiler import launches

with launches(capacity=64) as trace:
    for _ in range(1000):
        _C.sleep_ns(0)
print(len(trace.records), trace.dropped)
with launches(capacity=64) as trace:
    _C.sleep_ns(0)
print(len(trace.records), trace.dropped)
"""


def test_the_oldest_are_overwritten_and_counted():
    # In a process of its own: a trace that has been larger stays so.
    output = subprocess.run(
        [sys.executable, "-c", OVERWRITING], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert output.split() == ["64", "936", "1", "0"]


def test_launch_properties():
    launch = Launch("aten::mm", 1, 2, 3, 1000, 1500, 1800, 0, 0, 1, False)
    assert launch.duration_ns == 300 and launch.queued_ns == 500
    assert launch._replace(enqueue_ns=0).queued_ns == 0


@pytest.mark.skipif("NEURON_SANITIZER" in os.environ, reason="a sanitizer makes the core several times slower")
def test_cost():
    # CPU time, and the best of many short runs: other processes may be using the machine.
    off = min(_C._measure_trace_cost(20_000, False) for _ in range(20))
    on = min(_C._measure_trace_cost(2_000, True) for _ in range(50))
    assert off < 50
    assert on < 300


@pytest.mark.skipif("NEURON_SANITIZER" in os.environ, reason="a sanitizer makes the core several times slower")
def test_a_small_op_costs_little_more_with_the_trace_on():
    if _C.launch_blocking():
        pytest.skip("the blocking mode has no shortcuts")
    a = torch.ones(SQUARE, device="neuron")

    def cpu_ns(count: int = 200) -> float:
        start = time.thread_time_ns()
        for _ in range(count):
            a.relu_()
        return (time.thread_time_ns() - start) / count

    on, off = [], []
    for _ in range(100):
        with launches():
            on.append(cpu_ns())
        off.append(cpu_ns())
    # The best of many, as other processes may be using the machine. benchmarks/trace_cost.py holds the median to 300;
    # without the shortcut it would be 1,300.
    assert min(on) - min(off) < 600


def test_cost_when_off_cannot_be_measured_while_on():
    with launches(), pytest.raises(RuntimeError, match="the trace is on"):
        _C._measure_trace_cost(10, False)
