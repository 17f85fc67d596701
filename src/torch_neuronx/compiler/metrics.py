"""One record for each graph that was compiled, or loaded from a cache, in this process."""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass
from typing import Any


@dataclass
class GraphMetrics:
    """What is known of one compiled graph.

    Attributes:
        graph_id: number of the graph in this process, from 0.
        name: `<model_name>_<forward|backward>_<graph_id>`; also its name in traces.
        ops: operators in the graph, as AOTAutograd made it.
        input_bytes, output_bytes: of its tensors; None where a size is symbolic.
        compile_seconds: wall time from the graph to the callable; when it came from a cache, the time that took.
        cache: "hit", "miss", or "bypass" when the graph can't be cached or caches are off.
        python_reason: why the graph is called through Python instead of as steps of the core, or None.
        fell_back: the compilation failed and the graph is run operator by operator (`fallback_execution`).
        timestamp: seconds since the epoch, when it was ready.
        device: index of the neuron device; -1 when no tensor of the graph lies on one.
    """

    graph_id: int
    name: str
    ops: int
    input_bytes: int | None
    output_bytes: int | None
    compile_seconds: float
    cache: str
    python_reason: str | None
    fell_back: bool
    timestamp: float
    device: int


_lock = threading.Lock()
_records: list[GraphMetrics] = []
_next_id = 0


def next_graph_id() -> int:
    global _next_id
    with _lock:
        _next_id += 1
        return _next_id - 1


def record(metrics: GraphMetrics) -> None:
    with _lock:
        _records.append(metrics)


def get_dynamo_metrics() -> list[dict[str, Any]]:
    """One dict a compiled graph, oldest first, with the fields of GraphMetrics.

    Returns:
        a new list; changing it changes nothing here.
    """
    with _lock:
        return [dataclasses.asdict(metrics) for metrics in _records]


def reset_dynamo_metrics() -> None:
    """Forgets all records. Graph ids go on counting."""
    with _lock:
        _records.clear()
