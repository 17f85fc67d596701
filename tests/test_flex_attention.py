"""FlexAttention on neuron, compiled and eager; expected values come from plain attention in float64."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import (
    AuxOutput,
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)

Mod = Callable[..., Tensor]


def causal(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return q >= kv


def sliding_window(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return (q >= kv) & (q - kv < 50)


def prefix_lm(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return (kv < 70) | (q >= kv)


def leaves_rows_empty(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return (q >= kv) & (q < 150) & (q >= 9)


def differs_by_batch_and_head(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return (q >= kv + b) & (kv >= h * 3)


@pytest.fixture(autouse=True)
def start_over() -> Iterator[None]:
    """Dynamo counts the versions of flex_attention over all tests, and gives up after 8."""
    yield
    torch._dynamo.reset()


def compiled(dynamic: bool = False) -> Callable[..., Any]:
    return torch.compile(flex_attention, backend="neuron", fullgraph=True, dynamic=dynamic)


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Mod | None, mask_mod: Mod | None
) -> tuple[Tensor, Tensor]:
    """The result and the logarithm of the sum. Rows that see nothing give 0 and -inf."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    at = [torch.arange(n).view([-1 if i == j else 1 for j in range(4)]) for i, n in enumerate(sizes)]
    if score_mod is not None:
        scores = score_mod(scores, *at)
    if mask_mod is not None:
        scores = torch.where(mask_mod(*at), scores, -math.inf)
    logsumexp = torch.logsumexp(scores, -1)
    reference = torch.where(logsumexp == -math.inf, 0.0, logsumexp)
    return torch.exp(scores - reference[..., None]) @ value, logsumexp


@dataclasses.dataclass
class Case:
    """One attention. `score` makes a score_mod of what it captures, so that it can be made on the host too.

    What it captures must not be the same for all keys of a row: softmax would not see it, and the gradient would be 0.
    """

    name: str
    score: Callable[..., Mod] | None = None
    mask: Mod | None = None
    captured: tuple[tuple[int, ...], ...] = ()  # shapes; all require gradients
    batch: int = 2
    heads: int = 4
    key_heads: int = 4
    queries: int = 200  # no multiple of a block
    keys: int = 200
    features: int = 16
    value_features: int = 16
    block: int = 64
    mask_batch_and_heads: tuple[int | None, int | None] = (None, None)
    dtype: torch.dtype = torch.float32
    logsumexp: bool = False
    transposed: bool = False

    @property
    def tolerance(self) -> float:
        """Largest error, relative to the largest expected value."""
        return {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[self.dtype]

    def tensors(self) -> list[Tensor]:
        shapes = [
            (self.batch, self.heads, self.queries, self.features),
            (self.batch, self.key_heads, self.keys, self.features),
            (self.batch, self.key_heads, self.keys, self.value_features),
        ]
        made = []
        for b, h, n, d in shapes:
            tensor = torch.randn(b, n, h, d).transpose(1, 2) if self.transposed else torch.randn(b, h, n, d)
            made.append(tensor.to("neuron", self.dtype).requires_grad_())
        made += [torch.randn(shape).to("neuron", self.dtype).requires_grad_() for shape in self.captured]
        return made

    def block_mask(self) -> BlockMask | None:
        if self.mask is None:
            return None
        return create_block_mask(
            self.mask, *self.mask_batch_and_heads, self.queries, self.keys, "neuron", BLOCK_SIZE=self.block
        )

    def run(self, attention: Callable[..., Any], tensors: list[Tensor]) -> list[Tensor]:
        """The result, the logarithm of the sum if asked for, and all gradients."""
        query, key, value, *captured = tensors
        out = attention(
            query,
            key,
            value,
            score_mod=self.score(*captured) if self.score else None,
            block_mask=self.block_mask(),
            enable_gqa=self.heads != self.key_heads,
            return_aux=AuxRequest(lse=True) if self.logsumexp else None,
        )
        results = [out[0], out[1].lse] if self.logsumexp else [out]
        return [*results, *torch.autograd.grad(results, tensors, self.weights(results))]

    def weights(self, results: list[Tensor]) -> list[Tensor]:
        generator = torch.Generator().manual_seed(1)
        return [torch.randn(x.shape, generator=generator).to(x.device, x.dtype) for x in results]

    def expected(self, tensors: list[Tensor]) -> list[Tensor]:
        query, key, value, *captured = (x.detach().cpu().double().requires_grad_() for x in tensors)
        out, logsumexp = plain_attention(query, key, value, self.score(*captured) if self.score else None, self.mask)
        weights = self.weights([out.to(self.dtype), logsumexp.float()][: 2 if self.logsumexp else 1])
        finite = torch.where(logsumexp == -math.inf, 0.0, logsumexp)
        graded = [out, finite] if self.logsumexp else [out]
        grads = torch.autograd.grad(graded, [query, key, value, *captured], [w.double() for w in weights])
        return [out, *([logsumexp] if self.logsumexp else []), *grads]

    def check(self, attention: Callable[..., Any] | None = None) -> None:
        attention = attention or compiled()
        tensors = self.tensors()
        results = self.run(attention, tensors)
        for result, expected in zip(results, self.expected(tensors), strict=True):
            assert result.device.type == "neuron"
            assert result.shape == expected.shape
            found = result.cpu().double()
            infinite = expected == -math.inf
            assert torch.equal(found == -math.inf, infinite)
            error = (found - expected)[~infinite].abs().max() / expected[~infinite].abs().max()
            assert error <= self.tolerance, f"{self.name}: {error:.2e}"
        for first, second in zip(results, self.run(attention, tensors), strict=True):
            assert torch.equal(first, second), f"{self.name}: another run gives other bits"


def relative_position(table: Tensor) -> Mod:
    return lambda score, b, h, q, kv: score + table[q - kv + table.shape[0] // 2]


DOCUMENTS = torch.arange(200) // 37


def same_document(documents: Tensor) -> Mod:
    return lambda b, h, q, kv: (documents[q] == documents[kv]) & (q >= kv)


SCORE_CASES = [
    Case("plain"),
    Case("causal_bias", score=lambda: lambda s, b, h, q, kv: torch.where(q >= kv, s, -math.inf)),
    # Scores of hundreds would have no digits left for a tolerance of 1e-5, in any float32 attention.
    Case(
        "alibi",
        score=lambda slopes: lambda s, b, h, q, kv: s + slopes[h] * (kv - q) / 16,
        captured=((4,),),
        mask=causal,
    ),
    Case("softcap", score=lambda: lambda s, b, h, q, kv: 3 * torch.tanh(s / 3), mask=causal),
    Case("scalar", score=lambda factor: lambda s, b, h, q, kv: s * factor, captured=((),)),
    Case("full_bias", score=lambda bias: lambda s, b, h, q, kv: s + bias[b, h, q, kv], captured=((2, 4, 200, 200),)),
    Case("one_tensor_twice", score=lambda t: lambda s, b, h, q, kv: s * t[q] + t[kv], captured=((200,),)),
    Case("two_tensors", score=lambda t, u: lambda s, b, h, q, kv: s * t[q] * u[h], captured=((200,), (4,))),
    Case(
        "rows_and_columns", score=lambda t: lambda s, b, h, q, kv: s * t[h, 1, q] + t[0, 2, kv], captured=((4, 3, 200),)
    ),
    Case("bias_with_sizes_of_1", score=lambda t: lambda s, b, h, q, kv: s + t[0, h, 0, kv], captured=((1, 4, 1, 200),)),
    Case(
        "transposed_table",
        score=lambda t: (lambda columns: lambda s, b, h, q, kv: s + columns[h, kv])(t.T),
        captured=((200, 4),),
    ),
    Case(
        "rows_of_infinity", score=lambda: lambda s, b, h, q, kv: torch.where(q % 3 == 0, -math.inf, s), logsumexp=True
    ),
    Case("integers", score=lambda: lambda s, b, h, q, kv: torch.where(q // 7 == kv // 7, s, s / 2) + q % 3),
]
MASK_CASES = [
    Case("causal", mask=causal),
    Case("sliding_window", mask=sliding_window, queries=700, keys=700, block=128),
    Case("prefix_lm", mask=prefix_lm),
    Case("by_batch_and_head", mask=differs_by_batch_and_head, mask_batch_and_heads=(2, 4)),
    Case("cross", mask=lambda b, h, q, kv: q * 4 >= kv, queries=77, keys=333, block=32),
    Case("more_queries", queries=333, keys=77),
]
SHAPE_CASES = [
    Case("gqa", mask=causal, heads=8, key_heads=2, features=24, value_features=40),
    Case("transposed", mask=causal, transposed=True),
    Case("tiny", batch=1, heads=1, key_heads=1, queries=3, keys=5, features=8, value_features=8),
    Case("one_head", mask=causal, batch=1, heads=1, key_heads=1, queries=1000, keys=1000, block=128),
    Case("one_query", batch=1, heads=2, key_heads=2, queries=1, keys=500, features=64, value_features=64),
    Case("logsumexp", mask=causal, logsumexp=True),
]
DTYPE_CASES = [
    dataclasses.replace(case, name=f"{name}_{case.name}", dtype=dtype)
    for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16))
    for case in (
        Case("causal", mask=causal),
        Case("table", score=relative_position, captured=((401,),), transposed=True),
    )
]


@pytest.mark.slow
@pytest.mark.parametrize("case", [*SCORE_CASES, *MASK_CASES, *SHAPE_CASES, *DTYPE_CASES], ids=lambda case: case.name)
def test_compiled(case: Case) -> None:
    case.check()


def test_table_gqa_and_logsumexp() -> None:
    case = Case(
        "everything",
        score=relative_position,
        captured=((401,),),
        mask=causal,
        heads=6,
        key_heads=2,
        logsumexp=True,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="flex_attention called without torch.compile")
        case.check()


@pytest.mark.slow
def test_empty_rows_of_bfloat16() -> None:
    Case("empty", mask=leaves_rows_empty, logsumexp=True, transposed=True, dtype=torch.bfloat16).check()


@pytest.mark.slow
def test_document_mask() -> None:
    documents = DOCUMENTS.to("neuron")
    query, key, value = Case("documents").tensors()
    mask = create_block_mask(same_document(documents), None, None, 200, 200, "neuron", BLOCK_SIZE=64)
    out = compiled()(query, key, value, block_mask=mask)
    host = [x.detach().cpu().double() for x in (query, key, value)]
    expected, _ = plain_attention(*host, None, same_document(DOCUMENTS))
    torch.testing.assert_close(out.cpu().double(), expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_hidden_blocks_are_not_read() -> None:
    query, key, value = Case("window", queries=512, keys=512).tensors()
    mask = create_block_mask(sliding_window, None, None, 512, 512, "neuron", BLOCK_SIZE=64)
    # The last block of queries sees the last two blocks of keys. Anything that reads others gets NaN: 0 * NaN is NaN.
    attention = compiled()
    with torch.no_grad():
        key[:, :, :384] = math.nan
        value[:, :, :384] = math.nan
    out = attention(query, key, value, block_mask=mask)
    assert out[:, :, 448:].isfinite().all()
    grad = torch.zeros_like(out)
    grad[:, :, 448:] = 1.0
    grads = torch.autograd.grad(out, (query, key, value), grad)
    for part in grads:
        assert part[:, :, 448:].isfinite().all()


@pytest.mark.slow
def test_a_new_length_needs_no_new_graph() -> None:
    torch.neuron.reset_dynamo_metrics()
    attention = compiled(dynamic=True)
    for length in (300, 450, 777):
        Case(str(length), mask=causal, batch=1, queries=length, keys=length, block=64).check(attention)
    assert len(torch.neuron.get_dynamo_metrics()) == 2  # forward and backward


@pytest.mark.slow
def test_a_table_that_grows_with_the_length() -> None:
    torch.neuron.reset_dynamo_metrics()

    def attend(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Tensor:
        shift = query.shape[2] - 1
        return flex_attention(query, key, value, score_mod=lambda s, b, h, q, kv: s + table[q - kv + shift])

    attention = torch.compile(attend, backend="neuron", fullgraph=True, dynamic=True)
    for length in (100, 171, 333):
        case = Case(str(length), score=relative_position, captured=((2 * length - 1,),), queries=length, keys=length)
        tensors = case.tensors()
        out = attention(*tensors)
        results = [out, *torch.autograd.grad(out, tensors, case.weights([out]))]
        for result, expected in zip(results, case.expected(tensors), strict=True):
            assert (result.cpu() - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert len(torch.neuron.get_dynamo_metrics()) == 2


@pytest.mark.slow
def test_views_of_one_tensor() -> None:
    def attend(x: Tensor) -> Tensor:
        query, key, value = (y.view(2, 100, 4, 16).transpose(1, 2) for y in x.chunk(3, -1))
        return flex_attention(query, key, value) * 2

    x = torch.randn(2, 100, 192, device="neuron", requires_grad=True)
    out = torch.compile(attend, backend="neuron", fullgraph=True)(x)
    (grad,) = torch.autograd.grad(out, x, torch.ones_like(out))
    host = x.detach().cpu().double().requires_grad_()
    query, key, value = (y.view(2, 100, 4, 16).transpose(1, 2) for y in host.chunk(3, -1))
    expected = plain_attention(query, key, value, None, None)[0] * 2
    (expected_grad,) = torch.autograd.grad(expected, host, torch.ones_like(expected))
    torch.testing.assert_close(out.detach().cpu().double(), expected.detach(), rtol=0, atol=1e-5)
    torch.testing.assert_close(grad.cpu().double(), expected_grad, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_keys_of_one_batch_serve_all() -> None:
    case = Case("broadcast", mask=causal, batch=3)
    query, key, value = case.tensors()
    key, value = (x.detach()[:1].clone().requires_grad_() for x in (key, value))
    mask = create_block_mask(causal, 3, None, 200, 200, "neuron", BLOCK_SIZE=64)
    out = compiled()(query, key, value, block_mask=mask)
    grads = torch.autograd.grad(out, (query, key, value), torch.ones_like(out))
    host = [x.detach().cpu().double().requires_grad_() for x in (query, key, value)]
    expected, _ = plain_attention(host[0], host[1].expand(3, -1, -1, -1), host[2].expand(3, -1, -1, -1), None, causal)
    for grad, expected_grad in zip(grads, torch.autograd.grad(expected.sum(), host), strict=True):
        assert grad.shape == expected_grad.shape
        assert (grad.cpu() - expected_grad).abs().max() <= 1e-5 * expected_grad.abs().max()


@pytest.mark.slow
def test_gradient_of_keys_alone() -> None:
    query, key, value = (x.detach() for x in Case("keys").tensors())
    key.requires_grad_()
    out = compiled()(query, key, value)
    (grad,) = torch.autograd.grad(out, key, torch.ones_like(out))
    host = [x.detach().cpu().double() for x in (query, key, value)]
    host[1].requires_grad_()
    (expected,) = torch.autograd.grad(plain_attention(*host, None, None)[0].sum(), host[1])
    assert (grad.cpu() - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.slow
def test_nan_stays_in_its_row() -> None:
    query, key, value = (x.detach() for x in Case("nan").tensors())
    query[0, 0, 3, 2] = math.nan
    out = compiled()(query, key, value)
    expected = torch.zeros(out.shape, dtype=torch.bool)
    expected[0, 0, 3] = True
    assert torch.equal(out.isnan().cpu(), expected)


@pytest.mark.slow
@pytest.mark.parametrize("garbage", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_see_nothing_may_hold_anything(garbage: float, dtype: torch.dtype) -> None:
    """What stands in padded queries, and what comes back for them, is in no gradient; theirs is 0."""
    case = Case("padding", mask=leaves_rows_empty, dtype=dtype)
    host = [x.detach().cpu().double() for x in case.tensors()]
    weights = torch.randn(2, 4, 200, 16).to(dtype).double()
    positions = torch.arange(200)
    empty = (positions >= 150) | (positions < 9)
    host[0][:, :, empty] = 0.0
    weights[:, :, empty] = 0.0
    host = [x.requires_grad_() for x in host]
    expected, _ = plain_attention(*host, None, leaves_rows_empty)
    expected_grads = torch.autograd.grad(expected, host, weights)

    query, key, value = (x.detach().clone() for x in host)
    query[:, :, empty] = garbage
    weights[:, :, empty] = garbage
    tensors = [x.to("neuron", dtype).requires_grad_() for x in (query, key, value)]
    out = compiled()(*tensors, block_mask=case.block_mask())
    grads = torch.autograd.grad(out, tensors, weights.to("neuron", dtype))
    assert torch.equal(out[:, :, empty].cpu(), torch.zeros(2, 4, int(empty.sum()), 16, dtype=dtype))
    assert torch.equal(grads[0][:, :, empty].cpu(), torch.zeros(2, 4, int(empty.sum()), 16, dtype=dtype))
    for grad, wanted in zip(grads, expected_grads, strict=True):
        assert (grad.cpu() - wanted).abs().max() <= case.tolerance * wanted.abs().max()


def columns_are_even(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return kv % 2 == 0


@pytest.mark.slow
def test_lists_of_blocks_in_any_order() -> None:
    """The mask decides in partial blocks only; what a list has after its count doesn't count."""
    block, length = 32, 100
    partial = [[0], [1, 0], [3], [2]]
    full = [[3, 1], [2], [], [0, 1]]

    def table(lists: list[list[int]]) -> tuple[Tensor, Tensor]:
        counts = torch.tensor([len(row) for row in lists], dtype=torch.int32)
        rest = [[i for i in range(4) if i not in row] for row in lists]
        indices = torch.tensor([a + b for a, b in zip(lists, rest, strict=True)], dtype=torch.int32)
        return counts.to("neuron")[None, None], indices.to("neuron")[None, None]

    mask = BlockMask.from_kv_blocks(
        *table(partial), *table(full), BLOCK_SIZE=block, mask_mod=columns_are_even, seq_lengths=(length, length)
    )
    seen = torch.zeros(4 * block, 4 * block, dtype=torch.bool)
    for lists, columns in ((partial, slice(None, None, 2)), (full, slice(None))):
        for row, blocks in enumerate(lists):
            for column in blocks:
                part = seen[row * block : (row + 1) * block, column * block : (column + 1) * block]
                part[:, columns] = True

    tensors = Case("lists", queries=length, keys=length).tensors()
    out = compiled()(*tensors, block_mask=mask)
    results = [out, *torch.autograd.grad(out, tensors, torch.ones_like(out))]
    host = [x.detach().cpu().double().requires_grad_() for x in tensors]
    expected, _ = plain_attention(*host, None, lambda b, h, q, kv: seen[q, kv])
    for result, wanted in zip(results, (expected, *torch.autograd.grad(expected.sum(), host)), strict=True):
        assert (result.cpu() - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.slow
def test_inputs_with_any_strides() -> None:
    """Features that are not next to each other, and rows that share memory."""
    wide = torch.randn(2, 4, 70, 32, device="neuron")
    query, key = wide[..., ::2], torch.randn(2, 4, 16, 90, device="neuron").transpose(-1, -2)
    value = torch.randn(2, 4, 1, 16, device="neuron").expand(2, 4, 90, 16)
    tensors = [x.detach().requires_grad_() for x in (query, key, value)]
    assert tensors[0].stride(-1) == 2
    assert tensors[1].stride(-2) == 1
    assert tensors[2].stride(-2) == 0
    out = compiled()(*tensors)
    weights = torch.randn(2, 4, 16, 70).transpose(-1, -2)
    results = [out, *torch.autograd.grad(out, tensors, weights.to("neuron"))]
    host = [x.detach().cpu().double().requires_grad_() for x in tensors]
    expected, _ = plain_attention(*host, None, None)
    grads = torch.autograd.grad(expected, host, weights.double())
    largest = max(grad.abs().max() for grad in grads)  # of queries and keys it is 0 here: all values are the same
    torch.testing.assert_close(results[0].cpu().double(), expected.detach(), rtol=0, atol=1e-5)
    for result, wanted in zip(results[1:], grads, strict=True):
        assert (result.cpu() - wanted).abs().max() <= 1e-5 * largest


@pytest.mark.slow
def test_scores_beyond_the_range_of_float16() -> None:
    generator = torch.Generator().manual_seed(2)
    # Whole numbers, so that the float products are exact.
    host = [torch.randint(-300, 301, (1, 2, 100, 64), generator=generator).double() for _ in range(3)]
    tensors = [x.to("neuron", torch.float16).requires_grad_() for x in host]
    host = [x.requires_grad_() for x in host]
    expected, logsumexp = plain_attention(*host, None, None)
    assert logsumexp.max() > torch.finfo(torch.float16).max
    out, aux = compiled()(*tensors, return_aux=AuxRequest(lse=True))
    # The gradients of queries and keys may be beyond the range themselves.
    (grad,) = torch.autograd.grad(out, tensors[2], torch.ones_like(out))
    (expected_grad,) = torch.autograd.grad(expected.sum(), host[2])
    torch.testing.assert_close(aux.lse.cpu().double(), logsumexp.detach(), rtol=1e-6, atol=0)
    for result, wanted in ((out, expected), (grad, expected_grad)):
        assert (result.cpu() - wanted).abs().max() <= 2e-3 * wanted.abs().max()


@pytest.mark.slow
def test_a_length_of_zero() -> None:
    for queries, keys in ((0, 20), (20, 0)):
        tensors = Case("zero", queries=queries, keys=keys).tensors()
        out = compiled()(*tensors)
        assert torch.equal(out.cpu(), torch.zeros(2, 4, queries, 16))
        for grad, tensor in zip(torch.autograd.grad(out.sum(), tensors), tensors, strict=True):
            assert torch.equal(grad.cpu(), torch.zeros(tensor.shape))


@pytest.mark.slow
@pytest.mark.parametrize("queries", [1, 5])
def test_decoding_from_pages(queries: int) -> None:
    page, pages, batch, heads, features, length = 16, 24, 2, 4, 32, 75
    paged = PagedAttention(pages, page, batch, device="neuron")
    for i in range(batch):
        paged.reserve(torch.tensor([i], device="neuron"), torch.tensor([80], device="neuron"))
    key, value = (torch.randn(batch, heads, 80, features, device="neuron") for _ in range(2))
    key_cache, value_cache = (torch.zeros(1, heads, pages * page, features, device="neuron") for _ in range(2))
    positions = torch.arange(80, device="neuron").expand(batch, 80)
    paged.assign(torch.arange(batch, device="neuron"), positions, key, value, key_cache, value_cache)

    def seen(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return kv <= q + length - queries

    logical = create_block_mask(seen, batch, None, queries, 80, "neuron", BLOCK_SIZE=(page, page))
    query = torch.randn(batch, heads, queries, features, device="neuron")
    with torch.no_grad():
        out = compiled()(query, key_cache, value_cache, block_mask=paged.convert_logical_block_mask(logical))
    expected, _ = plain_attention(*(x.cpu().double() for x in (query, key, value)), None, seen)
    torch.testing.assert_close(out.cpu().double(), expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_decoding_reads_no_more_than_it_needs() -> None:
    query = torch.randn(2, 8, 1, 64, device="neuron")
    key, value = (torch.randn(2, 2, 1000, 64, device="neuron") for _ in range(2))
    with torch.no_grad():
        out, aux = compiled()(query, key, value, enable_gqa=True, return_aux=AuxRequest(lse=True, max_scores=True))
    host = [x.cpu().double() for x in (query, key, value)]
    expected, logsumexp = plain_attention(*host, None, None)
    scores = host[0] @ host[1].repeat_interleave(4, 1).transpose(-1, -2) / 8
    torch.testing.assert_close(out.cpu().double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(aux.lse.cpu().double(), logsumexp, rtol=0, atol=1e-5)
    torch.testing.assert_close(aux.max_scores.cpu().double(), scores.amax(-1), rtol=0, atol=1e-5)


def first_part_and_every_third(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return (kv < 700) | ((kv % 3 == 0) & (kv < 4000 - h * 1000))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        Case("plain", batch=1, heads=2, key_heads=1, queries=1, keys=5000, logsumexp=True),
        Case("few_queries", heads=2, key_heads=2, queries=3, keys=2500, features=64, value_features=24),
        Case(
            "mask",
            mask=first_part_and_every_third,
            mask_batch_and_heads=(None, 4),
            queries=1,
            keys=5000,
            block=128,
            logsumexp=True,
        ),
        Case(
            "score",
            score=lambda t: lambda s, b, h, q, kv: torch.where(kv >= 2048, s + t[kv], -math.inf),
            captured=((4500,),),
            queries=2,
            keys=4500,
            logsumexp=True,
        ),
        Case("bfloat16", queries=1, keys=3000, features=64, value_features=64, dtype=torch.bfloat16),
    ],
    ids=lambda case: case.name,
)
def test_decoding_splits_the_keys(case: Case) -> None:
    """Few queries and many keys are computed in parts, of which some may see nothing."""
    case.check()


@pytest.mark.slow
def test_the_number_of_threads_changes_no_bit_of_a_split() -> None:
    query = torch.randn(1, 2, 1, 64, device="neuron")
    key, value = (torch.randn(1, 2, 9000, 64, device="neuron") for _ in range(2))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch._dynamo.reset()
            with torch.no_grad():
                results.append(compiled()(query, key, value).cpu())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.slow
def test_a_part_with_nan_makes_its_row_nan() -> None:
    query, key, value = (x.detach() for x in Case("nan", queries=1, keys=4000).tensors())
    key[1, 2, 3500, 3] = math.nan
    out, aux = compiled()(query, key, value, return_aux=AuxRequest(lse=True))
    expected = torch.zeros(out.shape, dtype=torch.bool)
    expected[1, 2] = True
    assert torch.equal(out.isnan().cpu(), expected)
    assert torch.equal(aux.lse.isnan().cpu(), expected[..., 0])


@pytest.mark.parametrize(
    "case",
    [
        Case("causal", mask=causal, queries=50, keys=50, block=16),
        Case("table", score=relative_position, captured=((101,),), queries=50, keys=50, logsumexp=True),
        Case("gqa", mask=leaves_rows_empty, queries=20, keys=40, heads=4, key_heads=2, block=16),
    ],
    ids=lambda case: case.name,
)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_eager(case: Case) -> None:
    case.check(flex_attention)


def test_eager_warns_that_it_is_slow() -> None:
    torch.nn.attention.flex_attention._WARNINGS_SHOWN.discard("flex_attention_performance")
    query, key, value = (torch.randn(1, 1, 16, 8, device="neuron") for _ in range(3))
    with pytest.warns(UserWarning, match="called without torch.compile"):
        out, aux = flex_attention(query, key, value, return_aux=AuxRequest(max_scores=True))
    assert isinstance(aux, AuxOutput)
    assert aux.lse is None
    scores = query.cpu() @ key.cpu().transpose(-1, -2) / math.sqrt(8)
    torch.testing.assert_close(aux.max_scores.cpu(), scores.amax(-1))
    assert out.device.type == "neuron"


def test_masks_are_made_on_the_device_by_default() -> None:
    mask = create_block_mask(causal, None, None, 256, 256)
    expected = create_block_mask(causal, None, None, 256, 256, "cpu")
    assert mask.kv_indices.device.type == "neuron"
    assert torch.equal(mask.to_dense().cpu(), expected.to_dense())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"BACKEND": "FLASH"}, "needs a CUDA device"),
        ({"BLOCK_Q": 64}, "unknown kernel_options BLOCK_Q; known are"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    query, key, value = Case("options").tensors()
    with pytest.raises(RuntimeError, match=message):
        compiled()(query, key, value, kernel_options=options)


@pytest.mark.slow
def test_backward_needs_blocks_of_queries() -> None:
    query, key, value = Case("one way").tensors()
    both = create_block_mask(causal, None, None, 200, 200, "neuron", BLOCK_SIZE=64)
    mask = BlockMask.from_kv_blocks(
        both.kv_num_blocks,
        both.kv_indices,
        BLOCK_SIZE=64,
        mask_mod=causal,
        seq_lengths=(200, 200),
        compute_q_blocks=False,
    )
    with pytest.raises(RuntimeError, match="create the BlockMask with compute_q_blocks=True"):
        compiled()(query, key, value, block_mask=mask).sum().backward()


@pytest.mark.slow
def test_work_on_a_captured_tensor_that_needs_a_gradient_is_refused() -> None:
    query, key, value = Case("captured").tensors()
    table = torch.randn(200, device="neuron", requires_grad=True)
    with pytest.raises(RuntimeError, match="before the tensor is indexed. Apply it outside of score_mod"):
        compiled()(query, key, value, score_mod=lambda s, b, h, q, kv: s + table.exp()[q]).sum().backward()


def test_float64_is_refused() -> None:
    query, key, value = (x.detach().double() for x in Case("float64").tensors())
    with pytest.raises(RuntimeError, match="compiled kernels take float32, bfloat16 and float16"):
        compiled()(query, key, value)


def test_the_cpu_keeps_its_limits() -> None:
    query = torch.randn(1, 1, 16, 8, requires_grad=True)
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex_attention(query, query, query)
    meta = torch.randn(1, 1, 16, 8, device="meta")
    with pytest.raises(ValueError, match="only supported on CUDA, CPU, HPU, or MPS"):
        flex_attention(meta, meta, meta)


def test_importing_torch_does_not_import_it() -> None:
    code = "import sys, torch; assert torch.neuron; sys.exit('torch.nn.attention.flex_attention' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


STEP = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
torch.manual_seed(0)
tensors = [torch.randn(1, 2, 200, 16, device="neuron", requires_grad=True) for _ in range(3)]
tensors.append(torch.randn(401, device="neuron", requires_grad=True))
mask = create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 200, 200, "neuron")
def attend(query, key, value, table):
    return flex_attention(query, key, value, lambda s, b, h, q, kv: s + table[q - kv + 200], mask)
out = torch.compile(attend, backend="neuron")(*tensors)
grads = torch.autograd.grad(out, tensors, torch.ones_like(out))
print([x.cpu().double().sum().item() for x in (out, *grads)])
print([record["cache"] for record in torch.neuron.get_dynamo_metrics()])
"""


@pytest.mark.slow
def test_a_second_process_finds_the_kernels(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    environment = {**os.environ, "TORCH_NEURONX_NEFF_CACHE_DIR": str(tmp_path / "cache")}
    lines = []
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", STEP], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        lines.append(run.stdout.splitlines())
    assert lines[0][0] == lines[1][0]
    assert lines[0][1] == "['miss', 'miss']"
    assert lines[1][1] == "['hit', 'hit']"
