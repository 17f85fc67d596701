"""Models of examples/, transformers and diffusers on neuron: eager as on the CPU to the bit, compiled within rounding
of that and, in float32, to the bit what Inductor computes on the CPU.

Run by `make test-models`, in an environment of its own (requirements/models.txt).
"""

from __future__ import annotations

import copy
import importlib

import pytest
import torch

from .case import Case
from .device_models import DEVICE_MODELS
from .training_step import (
    Step,
    assert_as_precise,
    assert_close,
    graphs_since_reset,
    inputs_in,
    inputs_on,
    reset_counters,
    step,
)

pytestmark = pytest.mark.models

FAMILIES = (
    *DEVICE_MODELS,
    "llama",
    "gpt2",
    "qwen3",
    "qwen3_moe",
    "mixtral",
    "vit",
    "whisper",
    "mamba",
    "llava",
    "unet",
    "dit",
    "wan",
)
DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(params=FAMILIES)
def case(request: pytest.FixtureRequest, dtype: torch.dtype) -> Case:
    family = request.param
    # transformers and diffusers are imported by the files of their models only: plain `pytest` runs without them.
    build = DEVICE_MODELS.get(family) or importlib.import_module(f"tests.models.{family}").build
    made: Case = build()
    made.model.train().to(dtype)
    made.inputs = inputs_in(dtype, made.inputs)
    return made


@pytest.fixture
def expected(case: Case) -> Step:
    """What the CPU computes, uncompiled."""
    return step(case.model, case.model, case.inputs)


def test_eager_is_the_cpus_to_the_bit(case: Case, expected: Step) -> None:
    model = copy.deepcopy(case.model).to("neuron")
    inputs = inputs_on("neuron", case.inputs)
    for _ in range(2):  # signatures are learnt at the first, launches enqueued at the second
        assert_close(step(model, model, inputs), expected, tolerance=0)


def test_compiled(case: Case, dtype: torch.dtype, expected: Step) -> None:
    model = copy.deepcopy(case.model).to("neuron")
    inputs = inputs_on("neuron", case.inputs)
    compiled = torch.compile(model, backend="neuron")
    if dtype is not torch.float32:
        in_float32 = copy.deepcopy(case.model).float()
        exact = step(in_float32, in_float32, inputs_in(torch.float32, case.inputs))
    for _ in range(2):
        actual = step(model, compiled, inputs)
        if dtype is torch.float32:
            assert_close(actual, expected, case.tolerance[dtype])
        else:
            assert_as_precise(actual, expected, exact, case.tolerance[dtype])
    graphs = graphs_since_reset()
    assert (graphs.captured, graphs.breaks) == (case.graphs, case.breaks)
    reasons = [graph["python_reason"] for graph in torch.neuron.get_dynamo_metrics() if graph["python_reason"]]
    assert reasons == case.python_reasons

    reset_counters()
    on_the_cpu = step(
        case.model, torch.compile(case.model, backend="inductor", options={"layout_optimization": False}), case.inputs
    )
    assert graphs_since_reset() == graphs
    assert actual.gradients.keys() == on_the_cpu.gradients.keys()
    # In 16 bits PyTorch decomposes normalisation otherwise for the CPU: it rounds the statistics for the backward.
    if dtype is torch.float32 and case.inductors_bits:
        assert_close(actual, on_the_cpu, tolerance=0)
