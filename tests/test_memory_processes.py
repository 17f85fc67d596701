"""Memory over the life of a process: settings from the environment, fork, exit, small containers, the guard mode."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.test_device_processes import run, server  # noqa: F401 - server is a fixture

MIB = 2**20
SANITIZER = os.environ.get("NEURON_SANITIZER", "")
# How a process ends that touches memory which it must not touch; a sanitizer turns the signal into its own code.
FAULT = 99 if SANITIZER else -signal.SIGSEGV


def test_segment_settings(server: Any) -> None:  # noqa: F811
    code = """
    def reserved_by(nbytes):
        held = torch.empty(nbytes, dtype=torch.uint8, device="neuron")
        return torch.neuron.memory_reserved()
    send(reserved_by(2 * 2**20))
    torch.neuron.empty_cache()
    send(reserved_by(7 * 2**20))
    send(torch.neuron.memory_stats()["max_split_size"])
    """
    variables = {
        "TORCH_NEURONX_SEGMENT_ALLOCATOR_CONFIG": "kLargeSegmentBytes=8388608, kMinExactSegmentBytes=4000000,"
        "kMaxSplitSizeBytes=33554432",
    }
    assert run(server, code, **variables) == [8 * MIB, 8 * MIB, 32 * MIB]


def test_max_split_size_keeps_big_blocks_whole(server: Any) -> None:  # noqa: F811
    code = """
    def blocks():
        return [(b["size"] >> 20, b["state"]) for s in torch.neuron.memory_snapshot() for b in s["blocks"]]
    empty = lambda mib: torch.empty(mib << 20, dtype=torch.uint8, device="neuron")
    big = empty(100)
    del big
    small = empty(30)          # not out of the 100 MiB
    send(blocks())
    near = empty(95)           # nearly fills it: whole
    send(sorted(blocks()))
    stats = torch.neuron.memory_stats()
    send((stats["oversize_allocations.current"], stats["oversize_segments.current"]))
    del near
    send(torch.neuron.memory_stats()["oversize_allocations.current"])
    """
    variables = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64,max_non_split_rounding_mb:65"}
    first, second, counts, freed = run(server, code, **variables)
    assert sorted(first) == [(30, "active_allocated"), (100, "inactive")]
    assert second == [(30, "active_allocated"), (100, "active_allocated")]
    assert counts == (1, 1)
    assert freed == 0


def test_garbage_collection_threshold(server: Any) -> None:  # noqa: F811
    code = """
    torch.neuron.set_per_process_memory_fraction(0.01)   # 245 MiB
    empty = lambda mib: torch.empty(mib << 20, dtype=torch.uint8, device="neuron")
    old = [empty(50), empty(50)]
    del old
    new = empty(70)
    stats = torch.neuron.memory_stats()
    send((stats["reserved_bytes.all.current"] >> 20, stats["num_alloc_retries"]))
    """
    assert run(server, code, PYTORCH_ALLOC_CONF="garbage_collection_threshold:0.6") == [(120, 0)]


def test_roundup_power2_divisions(server: Any) -> None:  # noqa: F811
    code = """
    held = torch.empty(1200 * 2**20, dtype=torch.uint8, device="neuron")
    send(torch.neuron.memory_allocated() >> 20)
    """
    assert run(server, code, PYTORCH_ALLOC_CONF="roundup_power2_divisions:4") == [1280]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("kMaxSplitSizeBytes=many", "kMaxSplitSizeBytes must be a positive number of bytes, but is 'many'"),
        ("kMaxSplitSizeBytes", "has no '='"),
        ("kGarbageCollectionThreshold=2", "must be a number in [0, 1), but is '2'"),
    ],
)
def test_bad_segment_settings(server: Any, value: str, message: str) -> None:  # noqa: F811
    error = run(
        server, 'send(error_of(lambda: torch.ones(1, device="neuron")))', TORCH_NEURONX_SEGMENT_ALLOCATOR_CONFIG=value
    )[0]
    assert message in error
    assert "TORCH_NEURONX_SEGMENT_ALLOCATOR_CONFIG" in error


def test_unknown_segment_settings_warn(server: Any) -> None:  # noqa: F811
    code = """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.ones(1, device="neuron")
    send([str(w.message) for w in caught if "kNovelty" in str(w.message)])
    """
    messages = run(server, code, TORCH_NEURONX_SEGMENT_ALLOCATOR_CONFIG="kNovelty=1")[0]
    assert len(messages) == 1
    assert "known are kMaxSplitSizeBytes" in messages[0]


def test_settings_can_change_while_the_process_runs(server: Any) -> None:  # noqa: F811
    code = """
    torch.ones(1, device="neuron")
    send(torch.neuron.memory_stats()["max_split_size"])
    torch._C._accelerator_setAllocatorSettings("max_split_size_mb:50")
    send(torch.neuron.memory_stats()["max_split_size"] >> 20)
    """
    assert run(server, code) == [-1, 50]  # -1: no limit


def test_freeing_in_a_forked_child_and_at_exit(server: Any) -> None:  # noqa: F811
    code = """
    import gc
    held = [torch.ones(1000, device="neuron"), torch.ones(1000).pin_memory()]
    child = os.fork()
    if child == 0:
        total = held[1].sum().item()   # pinned memory is ordinary memory here
        message = error_of(lambda: torch.empty(3, device="neuron"))
        held.clear()
        gc.collect()
        os._exit(0 if total == 1000 and "forked subprocess" in message else 1)
    send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    # `held` is freed while the interpreter ends.
    """
    assert run(server, code) == [0]


def test_forking_while_threads_allocate(server: Any) -> None:  # noqa: F811
    code = """
    import threading
    stop = False
    held = [torch.empty(1000, device="neuron"), torch.empty(1000, pin_memory=True)]
    def churn():
        while not stop:
            a = torch.empty(1000, device="neuron"), torch.empty(1000, pin_memory=True)
    threads = [threading.Thread(target=churn) for _ in range(3)]
    for thread in threads:
        thread.start()
    codes = []
    for _ in range(20):
        child = os.fork()
        if child == 0:
            held.clear()  # needs the locks that the threads take
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    stop = True
    for thread in threads:
        thread.join()
    send(codes)
    """
    assert run(server, code) == [[0] * 20]


def test_device_memory_cannot_be_read_in_a_forked_child(server: Any) -> None:  # noqa: F811
    code = """
    import ctypes
    held = torch.ones(1000, device="neuron")
    torch.neuron.synchronize()
    child = os.fork()
    if child == 0:
        ctypes.string_at(held.untyped_storage().data_ptr(), 4)
        os._exit(0)
    send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    send(held.sum().item())
    """
    assert run(server, code) == [FAULT, 1000.0]


def test_guard_mode(server: Any) -> None:  # noqa: F811
    code = """
    import ctypes
    torch.manual_seed(0)
    fresh = torch.empty(5, device="neuron")
    send(fresh.isnan().all().item())
    send(torch.empty(5, dtype=torch.int32, device="neuron").tolist())
    a = torch.randn(64, 64, device="neuron", requires_grad=True)
    ((a @ a).relu().sum() * 2).backward()
    grad = a.grad.cpu()
    b = a.detach().cpu().requires_grad_()
    ((b @ b).relu().sum() * 2).backward()
    send(torch.equal(grad, b.grad))
    send(torch.equal(a[1:5, ::2].contiguous().cpu(), b[1:5, ::2]))
    ctypes.string_at(a.data_ptr(), 4)
    send("the stray read was not seen")
    """
    variables = {"TORCH_NEURONX_GUARD_MEMORY": "1", "NEURON_LAUNCH_BLOCKING": "1"}
    assert run(server, code, exitcode=FAULT, **variables) == [True, [-1] * 5, True, True]


def test_guard_mode_lets_a_storage_grow(server: Any) -> None:  # noqa: F811
    code = """
    torch.ones(1, device="neuron").item()
    _C = __import__("torch_neuronx")._C
    for mode in ("measured", "always", "never"):
        _C._set_hand_off(mode)
        out = torch.zeros(33, 33, device="neuron")
        torch.stack([torch.ones(33, 33, device="neuron")] * 2, out=out)
        grown = torch.ones(4, device="neuron").resize_(5000)
        send((tuple(out.shape), out.sum().item(), grown[:4].tolist()))
    """
    expected = ((2, 33, 33), 2 * 33 * 33.0, [1.0] * 4)
    assert run(server, code, TORCH_NEURONX_GUARD_MEMORY="1") == [expected] * 3


@pytest.mark.skipif(SANITIZER != "", reason="sanitizers need the address space for themselves")
def test_small_address_space() -> None:
    """Where the whole range of addresses cannot be reserved, segments are mapped one by one."""
    script = f"""
import resource
import torch
torch.zeros(1)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * 4096
limit = used + 3 * 2**30   # less than one device's 24 GiB
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
held = [torch.full(({MIB},), float(i), device="neuron") for i in range(20)]
assert [t[-1].item() for t in held] == [float(i) for i in range(20)]
other = torch.ones(10, device="neuron:1")
assert other.sum().item() == 10
assert held[3].device.index == 0
del held
torch.neuron.synchronize()
torch.neuron.empty_cache()
assert torch.neuron.memory_reserved() == 0
try:
    torch.empty(8 * 2**30, dtype=torch.uint8, device="neuron")
except torch.OutOfMemoryError as error:
    print(error)
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "The host refused the memory: see `ulimit -v`" in result.stdout
