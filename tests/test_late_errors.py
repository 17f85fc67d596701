"""Errors of launches that ran later than their call: raised once, at the next wait, with the line that submitted them."""

from __future__ import annotations

import inspect
import time

import pytest
import torch
import torch.nn.functional as F

from torch_neuronx import _C

neuron = torch.neuron
pytestmark = pytest.mark.skipif(_C.launch_blocking(), reason="nothing runs late in the blocking mode")


@pytest.fixture(autouse=True)
def launches_are_queued():
    """Also on an idle stream, so that no test depends on how busy the machine is."""
    _C._set_hand_off("always")
    yield
    neuron.synchronize()
    _C._set_hand_off("measured")


@pytest.fixture
def table() -> torch.Tensor:
    return torch.arange(12.0, device="neuron").reshape(4, 3)


@pytest.fixture
def wrong() -> torch.Tensor:
    return torch.tensor([99], device="neuron")


def learn(call) -> None:
    """Makes the signature known by a call that is right: the first one runs at once."""
    call(torch.tensor([1], device="neuron"))
    neuron.synchronize()


def test_raised_once_and_the_stream_goes_on(table, wrong) -> None:
    learn(lambda index: table[index])
    bad = table[wrong]
    after = table + 1
    with pytest.raises(IndexError, match="out of bounds"):
        neuron.synchronize()
    neuron.synchronize()
    assert bad.shape == (1, 3)
    assert after.sum().item() == 78


@pytest.mark.parametrize(
    "wait",
    [
        lambda result: result.sum().item(),
        lambda result: result.cpu(),
        lambda result: result.tolist(),
        lambda result: repr(result),
        lambda result: neuron.current_stream().synchronize(),
        lambda result: neuron.record_event().synchronize(),
        lambda result: torch.accelerator.synchronize(),
        lambda result: torch.nonzero(result),
    ],
)
def test_raised_by_whatever_waits(table, wrong, wait) -> None:
    learn(lambda index: table[index])
    result = table[wrong]
    with pytest.raises(IndexError, match="out of bounds"):
        wait(result)
        neuron.synchronize()
    neuron.synchronize()


def test_stays_with_its_stream(table, wrong) -> None:
    side = neuron.Stream()
    learn(lambda index: table[index])
    with neuron.stream(side):
        table[wrong]
    neuron.default_stream().synchronize()
    with pytest.raises(IndexError):
        side.synchronize()


def wait_for_stream(result: torch.Tensor, failed: neuron.Stream, other: neuron.Stream) -> torch.Tensor:
    other.wait_stream(failed)
    with neuron.stream(other):
        return result + 1


def wait_for_event(result: torch.Tensor, failed: neuron.Stream, other: neuron.Stream) -> torch.Tensor:
    other.wait_event(failed.record_event())
    with neuron.stream(other):
        return result + 1


def wait_through_a_third(result: torch.Tensor, failed: neuron.Stream, other: neuron.Stream) -> torch.Tensor:
    between = neuron.Stream()
    between.wait_stream(failed)
    return wait_for_stream(result, between, other)


def copy_to_another_device(result: torch.Tensor, failed: neuron.Stream, other: neuron.Stream) -> torch.Tensor:
    with neuron.stream(failed):
        return result.to("neuron:1")


@pytest.mark.parametrize("failed_before", [False, True])
@pytest.mark.parametrize("cross", [wait_for_stream, wait_for_event, wait_through_a_third, copy_to_another_device])
def test_reading_what_a_failed_result_became_on_another_stream(table, wrong, cross, failed_before) -> None:
    failed, other = neuron.Stream(), neuron.Stream()
    learn(lambda index: table[index])
    for stream in (failed, other):
        stream.wait_stream(neuron.default_stream())
    with neuron.stream(failed):
        if not failed_before:
            neuron._sleep(20_000_000)
        result = table[wrong]
    while failed_before and not failed.query():
        time.sleep(0.001)
    crossed = cross(result, failed, other)
    with pytest.raises(IndexError, match="out of bounds"):
        crossed.cpu()
    for device in (0, 1):  # once, whichever stream is asked
        neuron.synchronize(device)


class Lookup(torch.nn.Module):
    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding.from_pretrained(table)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.embedding(index)


@pytest.mark.parametrize("way", ["operator", "function", "module"])
def test_names_the_line_of_the_user(table, wrong, way) -> None:
    """Not the line of PyTorch's Python code that the user's line calls."""
    lookups = {
        "operator": table.__getitem__,
        "function": lambda index: F.embedding(index, table),
        "module": Lookup(table),
    }
    lookup = lookups[way]
    learn(lookup)
    line = inspect.currentframe().f_lineno + 1
    lookup(wrong)
    lines, first = inspect.getsourcelines(Lookup.forward)
    expected = {
        "operator": f"test_late_errors.py:{line} in test_names_the_line_of_the_user",
        "function": "test_late_errors.py:.* in <lambda>",
        "module": f"test_late_errors.py:{first + len(lines) - 1} in forward",
    }
    with pytest.raises(IndexError, match=rf"submitted at \S*{expected[way]}\. NEURON_LAUNCH_BLOCKING=1 raises"):
        neuron.synchronize()


def test_names_the_operator_and_the_device(table, wrong) -> None:
    table, wrong = table.to("neuron:1"), wrong.to("neuron:1")
    table[torch.tensor([1], device="neuron:1")]
    with neuron.device(1):
        neuron.synchronize()
        table[wrong]
        with pytest.raises(IndexError, match="earlier launch on neuron:1: aten::index.Tensor, submitted at"):
            neuron.synchronize()
