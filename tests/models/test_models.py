"""Models of transformers and diffusers on neuron: eager as on the CPU to the bit, compiled within rounding.

Run by `make test-models`, in an environment of its own (requirements/models.txt).
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator

import pytest
import torch

from .case import Case
from .training_step import Step, assert_close, graphs_since_reset, inputs_on, reset_counters, step

pytestmark = pytest.mark.models

FAMILIES = (
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


@pytest.fixture(autouse=True)
def _compiled_afresh() -> Iterator[None]:
    reset_counters()
    torch.neuron.reset_dynamo_metrics()
    yield
    torch._dynamo.reset()


@pytest.fixture(params=FAMILIES)
def case(request: pytest.FixtureRequest) -> Case:
    made: Case = importlib.import_module(f"tests.models.{request.param}").build()
    made.model.train()
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


def test_compiled(case: Case, expected: Step) -> None:
    model = copy.deepcopy(case.model).to("neuron")
    inputs = inputs_on("neuron", case.inputs)
    compiled = torch.compile(model, backend="neuron")
    for _ in range(2):
        assert_close(step(model, compiled, inputs), expected, case.tolerance)
    graphs = graphs_since_reset()
    assert (graphs.captured, graphs.breaks) == (case.graphs, case.breaks)
    reasons = [graph["python_reason"] for graph in torch.neuron.get_dynamo_metrics() if graph["python_reason"]]
    assert reasons == case.python_reasons


def test_the_cpu_captures_as_many_graphs(case: Case) -> None:
    # Graphs and breaks are Dynamo's, so any backend sees those that Inductor for the CPU gets.
    compiled = torch.compile(case.model, backend="aot_eager")
    step(case.model, compiled, case.inputs)
    graphs = graphs_since_reset()
    assert (graphs.captured, graphs.breaks) == (case.graphs, case.breaks)
