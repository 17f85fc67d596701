"""The Dynamo backend `neuron`: AOTAutograd on neuron tensors, Inductor's C++ for the host, one Launch a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.output_code import OutputCode
from torch.fx import GraphModule

from .launch import LAYOUT_KEY, LaunchPolicy
from .options import Options, parse_options
from .retarget import neuron_device_index, retarget


def neuron(
    gm: GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None, options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """Compiles a graph that Dynamo captured; `torch.compile(..., backend="neuron")` calls it.

    Args:
        gm: the graph, on neuron tensors.
        example_inputs: its inputs: tensors and integers, fake or real.
        mode: one of torch.compile's modes; see docs/compile.md.
        options: the dict that the user gave to torch.compile; see docs/compile.md.

    Returns:
        a function of the graph's inputs that gives the tuple of its results.

    Raises:
        ValueError: an unknown mode or option; the message names the known ones.
    """
    parsed = parse_options(mode, options)
    return _compile(gm, example_inputs, parsed)


def _compile(gm: GraphModule, example_inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    patches = {**options.inductor, "cudagraph_policy": LaunchPolicy(options.model_name)}
    return compile_fx(gm, example_inputs, inner_compile=compile_on_host, config_patches=patches)  # type: ignore[return-value]


def compile_on_host(gm: GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> OutputCode:
    """Compiles a graph that AOTAutograd made, forward or backward: what Inductor calls `inner_compile`."""
    device = neuron_device_index(gm)
    layout = (_input_kinds(gm), _result_kinds(gm), device)
    host_gm, host_inputs = retarget(gm, example_inputs)
    return compile_fx_inner(host_gm, host_inputs, **{**kwargs, LAYOUT_KEY: layout})  # type: ignore[arg-type]


def _input_kinds(gm: GraphModule) -> str:
    values = [node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder"]
    return "".join("t" if isinstance(value, torch.Tensor) else "i" for value in values)


def _result_kinds(gm: GraphModule) -> str:
    (output,) = gm.graph.find_nodes(op="output")
    return "".join(map(_result_kind, output.args[0]))


def _result_kind(value: Any) -> str:
    if value is None:
        return "n"
    if isinstance(value, torch.fx.Node):
        value = value.meta.get("val")
    if isinstance(value, torch.Tensor):
        return "h" if value.device.type == "cpu" else "t"
    return "i"
