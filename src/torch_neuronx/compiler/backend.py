"""The Dynamo backend `neuron`: AOTAutograd on neuron tensors, Inductor's C++ for the host, one Launch a graph."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch.fx import GraphModule, Node

from . import flex_attention
from .cache_directory import compiler_version, disk_is_full, use_cache_directory, use_memory
from .device_interface import register_device_interface
from .errors import CompilationError, location_of
from .host_inputs import all_on_host, move_graph, refuse_or_device, with_copied_inputs
from .launch import FACTS_KEY, GraphFacts, LaunchPolicy
from .metrics import GraphMetrics, next_graph_id, record
from .options import Options, parse_options
from .progress import progress
from .random_operators import is_random
from .retarget import neuron_device_index, refuse_storage_changes, retarget

register_device_interface()

# Where we choose otherwise than Inductor. With convolutions in channels-last layout Inductor of torch 2.13 gives wrong
# gradients for a diffusers UNet, on the CPU, too: tests/models has it.
OWN_DEFAULTS = {"layout_optimization": False}


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
        CompilationError: the graph can't be compiled; the message says where it comes from.
    """
    parsed = parse_options(mode, options)
    if all_on_host(gm, example_inputs):
        device = refuse_or_device(example_inputs)
        moved = move_graph(gm, example_inputs, device)
        return with_copied_inputs(_compile(gm, moved, parsed), device)
    return _compile(gm, example_inputs, parsed)


def _compile(gm: GraphModule, example_inputs: Sequence[Any], parsed: Options) -> Callable[..., Any]:
    policy = LaunchPolicy(parsed.model_name)
    inner = functools.partial(compile_on_host, neuron_options=parsed, neuron_policy=policy)
    use_cache_directory()
    patches = {**OWN_DEFAULTS, **parsed.inductor, "cudagraph_policy": policy, "aot_inductor.metadata": _key(parsed)}
    return compile_fx(gm, example_inputs, inner_compile=inner, config_patches=patches)  # type: ignore[return-value]


def _key(parsed: Options) -> dict[str, str]:
    """For the keys of FX graph and AOTAutograd cache: a setting that Inductor hashes and does not use here."""
    return {**parsed.inductor.get("aot_inductor.metadata", {}), "torch_neuronx": compiler_version()}


def compile_on_host(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    neuron_options: Options,
    neuron_policy: LaunchPolicy,
    **kwargs: Any,
) -> Any:
    """Compiles a graph that AOTAutograd made, forward or backward: what Inductor calls `inner_compile`."""
    neuron_policy.start()
    facts = _facts(gm)
    try:
        refuse_storage_changes(gm)
        facts = facts._replace(device=neuron_device_index(gm))
        kwargs[FACTS_KEY] = facts
        neuron_policy.debug_files.graph("neuron_graph", gm)
        with progress("backward" if kwargs.get("is_backward") else "forward", facts.ops):
            try:
                return _compile_host_graph(gm, example_inputs, neuron_policy, kwargs)
            except Exception as error:
                if not disk_is_full(error):
                    raise
            use_memory()
            return _compile_host_graph(gm, example_inputs, neuron_policy, kwargs)
    except Exception as error:
        if not neuron_options.fall_back():
            raise CompilationError(f"{error}\n{location_of(gm)}") from error
        name = neuron_policy.name(kwargs.get("is_backward", False), graph_id := next_graph_id())
        warnings.warn(
            f"graph {name} failed to compile and is run operator by operator: {error}\n{location_of(gm)}", stacklevel=2
        )
        record(
            GraphMetrics(
                graph_id=graph_id,
                name=name,
                ops=facts.ops,
                input_bytes=facts.input_bytes,
                output_bytes=facts.output_bytes,
                compile_seconds=0.0,
                cache="bypass",
                python_reason=None,
                fell_back=True,
                timestamp=time.time(),
                device=facts.device,
            )
        )
        return make_boxed_func(gm.forward)


def _compile_host_graph(
    gm: GraphModule, example_inputs: Sequence[Any], policy: LaunchPolicy, kwargs: dict[str, Any]
) -> Any:
    host_gm, host_inputs = retarget(gm, example_inputs)
    policy.debug_files.graph("host_graph", host_gm)
    with flex_attention.lowerings():
        return compile_fx_inner(host_gm, host_inputs, **kwargs)


def _facts(gm: GraphModule) -> GraphFacts:
    """All but the device, which a graph that can't be compiled may not have one of."""
    inputs = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
    (output,) = gm.graph.find_nodes(op="output")
    results = [value.meta.get("val") if isinstance(value, Node) else value for value in output.args[0]]
    return GraphFacts(
        inputs="".join("t" if isinstance(value, torch.Tensor) else "i" for value in inputs),
        results="".join(map(_result_kind, results)),
        device=-1,
        ops=sum(node.op == "call_function" for node in gm.graph.nodes),
        input_bytes=_bytes(inputs),
        output_bytes=_bytes(results),
        random=any(is_random(node.target) for module in _graphs(gm) for node in module.graph.nodes),
    )


def _graphs(gm: GraphModule) -> list[GraphModule]:
    """The graph, and those of its higher-order operators."""
    return [module for module in gm.modules() if isinstance(module, GraphModule)]


def _result_kind(value: Any) -> str:
    if value is None:
        return "n"
    if isinstance(value, torch.Tensor):
        return "h" if value.device.type == "cpu" else "t"
    return "i"


def _bytes(values: Sequence[Any]) -> int | None:
    total = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            numel: Any = value.numel()
            if not isinstance(numel, int):
                return None
            total += numel * value.element_size()
    return total
