"""Operators that neuron takes and the CPU has no kernel for, rewritten in a graph for the host."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten


def rewrite(gm: GraphModule) -> None:
    """Changes the graph in place; its fake tensors are on the host already."""
    for node in list(gm.graph.nodes):
        if node.target is aten.histc.default:
            _count_integers_as_doubles(gm, node)


def _count_integers_as_doubles(gm: GraphModule, histogram: Node) -> None:
    """The CPU's histc is for floating point; doubles hold the integers that it is used for, and its counts, exactly."""
    source = histogram.args[0]
    assert isinstance(source, Node)
    dtype = source.meta["val"].dtype
    if dtype.is_floating_point:
        return
    with gm.graph.inserting_before(histogram):
        wide = _converted(gm, source, torch.float64)
    with gm.graph.inserting_after(histogram):
        narrow = _converted(gm, histogram, dtype)
    histogram.replace_all_uses_with(narrow, delete_user_cb=lambda user: user is not narrow)
    histogram.args = (wide, *histogram.args[1:])
    histogram.meta["val"] = histogram.meta["val"].to(torch.float64)


def _converted(gm: GraphModule, node: Node, dtype: torch.dtype) -> Any:
    converted = gm.graph.call_function(torch.ops.prims.convert_element_type.default, (node, dtype))
    converted.meta = {**node.meta, "val": node.meta["val"].to(dtype)}
    return converted
