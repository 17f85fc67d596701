"""What both lowerings do with the arguments of PyTorch's FlexAttention operators before they add a kernel."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.kernel.flex.common import contiguous_last_dim, freeze_irnodes, maybe_realize
from torch._inductor.kernel.flex.flex_flash_attention import is_trivial_mask_graph
from torch._inductor.lowering import to_dtype
from torch._inductor.virtualized import V
from torch.nn.attention.flex_attention import FlexKernelOptions

from . import tile_code
from .template import KernelWriter

SUPPORTED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Set by flex_attention() itself.
_INTERNAL_OPTIONS = {"OUTPUT_LOGSUMEXP", "OUTPUT_MAX"}


def check_dtypes(query: Any, key: Any, value: Any) -> None:
    """Raises for queries, keys and values of different or unsupported dtypes."""
    dtypes = [x.get_dtype() for x in (query, key, value)]
    if len(set(dtypes)) > 1:
        names = ", ".join(str(dtype) for dtype in dtypes)
        raise ValueError(f"FlexAttention: query, key and value must have one dtype, got {names}")
    if dtypes[0] not in SUPPORTED_DTYPES:
        raise NotImplementedError(
            f"FlexAttention: compiled kernels take float32, bfloat16 and float16, not {dtypes[0]}"
        )


def check_kernel_options(options: dict[str, Any]) -> None:
    """Raises for options that nobody knows, or that ask for kernels this device doesn't have.

    Options that tune Triton kernels are accepted and have no effect.
    """
    known = set(typing.get_type_hints(FlexKernelOptions)) | _INTERNAL_OPTIONS
    known |= {f"{prefix}{name}" for name in known for prefix in ("fwd_", "bwd_")}
    unknown = sorted(set(options) - known)
    if unknown:
        raise ValueError(
            f"FlexAttention: unknown kernel_options {', '.join(unknown)}; known are {', '.join(sorted(known))}"
        )
    if options.get("BACKEND", "AUTO") == "FLASH":
        raise NotImplementedError("FlexAttention: BACKEND='FLASH' needs a CUDA device; use 'AUTO'")


@dataclasses.dataclass
class BlockMaskInputs:
    """A block mask as the operators carry it."""

    tables: dict[str, Any]
    query_block: int
    key_block: int
    mask_graph: Any

    @classmethod
    def of(cls, block_mask: Sequence[Any]) -> BlockMaskInputs:
        names = (
            *("query_length", "key_length"),
            *("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"),
            *("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"),
        )
        *_, query_block, key_block, mask_graph = block_mask
        guard = V.graph.sizevars.guard_int
        tables = dict(zip(names, block_mask, strict=False))
        return cls(tables, guard(query_block), guard(key_block), mask_graph)

    def realized(self, names: Sequence[str]) -> dict[str, ir.IRNode | None]:
        """Tables of these names as int32, realised."""
        return {name: realize(_as_int32(self.tables[name])) for name in names}

    def check_covers(self, batch: Any, heads: Any, query_length: Any, key_length: Any) -> None:
        """Raises if the mask is too small for the tensors, or has another batch size or number of heads."""
        size = self.tables["kv_indices"].get_size()
        evaluate = V.graph.sizevars.evaluate_expr
        for length, blocks, block, what in (
            (query_length, size[2], self.query_block, "query"),
            (key_length, size[3], self.key_block, "key"),
        ):
            if not evaluate(sympy.Le(length, sympy.Mul(blocks, block))):
                raise ValueError(
                    f"FlexAttention: the block mask covers {blocks} {what} blocks of {block}, the tensors have "
                    f"{length} positions; create it for this length"
                )
        for own, wanted, what in ((size[0], batch, "batch size"), (size[1], heads, "number of heads")):
            if not evaluate(sympy.Eq(own, 1)) and not evaluate(sympy.Eq(own, wanted)):
                raise ValueError(f"FlexAttention: the block mask's {what} is {own}; it must be 1 or {wanted}")


def _as_int32(table: Any) -> Any:
    return table if table is None or table.get_dtype() == torch.int32 else to_dtype(table, torch.int32)


def realize(node: Any) -> Any:
    """A tensor (or a list of some) in memory, with its layout decided; sizes and None stay as they are."""
    node = maybe_realize(node)
    freeze_irnodes(node)
    return node


def realize_rows(tensor: Any) -> Any:
    """A tensor in memory whose last dimension is contiguous."""
    return realize(contiguous_last_dim(realize(tensor)))


def _as_box(node: Any) -> Any:
    """What lowerings of single operators take, of a realised tensor or a size."""
    if not isinstance(node, ir.IRNode) or isinstance(node, ir.TensorBox):
        return node
    return ir.TensorBox.create(node) if isinstance(node, ir.Buffer) else ir.TensorBox(node)


class Modifications:
    """score_mod and mask_mod of one operator as code for tiles."""

    def __init__(
        self,
        device: torch.device,
        score_graph: Any,
        mask_graph: Any,
        score_captured: Sequence[Any],
        mask_captured: Sequence[Any],
    ) -> None:
        self.shape = tile_code.TileShape.create()
        self.device = device
        self.score_captured = realize(list(score_captured))
        self.mask_captured = realize(list(mask_captured))
        self._score = self._mask = None
        if not tile_code.is_identity(score_graph.graph_module, 0):
            names = (tile_code.SCORE, *tile_code.POSITIONS)
            self._score = self.lower(score_graph.graph_module, names, self.score_captured)
        if not is_trivial_mask_graph(mask_graph.graph_module):
            self._mask = self.lower(mask_graph.graph_module, tile_code.POSITIONS, self.mask_captured)

    def lower(self, graph_module: torch.fx.GraphModule, names: Sequence[str], captured: Sequence[Any]) -> Any:
        arguments = tile_code.scalar_arguments(self.shape, self.device, names)
        return tile_code.lower_graph(graph_module, [*arguments, *(_as_box(x) for x in captured)], self.shape)

    @property
    def captured_tensors(self) -> list[Any]:
        return [x for x in (*self.score_captured, *self.mask_captured) if isinstance(x, ir.IRNode)]

    def score_mod(self, writer: KernelWriter) -> str:
        """A C++ expression: a function that writes modified scores of a tile, or flex::None."""
        if self._score is None:
            return "flex::None{}"
        code = tile_code.TileCode(self.shape, writer.kernel.args).store(_only(self._score))
        return lambda_over_tile(f"const float* score, float* {tile_code.OUT}", "", code)

    def mask_mod(self, writer: KernelWriter) -> str:
        """A C++ expression: a function that overwrites hidden scores of a tile, or flex::None."""
        if self._mask is None:
            return "flex::None{}"
        code = tile_code.TileCode(self.shape, writer.kernel.args).store_where(_only(self._mask))
        return lambda_over_tile(f"float* {tile_code.OUT}", f"const float* score = {tile_code.OUT};", code)


def _only(outputs: Any) -> Any:
    return outputs[0] if isinstance(outputs, (list, tuple)) else outputs


def lambda_over_tile(first: str, prologue: str, code: str, last: str = "") -> str:
    """A C++ lambda with the parameters that kernels/*.h calls modifications with."""
    parameters = (
        f"{first}, int32_t batch_index, int32_t head_index, const int32_t* query_positions, "
        f"const int32_t* key_positions, int64_t queries, int64_t keys{last}"
    )
    scalars = "const int32_t* batch = &batch_index;\nconst int32_t* head = &head_index;"
    return f"[&]({parameters}) {{\n{scalars}\n{prologue}\n{code}\n}}"


def common_arguments(
    writer: KernelWriter, mask: BlockMaskInputs, tables: Sequence[str], query: Any, value: Any, scale: float
) -> str:
    """C++ that fills in flex::Attention, of which both kernels' arguments are made; `tables` as in BlockMaskInputs."""
    batch, heads, query_length, features = query.get_size()
    _, key_heads, key_length, value_features = value.get_size()
    count, index, full_count, full_index = tables
    fields = {
        "query": writer.tensor("query"),
        "key": writer.tensor("key"),
        "value": writer.tensor("value"),
        "batches": writer.number(batch),
        "heads": writer.number(heads),
        "heads_per_key_head": f"arguments.heads / {writer.number(key_heads)}",
        "query_length": writer.number(query_length),
        "key_length": writer.number(key_length),
        "features": writer.number(features),
        "value_features": writer.number(value_features),
        "partial": writer.table(count, index),
        "full": writer.table(full_count, full_index),
        "query_block": str(mask.query_block),
        "key_block": str(mask.key_block),
        "scale": repr(float(scale)),
    }
    return "\n  ".join(f"arguments.{name} = {code};" for name, code in fields.items())
