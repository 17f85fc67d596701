"""What adaptive execution tells its user: why and where regions end, and regions in traces and profiles."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from torch_neuronx.profiler import Launch, launches

ROUNDS = 4  # the first teach signatures, and are computed at the call


@pytest.fixture(autouse=True)
def _adaptive() -> Iterator[None]:
    with torch.neuron.eager_mode("adaptive"):
        yield


@pytest.fixture
def x() -> Tensor:
    return torch.randn(50_000, device="neuron")


def work(x: Tensor) -> Tensor:
    busy = torch.ones(600, 600, device="neuron")
    busy @ busy
    y = x * 2
    y = y + 1
    y = y.tanh()  # no region holds it
    y = y * 3
    y = y - 1
    return y.cpu()


FIRST_LINE = work.__code__.co_firstlineno


@pytest.fixture
def warm(x: Tensor) -> Tensor:
    for _ in range(ROUNDS):
        work(x)
    return x


def test_cuts_name_operator_and_line(warm: Tensor) -> None:
    with torch.neuron.record_adaptive_cuts() as cuts:
        for _ in range(3):
            work(warm)
    by_reason = {cut.reason: cut for cut in cuts}
    cut = by_reason["not element-wise"]
    assert (cut.operator, cut.times) == ("aten::tanh", 3)
    assert cut.line == f"{__file__}:{FIRST_LINE + 5} in work"
    last = by_reason["end of queue"] if "end of queue" in by_reason else by_reason["not an operator"]
    assert last.line in (f"{__file__}:{FIRST_LINE + 7} in work", None)


def test_copies_are_no_operators(warm: Tensor) -> None:
    with torch.neuron.record_adaptive_cuts() as cuts:
        busy = torch.ones(600, 600, device="neuron")
        busy @ busy
        y = warm * 2 + 1
        y.to("neuron:1", non_blocking=True) if torch.neuron.device_count() > 1 else torch.Event("neuron").record()
    assert [cut for cut in cuts if cut.reason == "not an operator" and cut.operator.startswith("neuron::")]


def test_autograd_has_no_line(x: Tensor) -> None:
    x.requires_grad_()
    for _ in range(ROUNDS):
        y = ((x * 2 + 1) * x).exp().sum()
        with torch.neuron.record_adaptive_cuts() as cuts:
            torch.ones(600, 600, device="neuron").mm(torch.ones(600, 600, device="neuron"))
            y.backward()
    assert cuts
    assert all(cut.line is None or __file__ in cut.line for cut in cuts)


def test_one_recording_at_a_time() -> None:
    record = torch.neuron.record_adaptive_cuts
    with record(), pytest.raises(RuntimeError, match="recorded already"), record():
        pass
    with record() as cuts:
        pass
    assert cuts == []


def test_statistics_begin_anew(warm: Tensor) -> None:
    work(warm)
    assert torch.neuron.adaptive_stats()["regions"] > 0
    torch.neuron.reset_adaptive_stats()
    statistics = torch.neuron.adaptive_stats()
    assert statistics.pop("kinds")
    assert set(statistics.pop("cuts").values()) == {0}
    assert set(statistics.values()) == {0}


def regions_of(records: list[Launch]) -> list[list[Launch]]:
    numbers = dict.fromkeys(record.region for record in records if record.region)
    return [[record for record in records if record.region == number] for number in numbers]


def test_regions_in_the_trace(warm: Tensor) -> None:
    with launches() as trace:
        work(warm)
    regions = regions_of(trace.records)
    assert [[record.name for record in region] for region in regions] == [
        ["aten::mul.Tensor", "aten::add.Tensor"],
        ["aten::mul.Tensor", "aten::sub.Tensor"],
    ]
    for first, second in regions:
        assert first.end_ns == second.start_ns
        assert abs(first.duration_ns - second.duration_ns) <= 2  # equal parts
    assert all(record.region == 0 for record in trace.records if record.name in ("aten::mm", "aten::tanh"))


def test_regions_in_profiles(warm: Tensor, tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as prof, launches() as trace:
        work(warm)
        torch.neuron.synchronize()
    path = tmp_path / "trace.json"
    prof.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    spans = {e["name"]: e for e in events if e.get("cat") == "gpu_user_annotation"}
    span = spans["region of 2: aten::mul.Tensor, aten::add.Tensor"]
    assert "region of 2: aten::mul.Tensor, aten::sub.Tensor" in spans
    kernels = [e for e in events if e.get("cat") == "kernel" and e["args"].get("region") == span["args"]["region"]]
    assert [e["name"] for e in kernels] == ["aten::mul.Tensor", "aten::add.Tensor"]
    assert kernels[0]["ts"] >= span["ts"] - 0.01
    assert kernels[1]["ts"] + kernels[1]["dur"] <= span["ts"] + span["dur"] + 0.01
    # Sums leave out what is an annotation, so they count each launch once.
    on_device = [e for e in prof.events() if e.device_type == DeviceType.PrivateUse1]
    assert sum(e.name.startswith("region of") and e.is_user_annotation for e in on_device) == 2
    assert Counter(e.name for e in on_device if not e.is_user_annotation) == Counter(trace.names())
