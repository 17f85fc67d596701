"""Snapshots of device memory and its history, read by PyTorch's own visualiser."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import _memory_viz as viz

neuron = torch.neuron
MIB = 2**20
DEVICE = 3
GOLDEN_FRAME = "allocate_here"


def allocate_here(nbytes: int = 3 * MIB) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device=torch.device("neuron", DEVICE))


@pytest.fixture(autouse=True)
def clean_history() -> Iterator[None]:
    neuron.init()
    neuron.synchronize(DEVICE)
    neuron.empty_cache()
    yield
    neuron.memory._record_memory_history(None)
    neuron.memory._set_memory_metadata("")
    neuron.set_per_process_memory_fraction(1.0, DEVICE)


def actions() -> list[str]:
    return [entry["action"] for entry in neuron.memory._snapshot()["device_traces"][DEVICE]]


def segments_of_device() -> list[dict[str, Any]]:
    return [segment for segment in neuron.memory_snapshot() if segment["device"] == DEVICE]


def test_segments_and_blocks() -> None:
    held, side = allocate_here(), neuron.Stream(device=DEVICE)
    with neuron.stream(side):
        other = allocate_here(100)
    by_stream = {segment["stream"]: segment for segment in segments_of_device()}
    large, small = by_stream[0], by_stream[side.stream_id]
    assert (large["segment_type"], small["segment_type"]) == ("large", "small")
    assert (large["total_size"], large["allocated_size"], large["active_size"]) == (20 * MIB, 3 * MIB, 3 * MIB)
    assert large["address"] == held.data_ptr()
    assert [block["state"] for block in large["blocks"]] == ["active_allocated", "inactive"]
    assert small["blocks"][0]["size"] == 256
    assert small["blocks"][0]["requested_size"] == 100 == small["requested_size"]
    assert other.data_ptr() == small["address"]


def test_history_with_stacks() -> None:
    neuron.memory._record_memory_history(stacks="python")
    held = allocate_here()
    address = held.data_ptr()
    del held
    snapshot = neuron.memory._snapshot()
    trace = snapshot["device_traces"][DEVICE]
    assert [entry["action"] for entry in trace] == [
        "segment_alloc",
        "alloc",
        "free_requested",
        "free_completed",
        "snapshot",
    ]
    alloc, freed = trace[1], trace[2]
    assert alloc["addr"] == freed["addr"] == address
    assert alloc["size"] == 3 * MIB
    assert alloc["stream"] == 0
    assert alloc["time_us"] <= freed["time_us"]
    names = [frame["name"] for frame in alloc["frames"]]
    assert names[names.index(GOLDEN_FRAME) + 1] == "test_history_with_stacks"
    frame = alloc["frames"][names.index(GOLDEN_FRAME)]
    assert frame["filename"] == __file__
    assert frame["line"] == allocate_here.__code__.co_firstlineno + 1
    assert "test_history_with_stacks" in [frame["name"] for frame in freed["frames"]]
    assert len(snapshot["device_traces"]) == neuron.device_count()


def test_stacks_with_cpp_frames() -> None:
    neuron.memory._record_memory_history(stacks="all", context="state")
    held = allocate_here()
    frames = neuron.memory._allocation_traceback(held.data_ptr())
    assert frames is not None
    names = [frame["name"] for frame in frames]
    assert GOLDEN_FRAME in names
    assert any("::" in name for name in names[: names.index(GOLDEN_FRAME)])


def test_state_only_keeps_stacks_of_live_memory_and_no_trace() -> None:
    neuron.memory._record_memory_history("state")
    held = allocate_here()
    assert actions() == []
    frames = segments_of_device()[0]["blocks"][0]["frames"]
    assert GOLDEN_FRAME in [frame["name"] for frame in frames]
    found = neuron.memory._allocation_traceback(held.data_ptr())
    assert found == frames
    assert neuron.memory._allocation_traceback(held.data_ptr() + 1) is None


def test_no_context_no_frames() -> None:
    neuron.memory._record_memory_history("all", context=None)
    held = allocate_here()
    assert [len(e["frames"]) for e in neuron.memory._snapshot()["device_traces"][DEVICE]] == [0, 0, 0]
    assert neuron.memory._allocation_traceback(held.data_ptr()) is None


def test_nothing_is_recorded_before_and_after() -> None:
    held = allocate_here()
    neuron.memory._record_memory_history(stacks="python")
    neuron.memory._record_memory_history(None)
    del held
    assert actions() == []


def test_max_entries_and_skipped_actions() -> None:
    neuron.memory._record_memory_history(max_entries=3, skip_actions=["free_requested", "segment_alloc", "snapshot"])
    for nbytes in (MIB, 2 * MIB, 3 * MIB):
        allocate_here(nbytes)
    trace = neuron.memory._snapshot()["device_traces"][DEVICE]
    assert [(e["action"], e["size"]) for e in trace] == [
        ("free_completed", 2 * MIB),
        ("alloc", 3 * MIB),
        ("free_completed", 3 * MIB),
    ]


def test_bad_arguments() -> None:
    for arguments, word in [
        ({"enabled": "some"}, "enabled"),
        ({"context": "every"}, "context"),
        ({"stacks": "java"}, "stacks"),
        ({"skip_actions": ["fly"]}, "skip_actions"),
    ]:
        with pytest.raises(ValueError, match=word):
            neuron.memory._record_memory_history(**arguments)


def test_metadata() -> None:
    neuron.memory._record_memory_history(stacks="python")
    neuron.memory._set_memory_metadata("epoch 1")
    assert neuron.memory._get_memory_metadata() == "epoch 1"
    held = allocate_here()
    assert {entry["user_metadata"] for entry in neuron.memory._snapshot()["device_traces"][DEVICE]} == {"epoch 1"}
    del held


def test_out_of_memory_and_segment_free_are_recorded() -> None:
    neuron.memory._record_memory_history(stacks="python")
    neuron.set_per_process_memory_fraction(0.01, DEVICE)
    allocate_here(50 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        allocate_here(2**30)
    trace = neuron.memory._snapshot()["device_traces"][DEVICE]
    ooms = [entry for entry in trace if entry["action"] == "oom"]
    assert [entry["size"] for entry in ooms] == [2**30]
    assert ooms[0]["device_free"] == int(0.01 * neuron.mem_get_info(DEVICE)[1])
    assert "addr" not in ooms[0]
    assert GOLDEN_FRAME in [frame["name"] for frame in ooms[0]["frames"]]
    assert [entry["size"] for entry in trace if entry["action"] == "segment_free"] == [50 * MIB]


def test_memory_of_backward_has_the_stack_of_backward() -> None:
    x = torch.randn(MIB, device=torch.device("neuron", DEVICE), requires_grad=True)
    loss = (x * x).sum()
    neuron.synchronize(DEVICE)
    neuron.memory._record_memory_history(stacks="python")
    loss.backward()
    allocs = [e for e in neuron.memory._snapshot()["device_traces"][DEVICE] if e["action"] == "alloc"]
    assert allocs


def test_pytorchs_visualiser_reads_a_dumped_snapshot(tmp_path: Path) -> None:
    neuron.memory._record_memory_history(stacks="python")
    held = allocate_here()
    allocate_here(200)
    file = tmp_path / "snapshot.pickle"
    neuron.memory._dump_snapshot(file)
    snapshot = pickle.loads(file.read_bytes())
    assert "segments" in viz.segsum(snapshot)
    assert "20.0MiB" in viz.segsum(snapshot)
    text = viz.trace(snapshot)
    assert f"Device {DEVICE}" in text and f"cudaMalloc({held.data_ptr()}, 20.0MiB)" in text
    for page in (viz.trace_plot(snapshot), viz.trace_plot(snapshot, plot_segments=True), viz.segment_plot(snapshot)):
        assert "<!DOCTYPE html>" in page or "<html" in page or "<script" in page
    lines: list[str] = []
    viz.memory(snapshot, format_flamegraph=lambda text: lines.append(text) or "")
    assert GOLDEN_FRAME in lines[0] and "active_allocated" in lines[0]
    viz.segments(snapshot, format_flamegraph=lambda text: lines.append(text) or "")
    assert f"seg_{held.untyped_storage().data_ptr()}" in lines[1]
    assert ast.literal_eval(repr(snapshot["allocator_settings"]))["expandable_segments"] is False
