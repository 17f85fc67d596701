"""From what Inductor compiled to what the user's program calls: one Launch a graph."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch._inductor.cudagraph_utils import CUDAGraphPolicy
from torch._inductor.output_code import CompiledFxGraph, OutputCode

from .translate import Layout, Program, Untranslatable, python_program, translate

# How the layout travels through Inductor's keyword arguments into the cached artifact, and into its cache key.
LAYOUT_KEY = "neuron_layout"

_graph_numbers = itertools.count()


@dataclass
class NeuronGraph(OutputCode):
    """A compiled graph on neuron. Called with the list of its inputs, which it empties; returns the list of results."""

    compiled: CompiledFxGraph
    program: Any
    python_reason: str | None

    def __post_init__(self) -> None:
        # AOTAutograd's cache keeps the key of the artifact behind it.
        self._fx_graph_cache_key = self.compiled._fx_graph_cache_key
        self._fx_graph_cache_debug_lines = self.compiled._fx_graph_cache_debug_lines
        self._time_taken_ns = self.compiled._time_taken_ns
        self._boxed_call = True
        self._call: Callable[[list[Any]], list[Any]] = self.program

    def __call__(self, inputs: Sequence[Any]) -> Any:
        return self._call(inputs if isinstance(inputs, list) else list(inputs))

    def __getattr__(self, name: str) -> Any:
        # AOTAutograd and Inductor's tests read what a CompiledFxGraph knows (mutated inputs, guards, source code).
        if name.startswith("__") or name == "compiled":
            raise AttributeError(name)
        return getattr(self.compiled, name)

    def post_compile(self, *args: Any, **kwargs: Any) -> None:
        self.compiled.post_compile(*args, **kwargs)

    def prepare_for_serialization(self) -> None:
        raise NotImplementedError("a launched graph is cached as the artifact it was made from")

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        self.compiled.set_triton_bundle(triton_bundle)


def make_launch(compiled: CompiledFxGraph, layout: Layout, name: str) -> NeuronGraph:
    """The compiled graph as a Launch."""
    written = _written_tensors(compiled, layout)
    reason = None
    try:
        program = translate(compiled.source_code, _module_of(compiled), name, layout, written)
    except Untranslatable as untranslatable:
        reason = str(untranslatable)
        program = _as_python(compiled, layout, name, written)
    return NeuronGraph(compiled, program.build(), reason)


def _as_python(compiled: CompiledFxGraph, layout: Layout, name: str, written: list[int]) -> Program:
    call = compiled.current_callable
    assert call is not None
    return python_program(call, name, layout, written)


def _module_of(compiled: CompiledFxGraph) -> ModuleType:
    """The module that the generated code was loaded as."""
    runner = compiled.compiled_fn_runner
    if runner is None:
        raise Untranslatable("generated code without a runner")
    return sys.modules[type(runner).__module__] if type(runner).__module__ in sys.modules else _namespace(runner)


def _namespace(runner: Any) -> ModuleType:
    module = ModuleType("generated")
    module.__dict__.update(type(runner).call.__globals__)
    return module


def _written_tensors(compiled: CompiledFxGraph, layout: Layout) -> list[int]:
    """Numbers, among the tensor inputs, of those that the graph writes."""
    return [layout.inputs[:index].count("t") for index in sorted(compiled.mutated_input_idxs)]


class LaunchPolicy(CUDAGraphPolicy):
    """Inductor calls it with each artifact, compiled or from a cache, just before AOTAutograd gets it."""

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name

    def wrap_output(self, output_code: Any) -> Any:
        if not isinstance(output_code, CompiledFxGraph):
            return output_code
        layout = output_code.fx_kwargs.get(LAYOUT_KEY)  # type: ignore[attr-defined]
        if layout is None:
            return output_code
        kind = "backward" if output_code.fx_kwargs["is_backward"] else "forward"
        name = f"{self.model_name}_{kind}_{next(_graph_numbers)}"
        return make_launch(output_code, Layout(*layout), name)
