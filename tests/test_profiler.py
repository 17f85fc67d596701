"""torch.profiler on the neuron device: device rows, arrows, sums, schedules."""

from __future__ import annotations

import collections
import json
import os
import re
from pathlib import Path

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from torch_neuronx import _C
from torch_neuronx.profiler import launches

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
MS = 1_000_000  # nanoseconds
needs_queues = pytest.mark.skipif(
    os.environ.get("NEURON_LAUNCH_BLOCKING", "0") not in ("", "0"), reason="nothing is queued in the blocking mode"
)
DOCS = Path(__file__).resolve().parent.parent / "docs" / "profiling.md"


@pytest.fixture(autouse=True)
def trace_is_off_outside():
    assert not _C._trace_enabled()
    yield
    assert not _C._trace_enabled()


@pytest.fixture(params=[64, 16], ids=["64x64", "16x16"])  # the smaller one takes the shortcut of typed_kernels.cpp
def matrix(request):
    a = torch.randn(request.param, request.param, device="neuron")
    torch.mm(a, a).relu_()  # signatures are known from here on
    return a


def device_events(prof):
    return [e for e in prof.events() if e.device_type == DeviceType.PrivateUse1 and not e.is_user_annotation]


def chrome_trace(prof, tmp_path) -> dict:
    path = tmp_path / "trace.json"
    prof.export_chrome_trace(str(path))
    return json.loads(path.read_text())


def of_category(trace, *categories):
    return [e for e in trace["traceEvents"] if e.get("cat") in categories]


def test_one_device_event_per_launch(matrix):
    with launches() as trace, profile(activities=BOTH) as prof:
        for _ in range(10):
            torch.mm(matrix, matrix).relu_()
    counts = collections.Counter(e.name for e in device_events(prof))
    assert counts == collections.Counter(trace.names())
    assert sum(n for name, n in counts.items() if name.startswith("aten::mm")) == 10


def test_key_averages_show_device_time_of_the_op(matrix):
    with profile(activities=BOTH) as prof:
        for _ in range(3):
            torch.mm(matrix, matrix)
    (mm,) = (e for e in prof.key_averages() if e.key == "aten::mm" and e.device_type == DeviceType.CPU)
    assert mm.count == 3
    assert mm.self_device_time_total > 0
    assert mm.device_time_total >= mm.self_device_time_total
    on_device = sum(e.device_time_total for e in device_events(prof))
    assert mm.device_time_total == pytest.approx(on_device)
    table = prof.key_averages().table(sort_by="self_device_time_total")
    assert "Self NEURON" in table and "aten::mm" in table


def test_device_time_is_what_was_measured(matrix):
    with profile(activities=BOTH) as prof:
        _C.sleep_ns(7 * MS)
    (sleep,) = device_events(prof)
    assert sleep.name == "neuron::sleep"
    assert 7_000 <= sleep.device_time_total < 700_000  # microseconds


def test_arrows_lead_from_the_cpu_op_to_the_device_event(matrix, tmp_path):
    with profile(activities=BOTH) as prof:
        torch.mm(matrix, matrix)
    trace = chrome_trace(prof, tmp_path)
    (kernel,) = of_category(trace, "kernel")
    (op,) = (e for e in of_category(trace, "cpu_op") if e["name"] == "aten::mm")
    assert kernel["args"]["External id"] == op["args"]["External id"]
    assert (kernel["pid"], kernel["tid"]) == (0, 0)
    flows = of_category(trace, "ac2g")
    assert [e["ph"] for e in sorted(flows, key=lambda e: e["ph"])] == ["f", "s"]
    finish, start = sorted(flows, key=lambda e: e["ph"])
    assert start["id"] == finish["id"]
    assert (start["pid"], start["tid"]) == (op["pid"], op["tid"])
    assert (finish["pid"], finish["tid"], finish["ts"]) == (kernel["pid"], kernel["tid"], kernel["ts"])
    # The clocks are the same (torch converts its own by interpolation): the submission lies within the op.
    tolerance = 50  # microseconds
    assert op["ts"] - tolerance <= start["ts"] <= op["ts"] + op["dur"] + tolerance
    assert kernel["ts"] >= start["ts"]


def test_each_arrow_has_both_ends(matrix, tmp_path):
    model = torch.nn.Sequential(torch.nn.LazyLinear(64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to("neuron")
    model(matrix)
    optimizer = torch.optim.AdamW(model.parameters())
    with profile(activities=BOTH) as prof:
        for _ in range(2):
            optimizer.zero_grad()
            model(matrix).sum().backward()
            optimizer.step()
    trace = chrome_trace(prof, tmp_path)
    ends = {ph: [e["id"] for e in of_category(trace, "ac2g") if e["ph"] == ph] for ph in "sf"}
    assert len(ends["s"]) == len(set(ends["s"])) > 20
    assert sorted(ends["s"]) == sorted(ends["f"])
    kernels = of_category(trace, "kernel", "gpu_memcpy")
    ops = {e["args"]["External id"] for e in of_category(trace, "cpu_op")}
    assert all(e["args"].get("External id") in ops for e in kernels)


def test_backward_launches_are_linked_to_ops_of_the_autograd_thread(matrix):
    weight = torch.randn_like(matrix, requires_grad=True)
    loss = torch.mm(matrix, weight).sum()
    with profile(activities=BOTH) as prof:
        loss.backward()
    mm = [e for e in prof.events() if e.name == "aten::mm" and e.device_type == DeviceType.CPU]
    assert mm and all(len(e.kernels) == 1 for e in mm)


def test_rows_are_named(matrix, tmp_path):
    if torch.neuron.device_count() < 2:
        pytest.skip("needs two devices")
    side = torch.neuron.Stream()
    with profile(activities=BOTH) as prof:
        _C.sleep_ns(0)
        with torch.neuron.stream(side):
            _C.sleep_ns(0)
        with torch.neuron.device(1):
            _C.sleep_ns(0)
    rows = [e for e in chrome_trace(prof, tmp_path)["traceEvents"] if e["ph"] == "M"]
    processes = {e["pid"]: e["args"]["name"] for e in rows if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in rows if e["name"] == "thread_name"}
    assert processes[0] == "neuron:0" and processes[1] == "neuron:1"
    assert threads[0, 0] == "neuron:0 stream 0"
    assert threads[0, side.stream_id] == f"neuron:0 stream {side.stream_id}"
    assert threads[1, 0] == "neuron:1 stream 0"
    assert not any("GPU" in str(e["args"]) for e in rows)


def test_work_pending_on_another_device_is_in_the_profile():
    if torch.neuron.device_count() < 2:
        pytest.skip("needs two devices")
    with profile(activities=BOTH) as prof, torch.neuron.device(1):
        for _ in range(5):
            _C.sleep_ns(2 * MS)
    assert [e.device_index for e in device_events(prof)] == [1] * 5


def test_exported_profile_says_what_is_measured(matrix, tmp_path):
    with profile(activities=BOTH) as prof:
        torch.mm(matrix, matrix)
    trace = chrome_trace(prof, tmp_path)
    assert "host's execution" in trace["neuron_times"] and "not a prediction" in trace["neuron_times"]
    assert trace["neuron_dropped_launches"] == 0
    properties = trace["deviceProperties"]
    assert [p["id"] for p in properties] == list(range(torch.neuron.device_count()))
    assert all(
        p["totalGlobalMem"] == torch.neuron.get_device_properties(p["id"]).total_memory
        and p["name"] == "virtual NeuronCore"
        for p in properties
    )


def test_record_function_is_shown_on_the_device_row(matrix, tmp_path):
    with profile(activities=BOTH) as prof:
        with record_function("my part"):
            torch.mm(matrix, matrix)
            torch.mm(matrix, matrix)
        torch.mm(matrix, matrix)
    trace = chrome_trace(prof, tmp_path)
    (span,) = of_category(trace, "gpu_user_annotation")
    kernels = sorted(of_category(trace, "kernel"), key=lambda e: e["ts"])
    assert span["name"] == "my part" and (span["pid"], span["tid"]) == (0, 0)
    assert span["ts"] <= kernels[0]["ts"]
    assert kernels[1]["ts"] + kernels[1]["dur"] <= span["ts"] + span["dur"] + 0.01
    assert span["ts"] + span["dur"] <= kernels[2]["ts"] + 0.01
    # It is no work of its own.
    total = sum(e.self_device_time_total for e in prof.key_averages() if e.device_type == DeviceType.CPU)
    assert total == pytest.approx(sum(k["dur"] for k in kernels), rel=1e-3)


@needs_queues
def test_copies_are_copies(tmp_path):
    host = torch.ones(1000)
    there = host.to("neuron")
    for _ in range(3):  # the signature becomes known when the stream is busy
        _C.sleep_ns(MS)
        there.add_(1)
    with profile(activities=BOTH) as prof:
        _C.sleep_ns(5 * MS)
        there.add_(1)
        there.copy_(host)  # queued behind the addition
    names = [e["name"] for e in of_category(chrome_trace(prof, tmp_path), "gpu_memcpy")]
    assert names == ["neuron::copy_host_to_device"]


@needs_queues
def test_waits_are_no_work(matrix):
    side = torch.neuron.Stream()
    with launches() as trace, profile(activities=BOTH) as prof:
        _C.sleep_ns(5 * MS)
        side.wait_stream(torch.neuron.current_stream())
        with torch.neuron.stream(side):
            _C.sleep_ns(0)
    assert len(trace.records) == 3
    assert [e.name for e in device_events(prof)] == ["neuron::sleep"] * 2


def test_schedule_starts_and_stops_repeatedly(matrix):
    cycles = []
    with profile(
        activities=BOTH,
        schedule=schedule(wait=1, warmup=1, active=2, repeat=3),
        on_trace_ready=lambda prof: cycles.append(len(device_events(prof))),
    ) as prof:
        for _ in range(12):
            torch.mm(matrix, matrix)
            torch.mm(matrix, matrix)
            prof.step()
    assert cycles == [4, 4, 4]


def test_cpu_profile_leaves_the_trace_off(matrix):
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        assert not _C._trace_enabled()
        torch.mm(matrix, matrix)
    assert device_events(prof) == []
    assert any(e.name == "aten::mm" for e in prof.events())


def test_device_alone(matrix):
    with profile(activities=[ProfilerActivity.PrivateUse1]) as prof:
        torch.mm(matrix, matrix)
    assert [e.name.split(".")[0] for e in device_events(prof)] == ["aten::mm"]
    assert len(prof.events()) == 1


def test_activity_has_the_name_of_the_device():
    assert ProfilerActivity.PrivateUse1 == ProfilerActivity.NEURON
    assert ProfilerActivity.NEURON in torch.profiler.supported_activities()


def test_empty_profile_can_be_exported(tmp_path):
    with profile(activities=BOTH) as prof:
        pass
    trace = chrome_trace(prof, tmp_path)
    assert of_category(trace, "kernel", "ac2g") == []
    assert not any("GPU" in str(e.get("args")) for e in trace["traceEvents"])


def test_an_error_in_the_profiled_block_leaves_the_profiler_usable(matrix):
    with pytest.raises(KeyError), profile(activities=BOTH):
        torch.mm(matrix, matrix)
        raise KeyError
    with profile(activities=BOTH) as prof:
        torch.mm(matrix, matrix)
    assert len(device_events(prof)) == 1


def test_launches_name_the_cpu_op_of_the_profile(matrix, tmp_path):
    with launches() as trace, profile(activities=BOTH) as prof, record_function("part"):
        torch.mm(matrix, matrix)
    (record,) = trace.records
    events = {
        e["args"]["External id"]: e for e in of_category(chrome_trace(prof, tmp_path), "cpu_op", "user_annotation")
    }
    assert events[record.op_id]["name"] == "aten::mm"
    assert events[record.annotation_id]["name"] == "part"


def test_mode_without_kineto_times_ops_with_events(matrix):
    with torch.autograd.profiler.profile(use_device="neuron") as prof:
        for _ in range(3):
            torch.mm(matrix, matrix)
    (mm,) = (e for e in prof.key_averages() if e.key == "aten::mm")
    assert mm.count == 3 and mm.device_time_total > 0


def test_memory_of_the_device_is_profiled():
    with profile(activities=BOTH, profile_memory=True) as prof:
        torch.empty(1 << 20, device="neuron")
    (empty,) = (e for e in prof.key_averages() if e.key == "aten::empty")
    assert empty.self_device_memory_usage >= 4 << 20


@pytest.mark.parametrize("number", range(3))
def test_examples_of_the_document(number, tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    assert len(blocks) == 3
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks[number], f"{DOCS.name}, example {number + 1}", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out
