"""Matrix products of 16-bit numbers by the device's own kernels: the CPU's bits, whatever the shape and the layout."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from torch_neuronx import _C

RECURRENCES = 4  # the first teaches the signature, the second tries our kernel and takes it
DTYPES = [torch.bfloat16, torch.float16]

# Where oneDNN has instructions for bfloat16, PyTorch's kernels are the faster ones.
own_kernels_are_faster = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX2"
    or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    or "NEURON_SANITIZER" in os.environ,
    reason="PyTorch's kernels are the faster ones here",
)


@pytest.fixture(autouse=True)
def everything_on_the_executor() -> Iterator[None]:
    torch.manual_seed(0)
    _C._set_hand_off("always")
    yield
    _C._set_hand_off("measured")


def own_products() -> int:
    return _C._launch_statistics()["own_products"]


def cancelling(sign: int, *shape: int) -> Tensor:
    """Random numbers, mirrored in each dimension: in a sum of products the rounding errors are most of what is left."""
    numbers = torch.randn(shape)
    for dim, size in enumerate(shape):
        half = (size - 1) // 2
        numbers.narrow(dim, half, half).copy_(sign * numbers.narrow(dim, 0, half).flip(dim))
    return numbers


def same_bits(actual: Tensor, expected: Tensor) -> bool:
    """Equal bits, but for the bits of what is not a number."""
    same = actual.view(torch.int16) == expected.view(torch.int16)
    return bool((same | (actual.isnan() & expected.isnan())).all())


def recurring(operate: Callable[..., Tensor], *operands: Tensor) -> list[Tensor]:
    on_device = [x.to("neuron") for x in operands]
    return [operate(*on_device).cpu() for _ in range(RECURRENCES)]


def check(operate: Callable[..., Tensor], *operands: Tensor) -> None:
    expected = operate(*operands)
    for actual in recurring(operate, *operands):
        assert actual.stride() == expected.stride()
        assert same_bits(actual, expected)


# Around the sizes at which the kernels change their ways: tiles of 6 and 2 rows and 16 columns, blocks of 48 rows,
# steps of 4, 16 and 64 along what is added.
SHAPES = [(64, 64, 256), (49, 67, 33), (1, 300, 40), (50, 200, 3), (7, 1000, 17), (97, 16, 48), (33, 129, 128)]
LAYOUTS = ["nn", "nt", "tn", "tt"]


def operands(rows: int, depth: int, columns: int, layout: str, dtype: torch.dtype, batch: int = 0) -> list[Tensor]:
    def make(sign: int, first: int, second: int, turned: bool) -> Tensor:
        shape = (second, first) if turned else (first, second)
        numbers = cancelling(sign, *((batch,) if batch else ()), *shape).to(dtype)
        return numbers.mT if turned else numbers

    return [make(1, rows, depth, layout[0] == "t"), make(-1, depth, columns, layout[1] == "t")]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products(dtype: torch.dtype, shape: tuple[int, int, int], layout: str) -> None:
    a, b = operands(*shape, layout, dtype)
    check(lambda a, b: a @ b, a, b)
    row, whole = (torch.randn(size).mul(1e-4).to(dtype) for size in (shape[2], (shape[0], shape[2])))
    check(torch.addmm, row, a, b)
    check(torch.addmm, whole, a, b)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batches(dtype: torch.dtype, layout: str) -> None:
    a, b = operands(31, 65, 48, layout, dtype, batch=5)
    check(torch.bmm, a, b)
    check(torch.baddbmm, torch.randn(48).mul(1e-4).to(dtype), a, b)
    check(torch.baddbmm, torch.randn(5, 31, 1).to(dtype), a, b)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_slices_of_larger_tensors(dtype: torch.dtype) -> None:
    a, b = operands(80, 90, 100, "nn", dtype)
    check(lambda a, b: a[3:70, 5:85] @ b[5:85, 7:88], a, b)
    check(lambda a, b: a[::2, ::3] @ b[::3, ::2], a, b)
    check(lambda a, b: a[:1].expand(40, 90) @ b, a, b)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_that_overflow_vanish_or_are_none(dtype: torch.dtype, layout: str) -> None:
    a, b = operands(40, 70, 32, layout, dtype)
    limits = torch.finfo(dtype)
    a[1] *= limits.max / 8
    a[2] *= limits.tiny
    a[3] = limits.smallest_normal / 4
    a[4, 0], a[5, 0], a[6] = float("inf"), float("nan"), 0.0
    a[7, 1], a[7, 2] = float("inf"), float("-inf")
    check(torch.mm, a, b)
    check(torch.addmm, b[0], a, b)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for layout in LAYOUTS:
            check(torch.mm, *operands(150, 130, 140, layout, torch.bfloat16))
    finally:
        torch.set_num_threads(before)


def test_factors_and_addends_that_are_left_out() -> None:
    a, b = operands(64, 64, 64, "nn", torch.bfloat16)
    addend = torch.randn(64).to(torch.bfloat16)
    check(torch.addmm, addend, a, b)
    for beta, alpha in ((1.0, 0.3), (0.5, 1.0), (0.0, 1.0), (1, 1)):
        check(lambda c, a, b, beta=beta, alpha=alpha: torch.addmm(c, a, b, beta=beta, alpha=alpha), addend, a, b)
    check(lambda c, a, b: torch.addmm(c, a, b, beta=0), torch.full((64,), float("nan")).to(torch.bfloat16), a, b)


def test_settings_that_choose_the_cpus_kernel() -> None:
    a, b = operands(64, 64, 64, "nt", torch.bfloat16)
    check(torch.mm, a, b)
    with torch.backends.mkldnn.flags(enabled=False):
        check(torch.mm, a, b)
    check(torch.mm, a, b)


def test_operands_that_do_not_fit() -> None:
    a = torch.randn(64, 64, dtype=torch.bfloat16, device="neuron")
    for _ in range(RECURRENCES):
        a @ a
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        a @ a[:32]
    with pytest.raises(RuntimeError, match="dtype"):
        a @ a.half()
    assert (a[:0] @ a).shape == (0, 64)
    assert (a[:, :0] @ a[:0]).eq(0).all()


# In this layout PyTorch's kernel is the slowest by far, so that ours is the faster one on a busy machine, too.
@own_kernels_are_faster
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_our_kernels_are_taken(dtype: torch.dtype) -> None:
    a, b = operands(128, 256, 128, "nn", dtype)
    before = own_products()
    recurring(torch.mm, a, b)
    recurring(torch.addmm, b[0], a, b)
    assert own_products() >= before + 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compiled_graphs(dtype: torch.dtype) -> None:
    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, weight, bias) @ weight

    x, weight, bias = (torch.randn(shape).to(dtype) for shape in ((96, 128), (64, 128), (64,)))
    expected = layer(x, weight, bias)
    compiled = torch.compile(layer, backend="neuron")
    for actual in recurring(compiled, x, weight, bias):
        assert same_bits(actual, expected)


@own_kernels_are_faster
def test_our_kernels_are_taken_in_compiled_graphs() -> None:
    compiled = torch.compile(lambda a, b: (a @ b, a.relu()), backend="neuron")
    a, b = (x.to("neuron") for x in operands(128, 256, 128, "nn", torch.bfloat16))
    compiled(a, b)
    before = _C._launch_statistics()
    for _ in range(RECURRENCES):
        compiled(a, b)
    torch.neuron.synchronize()
    after = _C._launch_statistics()
    assert after["own_products"] == before["own_products"] + RECURRENCES
    assert after["result_copies"] == before["result_copies"]  # a trial leaves the graph's allocations alone
