"""Pinned host memory: what is pinned, when it is used again, and the loader that pins batches."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

neuron = torch.neuron
MIB = 2**20
MILLISECOND = 1_200_000  # cycles of torch.neuron._sleep at 1.2 GHz


@pytest.fixture(autouse=True)
def clean_cache() -> Iterator[None]:
    gc.collect()
    neuron.init()
    neuron.synchronize()
    torch.accelerator.empty_host_cache()
    neuron.memory.reset_peak_host_memory_stats()
    yield


def test_is_pinned() -> None:
    plain = torch.arange(1000)
    pinned = plain.pin_memory()
    assert pinned.is_pinned() and not plain.is_pinned()
    assert pinned[500:].is_pinned()
    assert pinned.device.type == "cpu"
    assert torch.equal(pinned, plain)
    assert pinned.pin_memory().data_ptr() == pinned.data_ptr()
    assert not pinned.to("neuron").is_pinned()
    assert torch.empty(10, pin_memory=True).is_pinned()
    assert torch.empty(0).pin_memory().numel() == 0


def test_copies_both_ways() -> None:
    source = torch.randn(1000, 1000).pin_memory()
    there = source.to("neuron", non_blocking=True)
    back = torch.empty_like(source, pin_memory=True)
    back.copy_(there * 2, non_blocking=True)
    neuron.synchronize()
    assert torch.equal(back, source * 2)


@pytest.mark.parametrize("to_device", [True, False])
def test_a_block_in_a_queued_copy_is_not_used_again(to_device: bool) -> None:
    wanted = torch.arange(MIB, dtype=torch.float32)
    there = torch.zeros(MIB, device="neuron")
    ready = wanted.to("neuron")
    host = wanted.pin_memory() if to_device else torch.empty(MIB, pin_memory=True)
    address = host.data_ptr()
    result = torch.empty(MIB)
    there += 0  # the first call of an operator waits for what is queued
    there += ready
    there.zero_()
    neuron._sleep(100 * MILLISECOND)
    if to_device:
        there += 1  # queued behind the sleep, and the copy behind it
        there.copy_(host, non_blocking=True)
    else:
        there += ready
        host.copy_(there, non_blocking=True)
    assert not neuron.current_stream().query()
    del host
    other = torch.zeros(MIB, pin_memory=True)
    if other.data_ptr() == address:  # allowed only when the copy is done
        assert neuron.current_stream().query()
    result.copy_(there)
    assert torch.equal(result, wanted)
    assert not other.any()


def test_blocks_are_cached_and_given_back() -> None:
    first = torch.zeros(1000, pin_memory=True)
    address = first.data_ptr()
    stats = neuron.host_memory_stats()
    assert stats["active_bytes.current"] == stats["allocated_bytes.current"] == 4096
    assert stats["allocations.current"] == 1
    del first
    stats = neuron.host_memory_stats()
    assert stats["active_bytes.current"] == 0
    assert stats["allocated_bytes.current"] == 4096
    assert stats["allocated_bytes"]["peak"] == 4096
    again = torch.zeros(900, pin_memory=True)
    assert again.data_ptr() == address
    del again
    torch.accelerator.empty_host_cache()
    stats = neuron.host_memory_stats()
    assert stats["allocated_bytes.current"] == 0
    neuron.memory.reset_accumulated_host_memory_stats()
    assert neuron.host_memory_stats()["allocated_bytes.allocated"] == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(workers: int) -> None:
    data = torch.arange(64.0).reshape(32, 2)
    loader = DataLoader(TensorDataset(data), batch_size=8, num_workers=workers, pin_memory=True)
    rows = []
    for (batch,) in loader:
        assert batch.is_pinned()
        rows.append(batch.to("neuron", non_blocking=True))
    assert torch.equal(torch.cat(rows).cpu(), data)
