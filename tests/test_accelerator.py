"""torch.accelerator on the neuron device."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def first_device():
    torch.accelerator.set_device_index(0)
    yield
    torch.accelerator.set_device_index(0)


def test_current_accelerator() -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("neuron")
    assert torch.accelerator.current_accelerator(check_available=True).type == "neuron"
    assert torch.accelerator.device_count() == torch.neuron.device_count() == 4
    assert torch.get_device_module() is torch.neuron
    assert torch.get_device_module("neuron:1") is torch.neuron


def test_device_index() -> None:
    torch.accelerator.set_device_index(2)
    assert torch.accelerator.current_device_index() == torch.neuron.current_device() == 2
    torch.accelerator.set_device_index("neuron:1")
    assert torch.accelerator.current_device_index() == 1
    torch.accelerator.set_device_index(-1)
    assert torch.accelerator.current_device_index() == 1
    with torch.accelerator.device_index(3):
        assert torch.ones(1, device="neuron").device.index == 3
    with torch.accelerator.device_index(None):
        assert torch.accelerator.current_device_index() == 1
    assert torch.accelerator.current_device_index() == 1
    with pytest.raises(RuntimeError, match="invalid neuron device index"):
        torch.accelerator.set_device_index(9)


def test_streams() -> None:
    default = torch.accelerator.current_stream()
    assert default == torch.neuron.default_stream()
    stream = torch.Stream(device=torch.device("neuron:1"))
    torch.accelerator.set_stream(stream)
    assert torch.accelerator.current_device_index() == 1
    assert torch.accelerator.current_stream() == stream
    assert torch.accelerator.current_stream(0) == default
    torch.accelerator.set_stream(torch.neuron.default_stream(1))


def test_synchronize() -> None:
    torch.neuron._sleep(20_000_000)
    assert not torch.neuron.query()
    torch.accelerator.synchronize()
    assert torch.neuron.query()
    torch.accelerator.synchronize(1)
    torch.accelerator.synchronize(torch.device("neuron:1"))


def test_timing_example_of_the_manual() -> None:
    start, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
    start.record()
    torch.neuron._sleep(12_000_000)
    end.record()
    torch.accelerator.synchronize()
    assert start.elapsed_time(end) > 9


def test_device_capability() -> None:
    dtypes = torch.accelerator.get_device_capability()["supported_dtypes"]
    for dtype in (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool,
        torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64, torch.complex128,
    ):  # fmt: skip
        assert dtype in dtypes
    assert torch.qint8 not in dtypes
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint64):
        x = torch.zeros(3, dtype=torch.float32, device="neuron").to(dtype)
        assert x.dtype == dtype
        assert x.cpu().to(torch.float32).tolist() == [0.0] * 3


def test_memory() -> None:
    torch.accelerator.empty_cache()
    before = torch.accelerator.memory_allocated()
    x = torch.empty(1024, 1024, device="neuron")
    assert torch.accelerator.memory_allocated() - before == x.nbytes
    assert torch.accelerator.memory_reserved() >= torch.accelerator.memory_allocated()
    assert torch.accelerator.max_memory_allocated() >= torch.accelerator.memory_allocated()
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] == torch.accelerator.memory_allocated()
    free, total = torch.accelerator.get_memory_info()
    assert total == torch.neuron.get_device_properties().total_memory
    assert 0 < free <= total - x.nbytes
    del x
    assert torch.accelerator.memory_allocated() == before
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == before


def test_training_code_that_knows_no_device_name() -> None:
    device = torch.accelerator.current_accelerator(check_available=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.randn(32, 4).to(device)
    y = x.sum(1, keepdim=True)
    losses = []
    for _ in range(20):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
