"""Random programs over the allocator: after each step, what it says must agree with what it holds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

neuron = torch.neuron
KIB, MIB = 2**10, 2**20
DEVICE = 3
STEPS = 400


@pytest.fixture(autouse=True)
def clean_device() -> Iterator[None]:
    neuron.init()
    neuron.synchronize(DEVICE)
    neuron.empty_cache()
    neuron.reset_peak_memory_stats(DEVICE)
    assert neuron.memory_reserved(DEVICE) == 0
    yield
    neuron.set_per_process_memory_fraction(1.0, DEVICE)


def random_size(random: random.Random) -> int:
    limit = random.choice([2 * KIB, 100 * KIB, MIB, 2 * MIB, 12 * MIB, 40 * MIB])
    return random.randint(1, limit)


def segments_of_device() -> list[dict[str, Any]]:
    return [segment for segment in neuron.memory_snapshot() if segment["device"] == DEVICE]


def check(requested: int) -> None:
    """The statistics are what the segments and blocks add up to, and the blocks tile their segments."""
    stats = neuron.memory_stats(DEVICE)
    segments = segments_of_device()
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address
            assert block["size"] % 256 == 0
            assert block["requested_size"] <= block["size"]
            address += block["size"]
        assert address == segment["address"] + segment["total_size"]
    ranges = sorted((s["address"], s["address"] + s["total_size"]) for s in segments)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))

    blocks = [(segment, block) for segment in segments for block in segment["blocks"]]
    live = [block for _, block in blocks if block["state"] == "active_allocated"]
    awaiting = [block for _, block in blocks if block["state"] == "active_awaiting_free"]
    split = [b for s, b in blocks if b["state"] == "inactive" and len(s["blocks"]) > 1]
    assert stats["reserved_bytes.all.current"] == sum(segment["total_size"] for segment in segments)
    assert stats["segment.all.current"] == len(segments)
    assert stats["active_bytes.all.current"] == sum(block["size"] for block in live)
    assert stats["active.all.current"] == len(live)
    assert stats["requested_bytes.all.current"] == sum(block["requested_size"] for block in live) == requested
    assert stats["allocated_bytes.all.current"] == sum(block["size"] for block in live + awaiting)
    assert stats["inactive_split_bytes.all.current"] == sum(block["size"] for block in split)
    assert stats["inactive_split.all.current"] == len(split)
    for what in ("current", "peak"):
        reserved, allocated, active = (
            stats[f"{name}_bytes.all.{what}"] for name in ("reserved", "allocated", "active")
        )
        assert reserved >= allocated >= active
    for name in ("allocated_bytes", "active_bytes", "reserved_bytes", "inactive_split_bytes", "allocation", "segment"):
        for pool in ("all", "small_pool", "large_pool"):
            current, peak, added, removed = (
                stats[f"{name}.{pool}.{what}"] for what in ("current", "peak", "allocated", "freed")
            )
            assert 0 <= current <= peak
            assert added - removed == current
        pools = stats[f"{name}.small_pool.current"] + stats[f"{name}.large_pool.current"]
        assert pools == stats[f"{name}.all.current"]


@pytest.mark.parametrize("seed", range(6))
def test_random_program(seed: int) -> None:
    # Totals count from here, so that they agree with the current values.
    neuron.reset_accumulated_memory_stats(DEVICE)
    choose = random.Random(seed)
    streams = [neuron.default_stream(DEVICE)] + [neuron.Stream(device=DEVICE) for _ in range(seed % 3)]
    if seed % 2:
        neuron.set_per_process_memory_fraction(0.02, DEVICE)
    held: list[tuple[torch.Tensor, int]] = []
    ooms = 0
    for step in range(STEPS):
        action = choose.random()
        if action < 0.55:
            value = choose.randrange(256)
            with neuron.stream(choose.choice(streams)):
                try:
                    memory = torch.empty(random_size(choose), dtype=torch.uint8, device=f"neuron:{DEVICE}")
                except torch.OutOfMemoryError:
                    ooms += 1
                    del held[: len(held) // 2]
                    continue
                # Both ends, so that an overlap with another block is seen when it is let go.
                memory[0] = value
                memory[-1] = value
            held.append((memory, value))
        elif action < 0.95 and held:
            memory, value = held.pop(choose.randrange(len(held)))
            neuron.synchronize(DEVICE)
            assert memory[0].item() == memory[-1].item() == value
            if choose.random() < 0.2:
                stream = choose.choice(streams)
                with neuron.stream(stream):
                    neuron._sleep(1_000_000)
                memory.record_stream(stream)
            memory = None
        elif action > 0.99:
            neuron.empty_cache()
        if step % 20 == 0:
            # Launches hold their tensors until they have run.
            neuron.synchronize(DEVICE)
            check(sum(memory.numel() for memory, _ in held))
    held.clear()
    memory = None
    neuron.synchronize(DEVICE)
    check(0)
    assert neuron.memory_allocated(DEVICE) == 0
    neuron.empty_cache()
    assert segments_of_device() == []
    assert ooms == neuron.memory_stats(DEVICE)["num_ooms"]


def test_cached_blocks_of_other_sizes_do_not_pile_up() -> None:
    """Sizes that drift, as with sequences of growing length, must not reserve the sum of all sizes."""
    for step in range(200):
        pair = [torch.empty(1_100_000 + 4000 * step + i, dtype=torch.uint8, device=f"neuron:{DEVICE}") for i in (0, 1)]
        assert len(pair) == 2
        del pair
    assert neuron.memory_reserved(DEVICE) <= 40 * MIB
