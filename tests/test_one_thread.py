"""Small kernels on one host thread: only where every bit stays, and without a trace in the user's data and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from torch_neuronx import _C

RECURRENCES = 12  # a signature is tried when it has recurred some times
THREADS = 2


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """The number of threads that decides about trials, whatever the host has, and an executor that runs everything."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    _C._set_hand_off("always")
    yield
    _C._set_hand_off("measured")
    torch.set_num_threads(before)


def one_thread_runs() -> int:
    return _C._launch_statistics()["one_thread"]


def attention_backward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return torch.autograd.grad(out.sum(), (q, k, v))


def layer_norm_backward(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    x, weight, bias = (t.detach().requires_grad_() for t in (x, weight, bias))
    out = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)
    return torch.autograd.grad((out * out).sum(), (x, weight, bias))


CASES: dict[str, tuple[Callable[..., object], list[tuple[int, ...]]]] = {
    "product": (torch.mm, [(64, 96), (96, 128)]),
    "long product": (torch.mm, [(4, 20000), (20000, 3)]),  # such a one may be split along what is added
    "product with a bias": (torch.addmm, [(48,), (33, 77), (77, 48)]),
    "batched product": (torch.bmm, [(5, 31, 40), (5, 40, 17)]),
    "layer norm, backward": (layer_norm_backward, [(128, 48), (48,), (48,)]),
    "softmax": (lambda x: torch.log_softmax(x, -1), [(70, 130)]),
    "attention, backward": (attention_backward, [(2, 3, 40, 16)] * 3),
    "sum over rows": (lambda x: x.sum(0), [(300, 200)]),
    "sum": (torch.sum, [(300, 200)]),
    "element-wise, over the grain size": (lambda x: torch.nn.functional.gelu(x) * 2, [(41, 1001)]),
    "transcendental": (lambda x: x.exp().tanh(), [(41, 1001)]),
    "embedding": (lambda table: table[torch.arange(50, device=table.device)], [(60, 24)]),
    "concatenation": (lambda *parts: torch.cat(parts), [(40, 1000), (3, 1000)]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_every_bit_is_the_one_of_all_threads(name: str, dtype: torch.dtype) -> None:
    operate, shapes = CASES[name]
    inputs = [torch.randn(shape).to(dtype) for shape in shapes]
    expected = operate(*inputs)
    on_device = [x.to("neuron") for x in inputs]
    results = [operate(*on_device) for _ in range(RECURRENCES)]
    for result in results:
        pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (result, expected)), strict=True)
        for actual, wanted in pairs:
            torch.testing.assert_close(actual.cpu(), wanted, rtol=0, atol=0, equal_nan=True)


def recur(work: Callable[[], object], times: int = 40) -> None:
    for _ in range(times):
        work()
    torch.neuron.synchronize()


def test_small_products_run_on_one_thread_while_the_caller_works() -> None:
    a = torch.randn(64, 64, device="neuron")
    recur(lambda: a @ a)
    before = one_thread_runs()
    recur(lambda: a @ a)
    assert one_thread_runs() > before


def test_large_ones_keep_all_threads() -> None:
    a = torch.randn(1024, 1024, device="neuron")
    before = one_thread_runs()
    recur(lambda: a @ a, RECURRENCES)
    assert one_thread_runs() == before


def test_nothing_changes_with_a_single_thread() -> None:
    torch.set_num_threads(1)
    a = torch.randn(64, 64, device="neuron")
    before = one_thread_runs()
    recur(lambda: a @ a)
    assert one_thread_runs() == before


def test_the_number_of_threads_stays_what_was_set() -> None:
    a = torch.randn(64, 64, device="neuron")
    recur(lambda: a @ a)
    assert torch.get_num_threads() == THREADS
    torch.set_num_threads(THREADS + 1)  # the next run is tried anew, for this number
    recur(lambda: a @ a)
    assert torch.get_num_threads() == THREADS + 1


def test_trials_draw_no_numbers_of_the_user() -> None:
    torch.manual_seed(7)
    expected = torch.rand(4)
    torch.manual_seed(7)
    a = torch.randn(64, 64, device="neuron")
    recur(lambda: a @ a)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=["floats", "integers"])
def test_trials_of_writing_kernels_leave_the_arguments_alone(dtype: torch.dtype) -> None:
    tensors = [torch.zeros(50, 50, dtype=dtype, device="neuron") for _ in range(3)]
    single = torch.zeros(200, 200, dtype=dtype, device="neuron")
    for _ in range(RECURRENCES):
        torch._foreach_add_(tensors, 1)
        single.add_(1)
    for tensor in [*tensors, single]:
        assert (tensor == RECURRENCES).all()


def test_dtypes_without_random_values_are_left_alone() -> None:
    values = torch.arange(200 * 200, device="neuron").remainder(16).view(200, 200).to(torch.float8_e4m3fn)
    target = torch.zeros(200, 200, device="neuron")
    recur(lambda: target.copy_(values), RECURRENCES)
    recur(lambda: torch.cat([values, values]), RECURRENCES)
    assert torch.equal(target.cpu(), torch.arange(200 * 200).remainder(16).view(200, 200).float())


def test_an_error_of_the_kernel_is_raised_once() -> None:
    table = torch.randn(100, 8, device="neuron")
    good, bad = (torch.tensor(index, device="neuron").expand(300) for index in (5, 100))
    torch.nn.functional.embedding(good, table)
    for _ in range(RECURRENCES):
        torch.nn.functional.embedding(bad, table)
        with pytest.raises(IndexError, match="out of range"):
            torch.neuron.synchronize()
    assert torch.equal(torch.nn.functional.embedding(good, table)[0].cpu(), table[5].cpu())
