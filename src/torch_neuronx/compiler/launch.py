"""From what Inductor compiled to what the user's program calls: one Launch a graph."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

from torch._dynamo.utils import counters
from torch._inductor.cudagraph_utils import CUDAGraphPolicy
from torch._inductor.output_code import CompiledFxGraph, OutputCode

from .debug_directory import DebugFiles
from .metrics import GraphMetrics, next_graph_id, record
from .translate import Layout, Untranslatable, python_program, translate

log = logging.getLogger(__name__)


class GraphFacts(NamedTuple):
    """What the artifact in the cache must know of the neuron graph that it was made from.

    Travels through Inductor's keyword arguments, which are part of the artifact and of its cache key.
    """

    inputs: str
    results: str
    device: int
    ops: int
    input_bytes: int | None
    output_bytes: int | None
    random: bool


FACTS_KEY = "neuron_graph"


@dataclass
class NeuronGraph(OutputCode):
    """A compiled graph on neuron. Called with the list of its inputs, which it empties; returns the list of results."""

    compiled: CompiledFxGraph
    program: Any
    python_reason: str | None
    steps: list[Any]

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


def make_launch(compiled: CompiledFxGraph, facts: GraphFacts, name: str) -> NeuronGraph:
    """The compiled graph as a Launch."""
    layout = Layout(facts.inputs, facts.results, facts.device)
    written = _written_tensors(compiled, layout)
    try:
        translated = translate(compiled.source_code, _module_of(compiled), name, layout, written)
        return NeuronGraph(compiled, translated.build(), None, translated.steps)
    except Untranslatable as untranslatable:
        call = compiled.current_callable
        assert call is not None
        program = python_program(call, name, layout, written, facts.random).build()
        return NeuronGraph(compiled, program, str(untranslatable), [])


def _module_of(compiled: CompiledFxGraph) -> ModuleType:
    """The names that the generated code sees."""
    runner = compiled.compiled_fn_runner
    if runner is None:
        raise Untranslatable("generated code without a runner")
    module = ModuleType("generated")
    vars(module).update(type(runner).call.__globals__)
    return module


def _written_tensors(compiled: CompiledFxGraph, layout: Layout) -> list[int]:
    """Numbers, among the tensor inputs, of those that the graph writes."""
    return [layout.inputs[:index].count("t") for index in sorted(compiled.mutated_input_idxs)]


class LaunchPolicy(CUDAGraphPolicy):
    """Inductor calls it with each artifact, compiled or from a cache, just before AOTAutograd gets it."""

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.debug_files = DebugFiles()
        self._started = time.perf_counter()
        self._hits = counters["inductor"]["fxgraph_cache_hit"]
        self._misses = counters["inductor"]["fxgraph_cache_miss"]

    def name(self, is_backward: bool, graph_id: int) -> str:
        return f"{self.model_name}_{'backward' if is_backward else 'forward'}_{graph_id}"

    def wrap_output(self, output_code: Any) -> Any:
        if not isinstance(output_code, CompiledFxGraph):
            return output_code
        facts = output_code.fx_kwargs.get(FACTS_KEY)
        if not isinstance(facts, GraphFacts):
            raise RuntimeError("an artifact from the cache was not compiled for neuron")
        graph_id = next_graph_id()
        launched = make_launch(output_code, facts, self.name(output_code.fx_kwargs["is_backward"], graph_id))
        self._record(graph_id, facts, launched)
        self.debug_files.write(launched.program.name, output_code.source_code, launched.steps)
        return launched

    def start(self) -> None:
        """Call when the compilation of a graph begins: what its record says counts from here."""
        self._started = time.perf_counter()
        self._hits = counters["inductor"]["fxgraph_cache_hit"]
        self._misses = counters["inductor"]["fxgraph_cache_miss"]

    def _record(self, graph_id: int, facts: GraphFacts, launched: NeuronGraph) -> None:
        now = time.perf_counter()
        hit = counters["inductor"]["fxgraph_cache_hit"] > self._hits
        miss = counters["inductor"]["fxgraph_cache_miss"] > self._misses
        cache = "hit" if hit else "miss" if miss else "bypass"
        # From AOTAutograd's cache, forward and backward are found before the first is recorded: each takes one hit.
        self._hits += hit
        self._misses += miss and not hit
        log.info(
            "%s: %d operators, %.2f s, cache %s, %s",
            launched.program.name,
            facts.ops,
            now - self._started,
            cache,
            f"through Python ({launched.python_reason})" if launched.python_reason else f"{len(launched.steps)} steps",
        )
        record(
            GraphMetrics(
                graph_id=graph_id,
                name=launched.program.name,
                ops=facts.ops,
                input_bytes=facts.input_bytes,
                output_bytes=facts.output_bytes,
                compile_seconds=now - self._started,
                cache=cache,
                python_reason=launched.python_reason,
                fell_back=False,
                timestamp=time.time(),
                device=facts.device,
            )
        )
        self._started = now
