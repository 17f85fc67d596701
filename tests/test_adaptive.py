"""Adaptive eager: runs of element-wise launches together, with every bit as if each had run by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from torch_neuronx import _C

DTYPES = [torch.float32, torch.bfloat16]
ROUNDS = 5  # the first teaches signatures


@pytest.fixture(autouse=True, params=["adaptive", "verify"])
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    torch.manual_seed(0)
    _C._set_hand_off("always")
    with torch.neuron.eager_mode(request.param):
        yield request.param
    torch.neuron.synchronize()
    _C._set_hand_off("measured")
    assert torch.neuron.adaptive_stats()["mismatches"] == 0


def occupy(matrix: Tensor) -> None:
    """Keeps the executor busy for some time, so that what follows is queued."""
    for _ in range(2):
        matrix @ matrix


def check(work: Callable[..., object], *tensors: Tensor, regions: bool | None = True) -> None:
    """`work` may write its arguments; it gives the CPU's bits on the device, and its launches share regions (None: or not)."""
    busy = torch.randn(700, 700, device="neuron")
    before = torch.neuron.adaptive_stats()["launches_saved"]
    for _ in range(ROUNDS):
        host = [x.clone() for x in tensors]
        device = [x.clone().to("neuron") for x in tensors]
        expected = work(*host)
        occupy(busy)
        actual = work(*device)
        for a, e in zip(flat((actual, device)), flat((expected, host)), strict=True):
            assert a.dtype == e.dtype
            torch.testing.assert_close(a.cpu(), e, rtol=0, atol=0, equal_nan=True)
    if regions is not None:
        assert (torch.neuron.adaptive_stats()["launches_saved"] > before) == regions


def flat(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from flat(item)


def twelve(a: Tensor, b: Tensor) -> Tensor:
    x = a * b
    x = x + 0.3
    x = x / 1.7
    x = x - b
    x = x.relu()
    x = torch.addcmul(x, a, b, value=0.37)
    x = x.sqrt()
    x = torch.lerp(x, a, 0.12)
    x = x.add(b, alpha=0.21)
    x = torch.addcdiv(x, a, b, value=-1.3)
    x = -x
    return x * x


@pytest.mark.parametrize("shape", [(8,), (7,), (1,), (5, 13), (64, 64), (3, 41, 1001), (300_007,)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_chain(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    check(twelve, torch.randn(shape).to(dtype), torch.randn(shape).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_at_the_ends_of_the_range(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    special = [
        0.0,
        -0.0,
        limits.max,
        limits.min,
        limits.tiny,
        limits.tiny / 4,
        float("inf"),
        -float("inf"),
        float("nan"),
    ]
    values = torch.tensor(special).to(dtype)
    a, b = (x.reshape(-1) for x in torch.meshgrid(values, values, indexing="ij"))
    check(twelve, a, b)
    check(lambda a, b: (torch.reciprocal(a) * b, torch.rsqrt(b) + a, a.neg().relu(), (a / b) * 3), a, b)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layouts_without_gaps(dtype: torch.dtype) -> None:
    a, b = torch.randn(40, 60).to(dtype).t(), torch.randn(40, 60).to(dtype).t()
    check(twelve, a, b)
    images = torch.randn(2, 8, 9, 9).to(dtype).contiguous(memory_format=torch.channels_last)
    check(twelve, images, images + 1)


def test_what_is_no_step_over_tiles() -> None:
    a, row = torch.randn(30, 50), torch.randn(50)
    check(lambda a, row: (a * row + 1) * 2, a, row)  # the product is none, what follows is
    check(lambda a, row: a[:, ::2] * 2 + a[:, 1::2], a, row, regions=False)
    check(lambda a, row: a + torch.ones(30, 1, device=a.device).expand(30, 50), a, row, regions=False)
    check(lambda a, row: a.double() * 2 + 1, a, row, regions=False)
    check(lambda a, row: (a * 2 + 1, row * 3 - 1), a, row)  # two regions: the sizes differ
    check(lambda a, row: a[:0] * 2 + 1, a, row, regions=False)


def test_views_that_overlap() -> None:
    def work(x: Tensor) -> tuple[Tensor, ...]:
        x[:600].add_(1)
        x[300:900].mul_(2)  # not the same memory, but some of it
        x[:600].sub_(3)
        first, second = x[:500], x[500:]
        first.mul_(1.5)
        second.add_(first)
        first.sub_(second)
        return (x * 2, first + 1)

    check(work, torch.randn(1000))


def test_writes_in_place_along_a_run() -> None:
    def work(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        old = x + 0.5
        x.mul_(y)
        y.add_(x)
        x.sub_(old)
        middle = x / y
        x.zero_()
        return (old, middle, x + 1)

    check(work, torch.randn(5000), torch.randn(5000))


def test_numbers_that_the_run_computes() -> None:
    def work(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        t = s * 2 + 1  # without dimensions
        y = x[:1] * t  # of the same length, so it could join
        s.add_(1)
        return (y * s, x * t, (x + 1) * s)

    check(work, torch.randn(100), torch.tensor(0.7))


@pytest.mark.parametrize("optimizer", ["AdamW", "Adam", "SGD", "RMSprop", "Adagrad"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_optimizers(dtype: torch.dtype, optimizer: str) -> None:
    shapes = [(64, 64), (64,), (256, 64), (7,), (3, 5), (1,), (100, 33)]
    start = [torch.randn(shape).to(dtype) for shape in shapes]
    gradients = [[torch.randn(shape).to(dtype) for shape in shapes] for _ in range(6)]
    options = {"momentum": 0.9} if optimizer in ("SGD", "RMSprop") else {}

    def train(device: str) -> list[Tensor]:
        parameters = [torch.nn.Parameter(x.clone().to(device)) for x in start]
        method = getattr(torch.optim, optimizer)(parameters, lr=0.01, weight_decay=0.1, foreach=True, **options)
        on_device = [[g.to(device) for g in gradient] for gradient in gradients]
        busy = torch.randn(700, 700, device=device)
        for gradient in on_device:
            for parameter, g in zip(parameters, gradient, strict=True):
                parameter.grad = g
            occupy(busy)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            method.step()
        return [x.detach().cpu() for x in parameters]

    before = torch.neuron.adaptive_stats()["launches_saved"]
    for actual, expected in zip(train("neuron"), train("cpu"), strict=True):
        assert torch.equal(actual, expected)
    assert torch.neuron.adaptive_stats()["launches_saved"] > before


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_too_large_for_the_dtype(dtype: torch.dtype) -> None:
    def work(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2 + 1
        return (y + 1e300, y * -1e39, y * 3.4e38, y / 1e300, y * float("inf"))

    check(work, torch.randn(100).to(dtype))
    x = torch.ones(100, dtype=dtype, device="neuron")
    torch.neuron.synchronize()
    with pytest.raises(RuntimeError, match="overflow"):
        for _ in range(ROUNDS):
            y = x * 2 + 1
            torch.add(y, x, alpha=1e300)
            torch.neuron.synchronize()


def test_lists_whose_tensors_share_memory() -> None:
    def work(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        halves = [x[:50], x[50:]]
        torch._foreach_add_(halves, [y, y])
        torch._foreach_mul_(halves, 1.5)
        torch._foreach_add_([x[:50], x[50:]], [x[50:], x[:50]])  # each lane reads what the other one writes
        torch._foreach_sub_([y, y], [x[:50], x[50:]])  # one tensor twice
        results = torch._foreach_mul([x[:50], x[50:]], [y, y])
        torch._foreach_add_(results, 1)
        return (*results,)

    check(work, torch.randn(100), torch.randn(50))


def test_lists_of_other_lengths_and_numbers() -> None:
    def work(*tensors: Tensor) -> tuple[Tensor, ...]:
        lists = list(tensors)
        torch._foreach_mul_(lists, [0.1, 0.2, 0.3])
        torch._foreach_addcmul_(lists, lists, lists, [1.1, -1.0, 0.4])
        torch._foreach_add_(lists[:2], 2)
        torch._foreach_div_(lists, torch.tensor(3.0, device=lists[0].device))
        return (*torch._foreach_sqrt(lists), *torch._foreach_lerp(lists, lists[::1], 0.7))

    check(work, torch.rand(10), torch.rand(300), torch.rand(5, 5))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_that_one_signature_leaves_out(dtype: torch.dtype) -> None:
    """How a kernel rounds can depend on a number's value and type; a signature holds neither."""
    x, y = torch.randn(5000).to(dtype), torch.randn(5000).to(dtype)
    for alpha in (1, 0.3, 3, 1):
        check(lambda x, y, a=alpha: ((x * 2).add(y, alpha=a) * y, x.clone().add_(y, alpha=a)), x, y, regions=None)
    for number in (3, 0.3, 1):

        def work(x: Tensor, y: Tensor, n: float = number) -> tuple[Tensor, ...]:
            lists = [x * 2, y * 2]
            torch._foreach_mul_(lists, n)
            torch._foreach_mul_(lists, [n, 0.3])
            torch._foreach_add_(lists, [1, n])
            torch._foreach_add_(lists, [y, x], alpha=n)
            return (*lists,)

        check(work, x, y, regions=None)


def test_lists_of_two_dtypes() -> None:
    def work(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        lists = [x * 2, y * 2]
        torch._foreach_mul_(lists, 0.3)
        torch._foreach_add_(lists, [y.to(lists[0].dtype), x.to(lists[1].dtype)], alpha=0.3)
        return (*torch._foreach_sqrt(lists),)

    check(work, torch.rand(3000), torch.rand(3000).bfloat16())
    check(work, torch.rand(3000).bfloat16(), torch.rand(3000))


def test_an_error_amid_a_run_is_raised_once() -> None:
    busy = torch.randn(700, 700, device="neuron")
    table, x = torch.randn(5, 4, device="neuron"), torch.ones(100, device="neuron")
    good, bad = (torch.tensor([i], device="neuron") for i in (4, 5))
    torch.nn.functional.embedding(good, table)
    occupy(busy)
    y = x * 2 + 1
    torch.nn.functional.embedding(bad, table)
    z = y * 3 - 1
    with pytest.raises(IndexError, match="out of range"):
        torch.neuron.synchronize()
    assert torch.equal(z.cpu(), torch.full((100,), 8.0))


def test_autograd_still_sees_writes() -> None:
    x = torch.randn(100, device="neuron", requires_grad=True)
    y = x * 2
    z = y.sqrt()
    z.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check(twelve, torch.randn(1_000_003), torch.randn(1_000_003))
    finally:
        torch.set_num_threads(before)


def test_memory_stays_what_it_is() -> None:
    a, b = torch.randn(100_000, device="neuron"), torch.randn(100_000, device="neuron")
    peaks = []
    for name in ("strict", torch.neuron.get_eager_mode()):
        with torch.neuron.eager_mode(name):
            torch.neuron.synchronize()
            torch.neuron.reset_peak_memory_stats()
            for _ in range(3):
                twelve(a, b)
            torch.neuron.synchronize()
            peaks.append(torch.neuron.max_memory_allocated())
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize(
    ("reason", "work"),
    [
        ("not element-wise", lambda a, b: (a * 2 + 1).sum() * 2),
        ("arguments", lambda a, b: (a * 2 + 1) * b[:, :1]),
        ("other sizes", lambda a, b: (a * 2 + 1, b[:3] * 2)),
        ("shared memory", lambda a, b: (a.view(-1)[:-1].mul_(2), a.view(-1)[1:].add_(1))),
    ],
)
def test_a_cut_has_a_reason(reason: str, work: Callable[..., object]) -> None:
    before = torch.neuron.adaptive_stats()["cuts"]
    check(work, torch.randn(20, 20), torch.randn(20, 20), regions=reason != "shared memory")
    assert torch.neuron.adaptive_stats()["cuts"][reason] > before[reason]


def test_not_where_algorithms_have_to_be_deterministic() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        check(twelve, torch.rand(100), torch.rand(100), regions=False)
    finally:
        torch.use_deterministic_algorithms(False)


def test_temporary_tensors_of_one_memory() -> None:
    """The allocator gives the memory of one temporary to the next; only the last value reaches it."""

    def work(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        kept = (a * b + 1) * 2 - b
        again = ((kept * 0.5 + a) * b - 3) * a
        a.add_(1)
        a.mul_(kept)
        again.sub_(a)
        a.div_(3)
        return kept, again, a * 2, a

    check(work, torch.randn(70_001), torch.randn(70_001))


def test_kinds_are_tried_once() -> None:
    check(twelve, torch.rand(100), torch.rand(100))
    kinds = torch.neuron.adaptive_stats()["kinds"]
    check(twelve, torch.rand(222), torch.rand(222))
    assert torch.neuron.adaptive_stats()["kinds"] == kinds
    assert kinds["aten::mul.Tensor, tensor Float, tensor Float"]


def test_modes(mode: str) -> None:
    assert torch.neuron.get_eager_mode() == mode
    with torch.neuron.eager_mode("strict"):
        assert torch.neuron.get_eager_mode() == "strict"
        check(twelve, torch.rand(100), torch.rand(100), regions=False)
    assert torch.neuron.get_eager_mode() == mode
    with pytest.raises(ValueError, match="strict, adaptive and verify, not fast"):
        torch.neuron.eager_mode("fast")
