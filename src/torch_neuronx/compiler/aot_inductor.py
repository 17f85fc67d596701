"""AOTInductor for neuron: an exported program, compiled for the host, in a package that neuron tensors are given to.

What loads and calls a package is in csrc/graph/aot_package.cpp.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.codecache import get_device_information
from torch._inductor.compile_fx import compile_fx_inner
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from . import flex_attention
from .cache_directory import use_cache_directory
from .errors import CompilationError, location_of
from .progress import progress
from .random_operators import draws, is_random
from .retarget import DEVICE_TYPE, neuron_device_index, refuse_storage_changes, retarget

# The entry of a package's metadata that the loader reads: name, whether shapes depend on data, and the letters of
# inputs and results.
FACTS_KEY = "neuron_graph"


def compile_package_files(
    original: Callable[..., Any], gm: GraphModule, example_inputs: Sequence[Any], config_patches: dict[str, Any] | None
) -> list[Any]:
    """Compiles an exported program on neuron tensors; what `torch._inductor.compile_fx.compile_fx_aot` does for it.

    Args:
        original: PyTorch's compile_fx_aot.
        gm: the program as a graph that returns a tuple.
        example_inputs: neuron tensors, and None for what is no tensor.
        config_patches: Inductor's options.

    Returns:
        paths of the files of the package, and weights.

    Raises:
        NotImplementedError: the package is wanted as a plain library.
        CompilationError: the program can't be compiled; the message says where it comes from.
    """
    settings = config_patches or {}
    if not settings.get("aot_inductor.package", config.aot_inductor.package):
        raise NotImplementedError(
            "AOTInductor for neuron makes packages: call torch._inductor.aoti_compile_and_package(exported_program), "
            "or give aot_compile the option aot_inductor.package"
        )
    use_cache_directory()
    facts: list[str] = []
    inner = functools.partial(_compile_on_host, facts=facts)
    files: list[Any] = original(gm, example_inputs, inner, config_patches)
    (found,) = facts
    for file in files:
        if isinstance(file, str) and file.endswith("_metadata.json"):
            _mark(Path(file), found)
    return files


def _mark(path: Path, facts: str) -> None:
    """Makes the metadata of a package say that it is for neuron."""
    metadata = json.loads(path.read_text())
    metadata.update(get_device_information(DEVICE_TYPE), AOTI_DEVICE_KEY=DEVICE_TYPE)
    metadata[FACTS_KEY] = facts
    path.write_text(json.dumps(metadata))


def _compile_on_host(gm: GraphModule, example_inputs: Sequence[Any], *, facts: list[str], **kwargs: Any) -> Any:
    try:
        refuse_storage_changes(gm)
        neuron_device_index(gm)
        _refuse_random_operators(gm)
        facts.append(_facts(gm))
        host_gm, host_inputs = retarget(gm, example_inputs)
        operators = sum(node.op == "call_function" for node in gm.graph.nodes)
        with progress("ahead of time", operators), flex_attention.lowerings():
            return compile_fx_inner(host_gm, host_inputs, **kwargs)
    except Exception as error:
        raise CompilationError(f"{error}\n{location_of(gm)}") from error


def _facts(gm: GraphModule) -> str:
    inputs = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
    (output,) = gm.graph.find_nodes(op="output")
    results = [value.meta.get("val") if isinstance(value, Node) else value for value in output.args[0]]
    for value in results:
        if not isinstance(value, torch.Tensor):
            raise NotImplementedError(f"AOTInductor for neuron: a result is {type(value).__name__}, not a tensor")
    name = config.aot_inductor.model_name_for_generated_files or "aot_inductor_model"
    data_dependent = any(free_unbacked_symbols(value) for value in results)
    return f"{name} {int(data_dependent)} {_letters(inputs)} {_letters(results)}"


def _letters(values: Sequence[Any]) -> str:
    """For each tensor, t if it lies on neuron and h if it lies on the host."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return "".join("h" if value.device.type == "cpu" else "t" for value in tensors) or "-"


def _refuse_random_operators(gm: GraphModule) -> None:
    for node in gm.graph.nodes:
        if is_random(node.target) and draws(node.target, node.args, node.kwargs):
            raise NotImplementedError(
                f"AOTInductor for neuron: {node.target} would draw from the host's generator, not from the device's. "
                "Export the module in eval mode, pass random numbers as an input, or use torch.compile"
            )
