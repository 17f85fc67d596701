"""Lowering of PyTorch's `flex_attention` operator to the kernel in kernels/forward.h."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.kernel.flex.common import infer_dense_strides

from .inputs import (
    BlockMaskInputs,
    Modifications,
    check_dtypes,
    check_kernel_options,
    common_arguments,
    realize_rows,
)
from .template import FlexTemplate, KernelWriter, fixed_layout

_TABLES = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


def lower_forward(
    query: Any,
    key: Any,
    value: Any,
    score_graph: Any,
    block_mask: Any,
    scale: float,
    kernel_options: dict[str, Any],
    score_captured: Any,
    mask_captured: Any,
) -> tuple[ir.TensorBox, ir.TensorBox, ir.TensorBox]:
    """Adds the kernel to the graph.

    Returns the result [B, Hq, L, Ev] in the query's dtype, and the logarithm of the sum and the largest score
    [B, Hq, L], float32, both in base 2.
    """
    check_dtypes(query, key, value)
    check_kernel_options(kernel_options)
    device = query.get_device()
    mask = BlockMaskInputs.of(block_mask)
    modifications = Modifications(device, score_graph, mask.mask_graph, score_captured, mask_captured)
    query, key, value = (realize_rows(x) for x in (query, key, value))
    batch, heads, query_length, _ = query.get_size()
    key_batch, _, key_length, value_features = value.get_size()
    mask.check_covers(batch, heads, query_length, key_length)

    out_size = [batch, heads, query_length, value_features]
    row_size = [batch, heads, query_length]
    row_stride = ir.FlexibleLayout.contiguous_strides(row_size)
    outputs = {
        "out": fixed_layout(device, query.get_dtype(), out_size, infer_dense_strides(out_size, query.get_stride())),
        "logsumexp": fixed_layout(device, torch.float32, row_size, row_stride),
        "max_scores": fixed_layout(device, torch.float32, row_size, row_stride),
    }

    def write(writer: KernelWriter) -> str:
        return f"""
  using scalar_t = {writer.dtype("query")};
  const auto score_mod = {modifications.score_mod(writer)};
  const auto mask_mod = {modifications.mask_mod(writer)};
  flex::ForwardArguments<scalar_t> arguments;
  {common_arguments(writer, mask, _TABLES, query, value, scale)}
  arguments.out = {writer.tensor("out")};
  arguments.logsumexp = {writer.pointer("logsumexp")};
  arguments.max_scores = {writer.pointer("max_scores")};
  arguments.key_batches = {writer.number(key_batch)};
  flex::forward(arguments, score_mod, mask_mod);
"""

    inputs = {"query": query, "key": key, "value": value, **mask.realized(_TABLES)}
    template = FlexTemplate(
        "flex_attention", inputs, modifications.captured_tensors, outputs, ("tiles", "forward"), write
    )
    results = template.create()
    return results["out"], results["logsumexp"], results["max_scores"]
