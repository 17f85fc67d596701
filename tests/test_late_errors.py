"""Errors of launches that ran later than their call: raised once, at the next wait, with the line that submitted them."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F

from torch_neuronx import _C

neuron = torch.neuron
BUSY = 24_000_000  # cycles of torch.neuron._sleep: 20 ms

pytestmark = pytest.mark.skipif(_C.launch_blocking(), reason="nothing runs late in the blocking mode")


@pytest.fixture
def table() -> torch.Tensor:
    return torch.arange(12.0, device="neuron").reshape(4, 3)


@pytest.fixture
def wrong() -> torch.Tensor:
    return torch.tensor([99], device="neuron")


def submit_late(call) -> None:
    """Learns the signature from a call that is right, then submits the wrong one to a busy stream."""
    call(torch.tensor([1], device="neuron"))
    neuron.synchronize()
    neuron._sleep(BUSY)


def test_raised_once_and_the_stream_goes_on(table, wrong) -> None:
    submit_late(lambda index: table[index])
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
    submit_late(lambda index: table[index])
    result = table[wrong]
    with pytest.raises(IndexError, match="out of bounds"):
        wait(result)
        neuron.synchronize()
    neuron.synchronize()


def test_stays_with_its_stream(table, wrong) -> None:
    side = neuron.Stream()
    submit_late(lambda index: table[index])
    with neuron.stream(side):
        neuron._sleep(BUSY)
        table[wrong]
    neuron.default_stream().synchronize()
    with pytest.raises(IndexError):
        side.synchronize()


class Lookup(torch.nn.Module):
    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding.from_pretrained(table)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.embedding(index)


@pytest.mark.parametrize("way", ["operator", "function", "module"])
def test_names_the_line_of_the_user(table, wrong, way) -> None:
    """Not the line of PyTorch's Python code that the user's line calls."""
    lookups = {"operator": table.__getitem__, "function": lambda index: F.embedding(index, table), "module": Lookup(table)}
    lookup = lookups[way]
    submit_late(lookup)
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
        neuron._sleep(BUSY)
        table[wrong]
        with pytest.raises(IndexError, match="earlier launch on neuron:1: aten::index.Tensor, submitted at"):
            neuron.synchronize()
