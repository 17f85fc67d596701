"""Lowering of PyTorch's `flex_attention_backward` operator to the kernel in kernels/backward.h."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.codegen.cpp_utils import DTYPE_TO_CPP
from torch._inductor.kernel.flex.common import infer_dense_strides
from torch._inductor.lowering import full_like, lowerings
from torch._inductor.virtualized import V

from . import tile_code
from .inputs import (
    BlockMaskInputs,
    Modifications,
    check_dtypes,
    check_kernel_options,
    common_arguments,
    lambda_over_tile,
    realize,
    realize_rows,
)
from .template import FlexTemplate, KernelWriter, fixed_layout

aten = torch.ops.aten
_TABLES = ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices")
# The joint graph's arguments before captured tensors, and which of its results are theirs.
_JOINT_ARGUMENTS = (tile_code.SCORE, *tile_code.POSITIONS, tile_code.GRAD)
_GRAD_ARGUMENT = len(_JOINT_ARGUMENTS) - 1
_FIRST_CAPTURED_RESULT = len(_JOINT_ARGUMENTS) - 1


class _Joint:
    """The derivative of score_mod as code for tiles."""

    def __init__(self, modifications: Modifications, graph_module: torch.fx.GraphModule) -> None:
        self._shape = modifications.shape
        graph_module.graph.eliminate_dead_code()
        grad_is_unchanged = tile_code.is_identity(graph_module, _GRAD_ARGUMENT)
        results = modifications.lower(graph_module, _JOINT_ARGUMENTS, modifications.score_captured)
        self._grad = None if grad_is_unchanged else results[0]
        # By position among the captured values of score_mod.
        self.captured: dict[int, tile_code.CapturedGradient] = {}
        for i, result in enumerate(results[_FIRST_CAPTURED_RESULT:]):
            if isinstance(result, tile_code.CapturedGradient):
                self.captured[i] = result
            elif isinstance(result, ir.TensorBox):
                self.captured[i] = tile_code.captured_scalar_gradient(result, self._shape)

    def code(self, writer: KernelWriter) -> str:
        """A C++ expression: a function over a tile's gradients, or flex::None if it would do nothing."""
        if self._grad is None and not self.captured:
            return "flex::None{}"
        code = tile_code.TileCode(self._shape, writer.kernel.args)
        parts = []
        for i, gradient in enumerate(self.captured.values()):
            name = f"buf_captured_{i}"
            parts.append(f"{{\nfloat* {name} = captured[{i}];\n{code.add(name, gradient)}\n}}")
        if self._grad is not None:
            parts.append(f"{{\nfloat* {tile_code.OUT} = grad;\n{code.store(self._grad)}\n}}")
        return lambda_over_tile("const float* score, float* grad", "", "\n".join(parts), ", float* const* captured")


def lower_backward(
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    grad_out: Any,
    grad_logsumexp: Any,
    score_graph: Any,
    joint_graph: Any,
    block_mask: Any,
    scale: float,
    kernel_options: dict[str, Any],
    score_captured: Any,
    mask_captured: Any,
) -> tuple[Any, Any, Any, tuple[Any, ...]]:
    """Adds the kernel to the graph; returns the gradients of query, key, value and of what score_mod captures."""
    check_dtypes(query, key, value)
    check_kernel_options(kernel_options)
    device = query.get_device()
    mask = BlockMaskInputs.of(block_mask)
    modifications = Modifications(device, score_graph, mask.mask_graph, score_captured, mask_captured)
    joint = _Joint(modifications, joint_graph.graph_module)
    if grad_out is None:
        grad_out = full_like(out, 0)
    query, key, value, out, grad_out = (realize_rows(x) for x in (query, key, value, out, grad_out))
    logsumexp = realize(ir.ExternKernel.require_contiguous(logsumexp))
    if grad_logsumexp is not None:
        grad_logsumexp = realize(ir.ExternKernel.require_contiguous(grad_logsumexp))
    batch, heads, query_length, features = query.get_size()
    key_batch, key_heads, key_length, value_features = value.get_size()
    mask.check_covers(batch, heads, query_length, key_length)

    outputs = {
        name: fixed_layout(device, like.get_dtype(), size, infer_dense_strides(size, like.get_stride()))
        for name, size, like in (
            ("grad_query", query.get_size(), query),
            ("grad_key", [batch, key_heads, key_length, features], key),
            ("grad_value", [batch, key_heads, key_length, value_features], value),
        )
    }
    captured_results = {}
    for i in joint.captured:
        tensor = modifications.score_captured[i]
        size = tensor.get_size()
        captured_results[i] = f"grad_captured_{i}"
        outputs[captured_results[i]] = fixed_layout(
            device, tensor.get_dtype(), size, ir.FlexibleLayout.contiguous_strides(size)
        )

    def store_captured(writer: KernelWriter) -> str:
        cases = [
            f"if (tensor == {i} && {writer.pointer(name)} != nullptr) {{ {writer.pointer(name)}[element] = "
            f"static_cast<{DTYPE_TO_CPP[outputs[name].dtype]}>(sum); }}"
            for i, name in enumerate(captured_results.values())
            if writer.has(name)
        ]
        return "[&](int64_t tensor, int64_t element, double sum) {\n" + "\n".join(cases) + "\n}"

    def write(writer: KernelWriter) -> str:
        number = writer.number
        sizes = [f"{number(ir.sympy_product(outputs[name].size))}" for name in captured_results.values()]
        return f"""
  using scalar_t = {writer.dtype("query")};
  const auto score_mod = {modifications.score_mod(writer)};
  const auto mask_mod = {modifications.mask_mod(writer)};
  const auto joint_mod = {joint.code(writer)};
  const auto store_captured = {store_captured(writer)};
  const std::vector<int64_t> captured_sizes{{{", ".join(sizes)}}};
  flex::BackwardArguments<scalar_t> arguments;
  {common_arguments(writer, mask, _TABLES, query, value, scale)}
  arguments.out = {writer.tensor("out")};
  arguments.grad_out = {writer.tensor("grad_out")};
  arguments.logsumexp = {writer.pointer("logsumexp")};
  arguments.grad_logsumexp = {writer.pointer("grad_logsumexp")};
  arguments.grad_query = {writer.tensor("grad_query")};
  arguments.grad_key = {writer.tensor("grad_key")};
  arguments.grad_value = {writer.tensor("grad_value")};
  arguments.captured_sizes = captured_sizes.data();
  arguments.captured_count = captured_sizes.size();
  flex::backward(arguments, score_mod, mask_mod, joint_mod, store_captured);
"""

    inputs = {
        "query": query,
        "key": key,
        "value": value,
        "out": out,
        "grad_out": grad_out,
        "logsumexp": logsumexp,
        "grad_logsumexp": grad_logsumexp,
        **mask.realized(_TABLES),
    }
    template = FlexTemplate(
        "flex_attention_backward", inputs, modifications.captured_tensors, outputs, ("tiles", "backward"), write
    )
    results = template.create()
    grad_key, grad_value = results["grad_key"], results["grad_value"]
    if not V.graph.sizevars.evaluate_expr(sympy.Eq(batch, key_batch)):
        grad_key, grad_value = (lowerings[aten.sum](x, axis=0, keepdims=True) for x in (grad_key, grad_value))
    captured = tuple(
        results[captured_results[i]] if i in captured_results else None
        for i in range(len(modifications.score_captured))
    )
    return results["grad_query"], grad_key, grad_value, captured
