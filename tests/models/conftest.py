"""What every test of a model begins and ends with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .training_step import reset_counters


@pytest.fixture(autouse=True)
def _compiled_afresh() -> Iterator[None]:
    reset_counters()
    torch.neuron.reset_dynamo_metrics()
    yield
    torch._dynamo.reset()
