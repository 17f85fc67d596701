"""torch.compile on a wide range of programs: aliases, writes, shapes, dtypes, functional transforms, control flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.while_loop import while_loop

from tests.compiled import assert_close, check

pytestmark = pytest.mark.slow


def floats(*sizes: int, grad: bool = False, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(sizes) + seed)
    return torch.randn(sizes, generator=generator).requires_grad_(grad)


def five_times(x: Tensor) -> Any:
    start = torch.zeros((), dtype=torch.int64, device=x.device)
    return while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, y * 1.1), (start, x))


def transposed_in_place(x: Tensor) -> Tensor:
    x.t_()
    return x + 1


def hooked(x: Tensor) -> Tensor:
    y = x * 3
    y.register_hook(lambda gradient: gradient * 2)
    return y.sum()


def rows_that_alias(base: Tensor) -> Tensor:
    first, second = base[0], base[1]
    first.add_(1)
    return second * 2 + first


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "while_loop": (five_times, (floats(3, 3),)),
    "associative_scan": (
        lambda x: associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic"),
        (floats(5, 4),),
    ),
    "vmap": (torch.vmap(lambda row: row.sin().sum()), (floats(3, 3),)),
    "grad": (torch.func.grad(lambda x: (x**3).sum()), (floats(3, 3),)),
    "unsqueeze_": (lambda x: x.unsqueeze_(0), (floats(3, 3),)),
    "t_": (transposed_in_place, (floats(3, 4),)),
    "out=": (lambda x, out: torch.add(x, 1, out=out), (floats(3, 4), floats(3, 4))),
    "copy_": (lambda x, out: out.copy_(x), (floats(3, 4), floats(3, 4))),
    "a view is filled": (lambda x: (x[0].zero_(), x.sum()), (floats(3, 4),)),
    "expand": (lambda x: x.expand(5, 3, 4), (floats(3, 4),)),
    "a transposed copy": (lambda x: x.t().clone(), (floats(3, 4),)),
    "integers": (lambda x: (x // 2, x % 3), (torch.arange(10),)),
    "booleans": (lambda x: (x > 0) & (x < 1), (floats(4, 4),)),
    "float64": (torch.exp, (floats(4, 4).double(),)),
    "float16": (lambda x: (x @ x).softmax(-1), (floats(8, 8).half(),)),
    "empty": (lambda x: x * 2, (floats(0, 4),)),
    "no dimensions": (lambda x: x * 2, (torch.tensor(3.0),)),
    "a float argument": (lambda x, k: x * k, (floats(3, 3), 2.5)),
    "nonzero": (lambda x: (x.nonzero() * 2, x.nonzero().shape[0]), (floats(4, 4) > 0,)),
    "unique": (torch.unique, (torch.tensor([3, 1, 1, 2]),)),
    "gather": (
        lambda x, i: x.gather(1, i),
        (floats(4, 4, grad=True), torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0]])),
    ),
    "batch_norm": (
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, training=True),
        (floats(8, 4, grad=True), torch.zeros(4), torch.ones(4), floats(4, grad=True), floats(4, grad=True, seed=3)),
    ),
    "cross_entropy": (F.cross_entropy, (floats(8, 5, grad=True), torch.tensor([0, 1, 2, 3, 4, 0, 1, 2]))),
    "dicts and lists": (
        lambda d: {"a": d["x"] + 1, "b": [d["y"], d["x"].sum()]},
        ({"x": floats(3, 3), "y": floats(2, 2)},),
    ),
    "group_norm": (
        lambda x, w, b: F.group_norm(x, 2, w, b),
        (floats(2, 4, 5, 5, grad=True), floats(4, grad=True), floats(4, grad=True, seed=3)),
    ),
    "interpolate": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        (floats(1, 2, 4, 4, grad=True),),
    ),
    "adaptive pool": (lambda x: F.adaptive_avg_pool2d(x, 3), (floats(1, 2, 7, 7, grad=True),)),
    "max pool": (lambda x: F.max_pool2d(x, 2), (floats(2, 3, 8, 8, grad=True),)),
    "einsum": (
        lambda a, b: torch.einsum("bij,bjk->ik", a, b),
        (floats(2, 3, 4, grad=True), floats(2, 4, 5, grad=True)),
    ),
    "hook": (hooked, (floats(3, 3, grad=True),)),
    "rows of one input": (rows_that_alias, (floats(2, 3),)),
    "cumsum": (lambda x: x.cumsum(0), (floats(5, 3),)),
    "topk": (lambda x: x.topk(3), (floats(4, 9),)),
    "masked attention": (
        F.scaled_dot_product_attention,
        (*(floats(2, 3, 8, 16, grad=True, seed=seed) for seed in range(3)), floats(8, 8)),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    function, arguments = PROGRAMS[name]
    check(function, *arguments)


@pytest.mark.parametrize("name", ["cumsum", "gather", "cross_entropy", "group_norm", "einsum", "batch_norm"])
def test_program_with_symbolic_shapes(name: str) -> None:
    function, arguments = PROGRAMS[name]
    check(function, *arguments, dynamic=True)


def test_inputs_that_overlap() -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return b * 2

    torch._dynamo.reset()
    base = floats(4, 4)
    on_device = base.clone().to("neuron")
    result = torch.compile(function, backend="neuron")(on_device[1:3], on_device[2:4])
    assert_close(result, function(base[1:3], base[2:4]), "result")
    assert_close(on_device, base, "base")


def test_inference_mode(device: torch.device) -> None:
    torch._dynamo.reset()
    with torch.inference_mode():
        result = torch.compile(lambda x: x.exp() + 1, backend="neuron")(torch.zeros(3, device=device))
        assert result.is_inference()
    assert result.tolist() == [2.0] * 3


def test_compiled_autograd(device: torch.device) -> None:
    torch._dynamo.reset()
    x = floats(3, 3).to(device).requires_grad_()

    @torch.compile(backend="neuron")
    def step(x: Tensor) -> Tensor:
        loss = (x.exp() * 2).sum()
        loss.backward()
        return loss

    with torch._dynamo.config.patch(compiled_autograd=True):
        step(x)
    assert x.grad is not None
    assert_close(x.grad, 2 * x.detach().cpu().exp(), "gradient")


def test_shapes_compile_as_often_as_for_the_cpu(device: torch.device) -> None:
    def function(x: Tensor) -> Tensor:
        return x.softmax(-1) * x.shape[0]

    compilations = {}
    for backend, place in (("inductor", "cpu"), ("neuron", "neuron")):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=backend)
        torch._dynamo.utils.counters.clear()
        for sizes in ((3, 5), (4, 5), (9, 5), (9, 6), (7, 8), (1, 8), (0, 8)):
            compiled(torch.ones(sizes, device=place))
        compilations[backend] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert compilations["neuron"] == compilations["inductor"]
