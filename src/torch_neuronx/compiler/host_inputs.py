"""Functions that are compiled for neuron and called with CPU tensors only: the inputs are copied to the device."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule
from torch.fx.node import map_aggregate
from torch.utils._device import _device_constructors

from torch_neuronx.config import read_bool

from .retarget import fake_on

NO_COPY_VARIABLE = "TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY"


def all_on_host(gm: GraphModule, example_inputs: Sequence[Any]) -> bool:
    """True when the graph has tensors among its inputs, and none of its tensors is on neuron."""
    inputs = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    return bool(inputs) and all(value.device.type == "cpu" for value in inputs) and not _names_neuron(gm)


def is_about_neuron(gm: Any, example_inputs: Sequence[Any]) -> bool:
    """True when an input of the graph is a neuron tensor, or the graph names the device."""
    if any(isinstance(value, torch.Tensor) and value.device.type == "neuron" for value in example_inputs):
        return True
    return isinstance(gm, GraphModule) and _names_neuron(gm)


def _names_neuron(gm: GraphModule) -> bool:
    found = []

    def look(value: Any) -> Any:
        if isinstance(value, torch.device | str) and str(value).startswith("neuron"):
            found.append(value)
        return value

    for node in gm.graph.nodes:
        map_aggregate((node.args, node.kwargs), look)
    return bool(found)


def refuse_or_device(example_inputs: Sequence[Any]) -> torch.device:
    """The device that the inputs go to.

    Raises:
        RuntimeError: TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY forbids the copy; the message names the first input.
    """
    if read_bool(os.environ, NO_COPY_VARIABLE):
        for index, value in enumerate(example_inputs):
            if isinstance(value, torch.Tensor):
                raise RuntimeError(
                    f"input {index} of a function compiled for neuron is on {value.device}; move it to neuron, or "
                    f"unset {NO_COPY_VARIABLE} to have it copied"
                )
    return torch.device("neuron", torch.neuron.current_device())  # type: ignore[attr-defined]


def move_graph(gm: GraphModule, example_inputs: Sequence[Any], device: torch.device) -> list[Any]:
    """Makes the graph one on `device`, in place, and returns its example inputs there."""
    constructors = _device_constructors()
    for node in gm.graph.nodes:
        moved = (node.args, node.kwargs)
        moved = map_aggregate(
            moved, lambda value: device if isinstance(value, torch.device) and value.type == "cpu" else value
        )
        node.args, node.kwargs = moved
        if node.target in constructors and "device" not in node.kwargs:
            node.kwargs = {**node.kwargs, "device": device}
        for key in ("example_value", "val"):
            if isinstance(node.meta.get(key), FakeTensor):
                node.meta[key] = fake_on(node.meta[key], device)
    gm.recompile()
    return [_example_on(value, device) for value in example_inputs]


def _example_on(value: Any, device: torch.device) -> Any:
    if isinstance(value, FakeTensor):
        return fake_on(value, device)
    return value.to(device) if isinstance(value, torch.Tensor) else value


def with_copied_inputs(compiled: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """`compiled`, called with CPU tensors. What it writes to its inputs is copied back; results stay on the device."""

    def call(*inputs: Any) -> Any:
        moved = [value.to(device) if isinstance(value, torch.Tensor) else value for value in inputs]
        versions = [value._version if isinstance(value, torch.Tensor) else 0 for value in moved]
        results = compiled(*moved)
        for original, copy, version in zip(inputs, moved, versions, strict=True):
            if isinstance(copy, torch.Tensor) and copy._version != version:
                with torch.no_grad():
                    original.copy_(copy)
        return results

    return call
