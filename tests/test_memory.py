"""Device memory as torch.neuron shows it: statistics, limits, out of memory, cache, streams."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
from collections.abc import Iterator

import pytest
import torch

neuron = torch.neuron
KIB, MIB, GIB = 2**10, 2**20, 2**30
MILLISECOND = 1_200_000  # cycles of torch.neuron._sleep at 1.2 GHz
DEVICE = 3  # one that other tests hardly use


def tensor(nbytes: int, device: int = DEVICE) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device=torch.device("neuron", device))


@pytest.fixture(autouse=True)
def clean_device() -> Iterator[None]:
    """Starts with no memory on DEVICE, and checks that the test leaves none behind."""
    gc.collect()
    neuron.init()
    neuron.synchronize(DEVICE)
    neuron.empty_cache()
    neuron.reset_peak_memory_stats(DEVICE)
    neuron.reset_accumulated_memory_stats(DEVICE)
    assert neuron.memory_allocated(DEVICE) == 0
    yield
    neuron.set_per_process_memory_fraction(1.0, DEVICE)
    gc.collect()
    neuron.synchronize(DEVICE)
    neuron.empty_cache()
    assert neuron.memory_allocated(DEVICE) == 0
    assert neuron.memory_reserved(DEVICE) == 0


# ---- rounding, pools, segments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requested", "rounded"),
    [
        (1, 256),
        (256, 256),
        (257, 512),
        (4096, 4096),
        (4097, 4608),
        (9000, 9 * KIB),
        (MIB, MIB),
        (MIB + 1, MIB + 128 * KIB),
        (9 * MIB - 5, 9 * MIB),
        (16 * MIB - 1, 16 * MIB),
        (16 * MIB + 1, 16 * MIB + 512),  # exact from here on
        (33 * MIB + 1000, 33 * MIB + 1024),
    ],
)
def test_rounding(requested: int, rounded: int) -> None:
    held = tensor(requested)
    stats = neuron.memory_stats(DEVICE)
    assert stats["allocated_bytes.all.current"] == rounded
    assert stats["requested_bytes.all.current"] == requested
    assert held.data_ptr() % 256 == 0


def test_two_pools_split_at_one_mebibyte() -> None:
    held = [tensor(MIB), tensor(MIB + 1)]
    stats = neuron.memory_stats(DEVICE)
    assert stats["allocated_bytes.small_pool.current"] == MIB
    assert stats["allocated_bytes.large_pool.current"] == MIB + 128 * KIB
    assert stats["reserved_bytes.small_pool.current"] == 2 * MIB
    assert stats["reserved_bytes.large_pool.current"] == 20 * MIB
    assert stats["segment.all.current"] == len(held)


def test_large_requests_get_segments_of_their_own() -> None:
    held = tensor(50 * MIB + 1)
    assert neuron.memory_reserved(DEVICE) == 52 * MIB
    assert neuron.memory_allocated(DEVICE) == 50 * MIB + 512
    assert held.numel() == 50 * MIB + 1


def test_empty_tensors_take_nothing() -> None:
    held = torch.empty(0, device=torch.device("neuron", DEVICE))
    assert neuron.memory_allocated(DEVICE) == 0
    assert held.data_ptr() == 0


def test_freed_memory_is_used_again() -> None:
    for nbytes in (100, MIB, 5 * MIB, 40 * MIB):
        first = tensor(nbytes)
        address = first.data_ptr()
        del first
        reserved = neuron.memory_reserved(DEVICE)
        second = tensor(nbytes)
        assert second.data_ptr() == address
        assert neuron.memory_reserved(DEVICE) == reserved
        del second


def test_neighbours_are_merged() -> None:
    parts = [tensor(4 * MIB) for _ in range(5)]  # one segment of 20 MiB
    assert neuron.memory_reserved(DEVICE) == 20 * MIB
    del parts
    whole = tensor(20 * MIB)
    assert neuron.memory_reserved(DEVICE) == 20 * MIB
    assert whole.numel() == 20 * MIB


# ---- statistics ------------------------------------------------------------------------------------------------------


def test_current_peak_and_totals() -> None:
    first, second = tensor(MIB), tensor(2 * MIB)
    del first
    stats = neuron.memory_stats(DEVICE)
    assert stats["allocated_bytes.all.current"] == 2 * MIB
    assert stats["allocated_bytes.all.peak"] == 3 * MIB == neuron.max_memory_allocated(DEVICE)
    assert stats["allocated_bytes.all.allocated"] == 3 * MIB
    assert stats["allocated_bytes.all.freed"] == MIB
    assert stats["allocation.all.current"] == 1
    assert stats["allocation_requests"] == 2
    assert stats["num_tensor_frees"] == 1
    neuron.reset_peak_memory_stats(DEVICE)
    assert neuron.max_memory_allocated(DEVICE) == 2 * MIB
    assert neuron.max_memory_reserved(DEVICE) == neuron.memory_reserved(DEVICE)
    neuron.reset_accumulated_memory_stats(DEVICE)
    stats = neuron.memory_stats(DEVICE)
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == 0
    assert stats["allocated_bytes.all.current"] == 2 * MIB
    del second


def test_peak_of_all_pools_is_not_the_sum_of_their_peaks() -> None:
    small = tensor(MIB)
    del small
    large = tensor(2 * MIB)
    stats = neuron.memory_stats(DEVICE)
    assert stats["allocated_bytes.small_pool.peak"] == MIB
    assert stats["allocated_bytes.large_pool.peak"] == 2 * MIB
    assert stats["allocated_bytes.all.peak"] == 2 * MIB
    del large


def test_flat_and_nested_keys() -> None:
    held = tensor(1000)
    stats = neuron.memory_stats(DEVICE)
    nested = neuron.memory_stats_as_nested_dict(DEVICE)
    assert all(isinstance(value, int) for value in stats.values())
    assert list(stats) == sorted(stats)
    for group in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "allocation", "segment"):
        for pool in ("all", "small_pool", "large_pool"):
            for what in ("current", "peak", "allocated", "freed"):
                assert stats[f"{group}.{pool}.{what}"] == nested[group][pool][what] == stats[group][pool][what]
        assert stats[group]["current"] == stats[f"{group}.all.current"]
    assert "allocated_bytes" in stats and "allocated_bytes.all.current" in stats
    assert "nonsense" not in stats and stats.get("nonsense", 7) == 7
    assert stats.get("allocated_bytes")["peak"] == 1024
    with pytest.raises(KeyError, match="nonsense"):
        stats["nonsense"]
    for clone in (pickle.loads(pickle.dumps(stats)), copy.deepcopy(stats)):
        assert clone == stats and clone["allocated_bytes"] == stats["allocated_bytes"]
    del held


def test_the_same_numbers_as_torch_accelerator() -> None:
    held = tensor(3 * MIB)
    ours, theirs = neuron.memory_stats(DEVICE), torch.accelerator.memory_stats(DEVICE)
    assert theirs["allocated_bytes.all.current"] == 3 * MIB
    # Every number of torch's that both have.
    assert {key: ours[key] for key in theirs if key in ours} == {key: theirs[key] for key in theirs if key in ours}
    assert torch.accelerator.memory_allocated(DEVICE) == neuron.memory_allocated(DEVICE)
    assert torch.accelerator.max_memory_reserved(DEVICE) == neuron.max_memory_reserved(DEVICE)
    assert torch.accelerator.get_memory_info(DEVICE) == neuron.mem_get_info(DEVICE)
    torch.accelerator.reset_peak_memory_stats(DEVICE)
    torch.accelerator.reset_accumulated_memory_stats(DEVICE)
    assert neuron.memory_stats(DEVICE)["allocated_bytes.all.allocated"] == 0
    del held
    torch.accelerator.empty_cache()
    assert neuron.memory_reserved(DEVICE) == 0


def test_device_arguments() -> None:
    held = tensor(256)
    with neuron.device(DEVICE):
        for device in (DEVICE, f"neuron:{DEVICE}", torch.device("neuron", DEVICE), None, "neuron"):
            assert neuron.memory_allocated(device) == 256
    with pytest.raises(ValueError, match="Expected a neuron device"):
        neuron.memory_allocated("cpu")
    with pytest.raises(RuntimeError, match="invalid neuron device index 99"):
        neuron.memory_allocated(99)
    with pytest.raises(RuntimeError, match="invalid neuron device index -1"):
        neuron.memory_stats(-1)
    del held


def test_summary() -> None:
    held = tensor(3 * MIB)
    text, short = neuron.memory_summary(DEVICE), neuron.memory_summary(DEVICE, abbreviated=True)
    assert f"device ID {DEVICE}" in text
    assert "| Allocated memory      |   3072 KiB |   3072 KiB |   3072 KiB |      0 B   |" in text
    assert "from large pool" in text and "from large pool" not in short
    assert len({len(line) for line in text.splitlines()}) == 1
    assert "largest piece 17 MiB" in text or "largest piece 17408 KiB" in text
    del held


def test_model_and_training_leave_nothing_behind() -> None:
    device = torch.device("neuron", DEVICE)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    allocated = []
    for _ in range(4):
        model(torch.randn(16, 64, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        neuron.synchronize(DEVICE)
        allocated.append(neuron.memory_allocated(DEVICE))
    assert allocated[1] == allocated[2] == allocated[3] > 0


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_out_of_memory_is_pytorchs_error_and_leaves_the_device_usable() -> None:
    total = neuron.mem_get_info(DEVICE)[1]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        tensor(total + 1)
    text = str(caught.value)
    assert text.startswith("Neuron out of memory. Tried to allocate 24.00 GiB.")
    assert f"neuron:{DEVICE} has a total capacity of 24.00 GiB of which 24.00 GiB is free" in text
    assert isinstance(caught.value, RuntimeError)
    assert neuron.memory_stats(DEVICE)["num_ooms"] == 1
    held = tensor(MIB).fill_(3)
    assert held.sum().item() == 3 * MIB


def test_a_huge_request_does_not_overflow() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="more than any device has"):
        tensor(2**62)


def test_memory_fraction() -> None:
    total = neuron.mem_get_info(DEVICE)[1]
    neuron.set_per_process_memory_fraction(0.01, DEVICE)
    assert neuron.get_per_process_memory_fraction(DEVICE) == 0.01
    held = [tensor(40 * MIB) for _ in range(6)]
    with pytest.raises(torch.OutOfMemoryError, match="allowed by set_per_process_memory_fraction"):
        tensor(40 * MIB)
    assert neuron.memory_reserved(DEVICE) <= 0.01 * total
    neuron.set_per_process_memory_fraction(1.0, DEVICE)
    held.append(tensor(40 * MIB))
    assert len(held) == 7


@pytest.mark.parametrize(("fraction", "error"), [(1, TypeError), (-0.1, ValueError), (1.5, ValueError)])
def test_bad_memory_fraction(fraction: float, error: type[Exception]) -> None:
    with pytest.raises(error, match="fraction"):
        neuron.set_per_process_memory_fraction(fraction, DEVICE)


def test_cached_memory_is_given_back_before_an_allocation_fails() -> None:
    neuron.set_per_process_memory_fraction(0.01, DEVICE)  # 245 MiB
    cached = [tensor(60 * MIB) for _ in range(3)]
    del cached
    neuron.synchronize(DEVICE)
    assert neuron.memory_reserved(DEVICE) == 180 * MIB
    held = tensor(200 * MIB)
    stats = neuron.memory_stats(DEVICE)
    assert stats["num_alloc_retries"] == 1
    assert stats["num_ooms"] == 0
    assert neuron.memory_reserved(DEVICE) == 200 * MIB
    del held


def test_an_allocation_waits_for_launches_that_hold_memory() -> None:
    neuron.set_per_process_memory_fraction(0.01, DEVICE)
    side = neuron.Stream(device=DEVICE)
    with neuron.stream(side):
        held = tensor(200 * MIB)
    with neuron.device(DEVICE):  # the default stream uses it for a while
        neuron._sleep(50 * MILLISECOND)
        held.record_stream(neuron.current_stream())
        del held
        other = tensor(200 * MIB)
    stats = neuron.memory_stats(DEVICE)
    assert stats["num_sync_all_streams"] == 1 and stats["num_ooms"] == 0
    del other


def test_close_to_the_limit_a_smaller_segment_is_taken() -> None:
    neuron.set_per_process_memory_fraction(0.001, DEVICE)  # 24.5 MiB: not two segments of 20 MiB
    held = [tensor(9 * MIB), tensor(9 * MIB), tensor(3 * MIB)]
    assert neuron.memory_reserved(DEVICE) == 24 * MIB
    assert len(held) == 3


def test_fragmentation_is_reported() -> None:
    neuron.set_per_process_memory_fraction(0.01, DEVICE)
    tensors = [tensor(9 * MIB) for _ in range(24)]
    del tensors[::2]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        tensor(60 * MIB)
    text = str(caught.value)
    assert "Of the reserved 240.00 MiB, 108.00 MiB is allocated by PyTorch, and 132.00 MiB is reserved" in text
    assert "The largest free piece is" in text
    assert "fragmented" in text and "kMaxSplitSizeBytes" in text
    del tensors


def test_observers_are_called_before_out_of_memory() -> None:
    seen: list[tuple[int, ...]] = []
    neuron.memory._attach_out_of_memory_observer(lambda *numbers: seen.append(numbers))
    with pytest.raises(torch.OutOfMemoryError):
        tensor(25 * GIB)
    assert seen == [(DEVICE, 25 * GIB, 0, 24 * GIB)]


def test_mem_get_info() -> None:
    free, total = neuron.mem_get_info(DEVICE)
    assert free == total == torch.neuron.get_device_properties(DEVICE).total_memory
    held = tensor(100 * MIB)
    assert neuron.mem_get_info(DEVICE) == (total - 100 * MIB, total)
    del held


# ---- cache -----------------------------------------------------------------------------------------------------------


def test_empty_cache_keeps_segments_in_use() -> None:
    kept, dropped = tensor(50 * MIB), tensor(60 * MIB)
    del dropped
    assert neuron.memory_reserved(DEVICE) == 110 * MIB
    neuron.empty_cache()
    assert neuron.memory_reserved(DEVICE) == 50 * MIB
    assert neuron.memory_stats(DEVICE)["num_device_free"] == 1
    kept.fill_(1)
    assert kept.sum(dtype=torch.int64).item() == 50 * MIB


def test_empty_cache_while_launches_are_queued() -> None:
    with neuron.device(DEVICE):
        source = tensor(30 * MIB).fill_(1)
        neuron._sleep(20 * MILLISECOND)
        result = source + 1
        del source
        neuron.empty_cache()
        assert result.unique().tolist() == [2]
    del result


# ---- host memory -----------------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.skipif("NEURON_SANITIZER" in os.environ, reason="a sanitizer keeps memory about memory")
def test_host_memory_is_taken_only_as_it_is_touched_and_given_back() -> None:
    before = resident_bytes()
    held = tensor(8 * GIB)
    assert resident_bytes() - before < 16 * MIB
    held[: 256 * MIB].fill_(1)
    neuron.synchronize(DEVICE)
    touched = resident_bytes() - before
    assert 250 * MIB < touched < 300 * MIB
    del held
    neuron.empty_cache()
    assert resident_bytes() - before < 32 * MIB


# ---- streams ---------------------------------------------------------------------------------------------------------


def test_blocks_belong_to_the_stream_they_were_allocated_for() -> None:
    side = neuron.Stream(device=DEVICE)
    first = tensor(MIB)
    address = first.data_ptr()
    del first
    with neuron.stream(side):
        other = tensor(MIB)
    again = tensor(MIB)
    assert other.data_ptr() != address
    assert again.data_ptr() == address
    del other, again


def test_record_stream_holds_a_block_back_until_the_stream_has_passed() -> None:
    side = neuron.Stream(device=DEVICE)
    with neuron.device(DEVICE):
        first = tensor(MIB)
        address = first.data_ptr()
        with neuron.stream(side):
            neuron._sleep(100 * MILLISECOND)
        first.record_stream(side)
        del first
        second = tensor(MIB)
        assert second.data_ptr() != address
        stats = neuron.memory_stats(DEVICE)
        # Not free yet, but of no tensor any more.
        assert stats["allocated_bytes.all.current"] == 2 * MIB
        assert stats["active_bytes.all.current"] == MIB
        states = [block["state"] for segment in neuron.memory_snapshot() for block in segment["blocks"]]
        assert "active_awaiting_free" in states
        side.synchronize()
        assert neuron.memory_allocated(DEVICE) == MIB
        third = tensor(MIB)
        assert third.data_ptr() == address
    del second, third


def test_record_stream_of_an_idle_stream_costs_nothing() -> None:
    side = neuron.Stream(device=DEVICE)
    first = tensor(MIB)
    address = first.data_ptr()
    first.record_stream(side)
    del first
    second = tensor(MIB)
    assert second.data_ptr() == address
    del second


# ---- raw memory ------------------------------------------------------------------------------------------------------


def test_raw_allocation() -> None:
    address = neuron.caching_allocator_alloc(1000, DEVICE)
    assert neuron.memory_allocated(DEVICE) == 1024
    other = neuron.caching_allocator_alloc(1000, DEVICE, neuron.Stream(device=DEVICE))
    assert other != address
    neuron.caching_allocator_delete(address)
    neuron.caching_allocator_delete(other)
    assert neuron.memory_allocated(DEVICE) == 0
    assert neuron.caching_allocator_alloc(0, DEVICE) == 0
    neuron.caching_allocator_delete(0)
    with pytest.raises(ValueError, match="was not returned by caching_allocator_alloc"):
        neuron.caching_allocator_delete(address)
    with pytest.raises(TypeError, match="stream"):
        neuron.caching_allocator_alloc(8, DEVICE, "0")
    with pytest.raises(ValueError, match="negative"):
        neuron.caching_allocator_alloc(-1, DEVICE)


# ---- threads ---------------------------------------------------------------------------------------------------------


def test_allocating_and_freeing_on_many_threads() -> None:
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            generator = torch.Generator().manual_seed(seed)
            held: list[torch.Tensor] = []
            for _ in range(300):
                size = int(torch.randint(1, 200_000, (1,), generator=generator))
                held.append(tensor(size).fill_(seed))
                if len(held) > 10:
                    dropped = held.pop(int(torch.randint(0, 10, (1,), generator=generator)))
                    assert dropped[0].item() == dropped[-1].item() == seed
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize("view", [torch.conj, lambda t: t.conj().imag], ids=["conj", "neg"])
def test_record_stream_of_a_conjugated_view_names_the_memory_itself(view) -> None:
    stream = neuron.Stream()
    tensor = torch.ones(5000, dtype=torch.complex64, device="neuron")
    address = tensor.data_ptr()
    with neuron.stream(stream):
        neuron._sleep(50_000_000)
    view(tensor.expand(2, 5000)).record_stream(stream)
    del tensor
    other = torch.empty(5000, dtype=torch.complex64, device="neuron")
    assert other.data_ptr() != address  # still in use on the other stream
    neuron.synchronize()
