"""What all tests share. Without a working core there is nothing to test, so the run stops with the reason."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy
import pytest
import torch

SEED = 0


def pytest_sessionstart(session: pytest.Session) -> None:
    try:
        from torch_neuronx import _load
    except ModuleNotFoundError as error:
        pytest.exit(f"{error}: run `make setup`", returncode=pytest.ExitCode.INTERNAL_ERROR)
    why = _load.reason()
    if why is None and not torch.neuron.is_available():
        why = "the neuron device is loaded but sees no devices; look at NEURON_RT_NUM_CORES and its kin"
    if why is not None:
        pytest.exit(why, returncode=pytest.ExitCode.INTERNAL_ERROR)


@pytest.fixture(autouse=True)
def _same_start(request: pytest.FixtureRequest) -> Iterator[None]:
    """Seeds every generator before a test; after it, waits for its launches, so that a late error fails that test."""
    random.seed(SEED)
    numpy.random.seed(SEED)
    torch.manual_seed(SEED)
    yield
    if torch.neuron.is_initialized():
        for index in range(torch.neuron.device_count()):
            torch.neuron.synchronize(index)


@pytest.fixture
def device() -> torch.device:
    """The first neuron device."""
    return torch.device("neuron", 0)


@pytest.fixture
def second_device() -> torch.device:
    """Another neuron device than `device`."""
    if torch.neuron.device_count() < 2:
        pytest.fail("this test needs two neuron devices; NEURON_RT_NUM_CORES allows only one")
    return torch.device("neuron", 1)


@pytest.fixture
def assert_same() -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Asserts that two tensors, on any devices, agree in dtype, shape and every bit; NaN equals NaN."""

    def check(actual: torch.Tensor, expected: torch.Tensor) -> None:
        torch.testing.assert_close(actual.cpu(), expected.cpu(), rtol=0, atol=0, equal_nan=True)

    return check
