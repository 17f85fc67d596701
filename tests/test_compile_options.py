"""What users pass to torch.compile, and what happens when a graph can't be compiled."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from torch_neuronx.compiler import backend, options
from torch_neuronx.compiler.errors import CompilationError


def test_modes() -> None:
    assert options.parse_options(None, None).inductor == {}
    assert options.parse_options("reduce-overhead", None).inductor == {}
    assert options.parse_options("max-autotune", None).inductor == {"max_autotune": True}
    with pytest.raises(ValueError, match=r"unknown mode 'fast'; the modes are default, reduce-overhead"):
        options.parse_options("fast", None)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"epilogue_fusio": True}, ValueError, "did you mean epilogue_fusion"),
        ({"triton.cudagraphs": True}, ValueError, "about CUDA graphs"),
        ({"model_name": 3}, TypeError, "model_name is a string"),
        ({"fallback_execution": "yes"}, TypeError, "fallback_execution is a bool"),
    ],
)
def test_wrong_options(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        options.parse_options(None, given)


def test_known_options_are_taken() -> None:
    parsed = options.parse_options(None, {"model_name": "net", "fallback-random": True, "dynamic": False})
    assert parsed.model_name == "net"
    assert parsed.inductor == {"fallback_random": True}


def test_names_of_graphs(device: torch.device) -> None:
    torch._dynamo.reset()
    torch.neuron.reset_dynamo_metrics()
    x = torch.ones(3, device=device, requires_grad=True)
    torch.compile(lambda x: x.exp(), backend="neuron", options={"model_name": "net"})(x).sum().backward()
    forward, backward = torch.neuron.get_dynamo_metrics()
    assert forward["name"] == f"net_forward_{forward['graph_id']}"
    assert backward["name"] == f"net_backward_{backward['graph_id']}"
    assert (forward["ops"], forward["input_bytes"], forward["device"]) == (1, 12, 0)
    assert forward["compile_seconds"] > 0


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_fx_inner(*_args: Any, **_kwargs: Any) -> Any:
        raise AssertionError("no such lowering")

    monkeypatch.setattr(backend, "compile_fx_inner", compile_fx_inner)
    torch._dynamo.reset()


@pytest.mark.usefixtures("broken")
def test_a_failure_raises_with_the_graphs_location(device: torch.device) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.cos() * 3

    with pytest.raises(Exception, match=r"(?s)no such lowering.*The graph begins at .*test_compile_options") as caught:
        torch.compile(function, backend="neuron")(torch.ones(3, device=device))
    assert isinstance(caught.value.__cause__ or caught.value, Exception)
    assert CompilationError.__name__ in str(caught.value)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("by_variable", [False, True])
def test_a_failure_can_be_run_eagerly(by_variable: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.neuron.reset_dynamo_metrics()
    if by_variable:
        monkeypatch.setenv(options.NO_FALLBACK_VARIABLE, "0")
    given = None if by_variable else {"fallback_execution": True}
    x = torch.ones(3, device=device, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = torch.compile(lambda x: x.exp() * 3, backend="neuron", options=given)(x)
        result.sum().backward()
    assert torch.allclose(result.cpu(), torch.ones(3).exp() * 3)
    assert torch.allclose(x.grad.cpu(), torch.ones(3).exp() * 3)
    assert [graph["fell_back"] for graph in torch.neuron.get_dynamo_metrics()] == [True, True]
    assert sum("is run operator by operator" in str(warning.message) for warning in caught) == 2


def test_a_graph_over_two_devices_can_be_run_eagerly(device: torch.device, second_device: torch.device) -> None:
    torch._dynamo.reset()
    torch.neuron.reset_dynamo_metrics()
    function = torch.compile(lambda x, y: (x + 1, y + 1), backend="neuron", options={"fallback_execution": True})
    with pytest.warns(UserWarning, match="can't span several neuron devices"):
        first, second = function(torch.ones(3, device=device), torch.ones(3, device=second_device))
    assert (first.device, second.device) == (device, second_device)
    assert first.tolist() == second.tolist() == [2.0] * 3
    assert [graph["fell_back"] for graph in torch.neuron.get_dynamo_metrics()] == [True]
