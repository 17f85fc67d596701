"""A device-true FX graph, made into the one that the host compiles: the same graph on `cpu`.

Dynamo and AOTAutograd trace on neuron tensors, so all that users see (guards, logs, exported graphs) says neuron. Only
the copy made here, which Inductor turns into C++, says cpu. Its tensors are the host's view of the same memory.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from . import missing_on_host

HOST = torch.device("cpu")
DEVICE_TYPE = "neuron"

# What moves a tensor to another device, in graphs after AOTAutograd.
MOVES = (torch.ops.aten._to_copy.default, torch.ops.prims.device_put.default)


def fake_on(value: FakeTensor, device: torch.device) -> FakeTensor:
    """A fake tensor like `value`, over the same storage, that says it is on `device`."""
    with in_kernel_invocation_manager(value.fake_mode):
        return FakeTensor(value.fake_mode, value, device, requires_grad=value.requires_grad)


def host_view(value: Any) -> Any:
    """The same fake tensor on the host: equal sizes and strides, and the same storage, which tells aliases apart.

    Anything that is not a fake neuron tensor is returned as it is.
    """
    if not isinstance(value, FakeTensor) or value.fake_device.type != DEVICE_TYPE:
        return value
    return fake_on(value, HOST)


class _Memo:
    """Retargets metadata; one fake tensor stays one."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[Any, Any]] = {}

    def tensor(self, value: Any) -> Any:
        if not isinstance(value, FakeTensor):
            return value
        found = self.seen.get(id(value))
        if found is None:
            found = self.seen[id(value)] = (value, host_view(value))  # holds `value`, so that its id stays its own
        return found[1]

    def constant(self, value: Any) -> Any:
        """Of a real neuron tensor a copy on the host: a parameter stays one, and tied weights stay one tensor."""
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor) or value.device.type != DEVICE_TYPE:
            return value
        found = self.seen.get(id(value))
        if found is None:
            copied = value.detach().cpu()
            if isinstance(value, torch.nn.Parameter):
                copied = torch.nn.Parameter(copied, requires_grad=value.requires_grad)
            found = self.seen[id(value)] = (value, copied)
        return found[1]

    def tree(self, value: Any) -> Any:
        return pytree.tree_map(self.tensor, value)


def device_of(node: Node) -> torch.device | None:
    """The device of a node's (first) tensor result."""
    for value in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(value, torch.Tensor):
            return value.device
    return None


def neuron_device_index(gm: GraphModule) -> int:
    """The index of the neuron device that the graph is about; -1 when it has no neuron tensor.

    Raises:
        NotImplementedError: the graph spans several neuron devices.
    """
    devices = [device for node in gm.graph.nodes if (device := device_of(node)) is not None]
    found = {device.index for device in devices if device.type == DEVICE_TYPE}
    if len(found) > 1:
        raise NotImplementedError(
            f"a compiled graph can't span several neuron devices, but it has tensors on {sorted(found)}; compile the "
            "part on each device by itself (module.compile()), or put torch._dynamo.graph_break() between them"
        )
    return found.pop() if found else -1


# Steps work on the host's view of a storage, so what gives a tensor another storage would be lost.
STORAGE_CHANGES = ("inductor::resize_storage_bytes_", "aten::set_", "fsdp::copy_")


def refuse_storage_changes(gm: GraphModule) -> None:
    """Raises NotImplementedError for a graph that resizes or replaces the storage of an input."""
    for node in gm.graph.nodes:
        name = getattr(getattr(node.target, "_schema", None), "name", "")
        if name in STORAGE_CHANGES:
            raise NotImplementedError(f"a compiled graph can't contain {name}, which changes a tensor's storage")


def retarget(gm: GraphModule, example_inputs: Sequence[Any]) -> tuple[GraphModule, list[Any]]:
    """A copy of the graph, and of its example inputs, with each neuron device replaced by the CPU.

    Moves between the two become copies within the host: the results of a graph must not alias its inputs where the
    user's program made a copy.
    """
    memo = _Memo()
    crossing = {node.name for node in gm.graph.nodes if node.target in MOVES and _crosses(node)}
    result = _copy_on_host(gm, memo)
    for node in list(result.graph.nodes):
        if node.name in crossing:
            _copy_instead(result, node)
    missing_on_host.rewrite(result)
    result.recompile()
    return result, [memo.tensor(value) for value in example_inputs]


def _crosses(node: Node) -> bool:
    source = node.args[0]
    return isinstance(source, Node) and device_of(source) != device_of(node)


def _copy_instead(gm: GraphModule, node: Node) -> None:
    source = node.args[0]
    assert isinstance(source, Node)
    with gm.graph.inserting_before(node):
        copied = gm.graph.call_function(torch.ops.aten.clone.default, (source,))
        copied.meta = {**node.meta, "val": source.meta.get("val")}
    node.args = (copied, *node.args[1:])


def _copy_on_host(gm: GraphModule, memo: _Memo) -> GraphModule:
    result = GraphModule(gm, copy.deepcopy(gm.graph))  # attributes are shared with `gm`, the nodes are not
    # Of buffers that a program ahead of time changes, what they hold at its start is kept here.
    result.meta = {key: memo.constant(value) for key, value in gm.meta.items()}
    for node in result.graph.nodes:
        node.args = _on_host(node.args)
        node.kwargs = _on_host(node.kwargs)
        for key in ("val", "example_value", "eager_input_vals"):
            if key in node.meta:
                node.meta[key] = memo.tree(node.meta[key])
        if node.op == "get_attr":
            _attribute_on_host(result, node.target, memo)
    result.recompile()
    return result


def _on_host(arguments: Any) -> Any:
    return map_aggregate(
        arguments, lambda value: HOST if isinstance(value, torch.device) and value.type == DEVICE_TYPE else value
    )


def _attribute_on_host(gm: GraphModule, target: Any, memo: _Memo) -> None:
    """Constants and the graphs of higher-order operators. The module's attributes are its own only at the top."""
    owner: torch.nn.Module = gm
    *path, name = str(target).split(".")
    for step in path:
        owner = getattr(owner, step)
    value = getattr(owner, name)
    if isinstance(value, GraphModule):
        setattr(owner, name, _copy_on_host(value, memo))
    elif isinstance(value, FakeTensor):
        setattr(owner, name, memo.tensor(value))
    elif isinstance(value, torch.Tensor):
        setattr(owner, name, memo.constant(value))
