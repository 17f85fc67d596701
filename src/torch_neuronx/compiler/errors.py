"""Errors of compilation, and where in the user's program a graph comes from."""

from __future__ import annotations

from torch.fx import GraphModule


class CompilationError(RuntimeError):
    """A graph could not be compiled. The message ends with the lines of the program that the graph stands for."""


def location_of(gm: GraphModule) -> str:
    """The user's lines behind the first and the last operator of a graph, as text."""
    traces = [trace for node in gm.graph.nodes if (trace := node.meta.get("stack_trace"))]
    if not traces:
        return "The graph has no line of the user's program on record."
    first, last = (_innermost(trace) for trace in (traces[0], traces[-1]))
    return f"The graph begins at {first}" + (f" and ends at {last}." if last != first else ".")


def _innermost(trace: str) -> str:
    frames = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    return frames[-1] if frames else trace.strip().splitlines()[-1]
