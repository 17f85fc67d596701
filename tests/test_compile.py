"""torch.compile on neuron: what a compiled function gives is what the function gives on the CPU, uncompiled."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.compiled import assert_close, check, copied_to


def floats(*sizes: int, grad: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(sizes, generator=generator).to(dtype).requires_grad_(grad)


def integers(*values: Any) -> Tensor:
    return torch.tensor(values)


def mutates_and_views(x: Tensor) -> tuple[Tensor, Tensor]:
    rows = x[1:]
    rows.mul_(3)
    return rows, x.t()


def one_result_thrice(x: Tensor) -> tuple[Tensor, ...]:
    y = x + 1
    return y, y, y.t()


def lstm(x: Tensor, *parameters: Tensor) -> Any:
    state = (torch.zeros(1, 2, 6, device=x.device), torch.zeros(1, 2, 6, device=x.device))
    return torch.lstm(x, state, list(parameters), True, 1, 0.0, False, False, False)


def count_experts(chosen: Tensor) -> Tensor:
    """As routers do it that know the CPU's kernel: integers are counted on every other device."""
    return torch.histc(chosen.float() if chosen.is_cpu else chosen, bins=4, min=0, max=3).long().cumsum(0)


attention = functools.partial(F.scaled_dot_product_attention, is_causal=True)
HEADS = (2, 3, 8, 16)
BFLOAT16 = floats(32, 64, dtype=torch.bfloat16)
INT8 = (floats(32, 64) * 10).to(torch.int8)

# name: function, arguments
STEPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "pointwise": (lambda x: torch.relu(x) * 2 + 1, (floats(4, 5),)),
    "input written": (lambda x: x.add_(1).mul(2), (floats(4, 5),)),
    "views of inputs": (mutates_and_views, (floats(4, 5),)),
    "one result, three times": (one_result_thrice, (floats(4, 5),)),
    "input as a result": (lambda x: (x, x + 1, None, 3), (floats(4, 5),)),
    "a CPU scalar": (lambda x: x * torch.tensor(2.5), (floats(4, 5),)),
    "sorted": (lambda x: x.sort(1), (floats(4, 5),)),
    "index_put": (
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        (floats(9, 3), integers(1, 4, 1), floats(3, 3)),
    ),
    "scatter_reduce": (
        lambda x, i, v: x.scatter_reduce(0, i, v, "amax"),
        (floats(9, 3), integers([1, 2, 0], [3, 3, 3]), floats(2, 3)),
    ),
    "convolution": (
        lambda x, w: F.conv2d(x, w, padding=1).relu(),
        (floats(2, 3, 8, 8, grad=True), floats(4, 3, 3, 3, grad=True)),
    ),
    "batched product": (torch.bmm, (floats(2, 3, 4, grad=True), floats(2, 4, 5, grad=True))),
    "attention": (attention, (floats(*HEADS, grad=True), floats(*HEADS, grad=True), floats(*HEADS, grad=True))),
    "attention, defaults left out": (
        F.scaled_dot_product_attention,
        (floats(*HEADS, grad=True), floats(*HEADS, grad=True), floats(*HEADS, grad=True)),
    ),
    "masked_scatter": (
        lambda x, mask, source: x.masked_scatter(mask, source) * 2,
        (floats(3, 4), floats(3, 4) > 0, floats(12)),
    ),
    "histogram of integers": (count_experts, (integers(0, 3, 1, 3, 3, 7),)),
    "decomposition": (lambda x: torch.linalg.svd(x)[1], (floats(4, 4),)),
    "parts": (lambda x: [part * 2 for part in x.split(2)], (floats(6, 4),)),
    "bfloat16": (lambda x, w: F.gelu(x @ w), (floats(6, 4, dtype=torch.bfloat16), floats(4, 8, dtype=torch.bfloat16))),
    "grouped product": (
        lambda x, w, ends: torch._grouped_mm(x, w, offs=ends),
        (BFLOAT16, floats(4, 64, 32, dtype=torch.bfloat16), integers(8, 16, 20, 32).int()),
    ),
    "product of 8-bit integers": (torch._int_mm, (INT8, INT8.t().contiguous())),
    "product of 8-bit floats": (
        lambda x, y, one: torch._scaled_mm(x, y, one, one, out_dtype=torch.bfloat16),
        (BFLOAT16.to(torch.float8_e4m3fn), BFLOAT16.to(torch.float8_e4m3fn).t(), torch.tensor(1.0)),
    ),
    "weights in 8 bits": (torch._weight_int8pack_mm, (BFLOAT16, INT8, floats(32, dtype=torch.bfloat16))),
    "embedding": (lambda w, i: F.embedding(i, w), (floats(9, 3, grad=True), integers(1, 4, 1))),
    "lstm": (lstm, (floats(5, 2, 4), floats(24, 4), floats(24, 6), floats(24), floats(24))),
    "to the host": (lambda x: (x * 2).cpu(), (floats(4, 5),)),
    "scalar argument": (lambda x, k: x * k, (floats(4, 5), 3)),
    "data decides the shape": (lambda x: x[x > 0] * 2, (floats(4, 5),)),
}


# A compilation takes seconds: these show every kind of step, the others are slow tests.
FAST = {
    "complex numbers",
    "pointwise",
    "input written",
    "views of inputs",
    "a CPU scalar",
    "convolution",
    "grouped product",
    "attention",
    "to the host",
}


def fast_or_slow(name: str) -> Any:
    return name if name in FAST else pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [fast_or_slow(name) for name in STEPS])
def test_runs_as_steps_of_the_core(name: str) -> None:
    function, arguments = STEPS[name]
    metrics = check(function, *arguments, same_strides=name != "convolution")
    assert metrics
    assert [graph["python_reason"] for graph in metrics] == [None] * len(metrics)


THROUGH_PYTHON: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "cond": (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), (floats(4, 5),)),
    "complex numbers": (lambda x: torch.view_as_real(torch.view_as_complex(x) * 1j), (floats(4, 2),)),
}


@pytest.mark.parametrize("name", [fast_or_slow(name) for name in THROUGH_PYTHON])
def test_code_that_steps_do_not_cover_runs_as_python(name: str) -> None:
    function, arguments = THROUGH_PYTHON[name]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Torchinductor does not support code generation for complex")
        metrics = check(function, *arguments)
    assert any(graph["python_reason"] for graph in metrics)


def test_one_launch_a_graph_and_asynchronous(device: torch.device) -> None:
    from torch_neuronx import _C

    function = torch.compile(lambda x: (x @ x).relu() @ x + 1, backend="neuron")
    x = torch.ones(64, 64, device=device)
    function(x)
    _C._set_hand_off("always")
    try:
        before = _C._launch_statistics()
        function(x)
        after = _C._launch_statistics()
    finally:
        _C._set_hand_off("measured")
    assert after["enqueued"] == before["enqueued"] + 1
    assert after["inline"] == before["inline"]


def test_order_with_eager_code_and_streams(device: torch.device) -> None:
    x = torch.zeros(512, 512, device=device)
    step = torch.compile(lambda x: x * 2 + 1, backend="neuron")
    side = torch.neuron.Stream()
    for _ in range(20):
        x.add_(1)
        x = step(x)
        side.wait_stream(torch.neuron.current_stream())
        with torch.neuron.stream(side):
            x = step(x)
            x.sub_(3)
        torch.neuron.current_stream().wait_stream(side)
    expected = 0.0
    for _ in range(20):
        expected = ((expected + 1) * 2 + 1) * 2 + 1 - 3
    assert_close(x, torch.full((512, 512), expected), "20 rounds on two streams")


def test_late_errors_name_the_graph_and_the_line(device: torch.device) -> None:
    from torch_neuronx import _C

    lookup = torch.compile(lambda w, i: F.embedding(i, w) * 2, backend="neuron", options={"model_name": "lookup"})
    weight = torch.ones(5, 3, device=device)
    lookup(weight, torch.tensor([1], device=device))
    indices = torch.tensor([7], device=device)
    _C._set_hand_off("always")
    try:
        lookup(weight, indices)
        with pytest.raises(RuntimeError, match="index out of bounds") as caught:
            torch.neuron.synchronize()
    finally:
        _C._set_hand_off("measured")
    assert re.search(r"lookup_forward_\d+, submitted at .*test_compile\.py:\d+ in ", str(caught.value))
    assert_close(lookup(weight, torch.tensor([2], device=device)), torch.full((1, 3), 2.0), "after the error")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(1)
        return x + self.down(F.gelu(self.up(self.norm(x))))


def train(model: nn.Module, x: Tensor, steps: int, *, compiled_step: bool = False) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = torch.compile(optimizer.step, backend="neuron") if compiled_step else optimizer.step
    losses = []
    for _ in range(steps):
        loss = (model(x) - x.roll(1, 0)).square().mean()
        loss.backward()
        step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("compiled_step", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_training_learns_as_on_the_cpu(compiled_step: bool) -> None:
    torch._dynamo.reset()
    reference = Block()
    model = copied_module(reference)
    model.compile(backend="neuron")
    x = floats(8, 16)
    expected = train(reference, x, 8)
    actual = train(model, x.to("neuron"), 8, compiled_step=compiled_step)
    assert actual == pytest.approx(expected, rel=1e-4)
    assert expected[-1] < expected[0]
    assert model.seen.item() == reference.seen.item() == 8


def copied_module(module: nn.Module) -> Any:
    import copy

    return copy.deepcopy(module).to("neuron")


def test_default_backend_needs_no_import() -> None:
    before = torch.compiler.get_default_backend()
    torch.compiler.set_default_backend("neuron")
    try:
        torch.neuron.reset_dynamo_metrics()
        torch.compile(lambda x: x - 7)(torch.ones(3, device="neuron"))
        assert len(torch.neuron.get_dynamo_metrics()) == 1
    finally:
        torch.compiler.set_default_backend(before)
    assert "neuron" in torch.compiler.list_backends()


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_no_backend_named_means_this_one_on_neuron(mode: str | None, device: torch.device) -> None:
    torch._dynamo.reset()
    torch.neuron.reset_dynamo_metrics()
    x = torch.ones(3, device=device, requires_grad=True)
    y = torch.compile(lambda x: x.exp() * 5, mode=mode)(x)
    y.sum().backward()
    assert_close(y, torch.ones(3).exp() * 5, "result")
    assert torch.equal(x.grad, y.detach())
    assert len(torch.neuron.get_dynamo_metrics()) == 2
    assert torch.compile(lambda x: x * 2, backend="inductor")(torch.ones(3)).device.type == "cpu"
    assert len(torch.neuron.get_dynamo_metrics()) == 2


def test_graph_breaks_and_disabled_functions() -> None:
    @torch.compiler.disable
    def outside(x: Tensor) -> Tensor:
        return x + 10

    def function(x: Tensor) -> Tensor:
        y = outside(x * 2)
        torch._dynamo.graph_break()
        return y * 3

    metrics = check(function, floats(3, 3))
    assert len(metrics) == 2


def test_checkpointed_block() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return checkpoint(lambda x: torch.tanh(x @ w).exp(), x, use_reentrant=False)  # type: ignore[return-value]

    check(function, floats(4, 8, grad=True), floats(8, 8, grad=True))


def test_autocast() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return torch.mm(x, w).float().sum(0)

    x, w = floats(16, 16), floats(16, 16)
    torch._dynamo.reset()
    actual = torch.compile(function, backend="neuron")(x.to("neuron"), w.to("neuron"))
    torch.testing.assert_close(actual.cpu(), function(x, w), rtol=1e-2, atol=1e-1)


def test_custom_operator(device: torch.device) -> None:
    @torch.library.custom_op("neuron_compile_test::double_plus", mutates_args=())
    def double_plus(x: Tensor, k: int) -> Tensor:
        return x * 2 + k

    @double_plus.register_fake
    def _(x: Tensor, k: int) -> Tensor:
        return torch.empty_like(x)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*fell back.*")
        check(lambda x: double_plus(x + 1, 3) * 2, floats(4, 4))


def test_a_cpu_tensor_is_copied_and_written_back() -> None:
    torch._dynamo.reset()

    def function(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2 + torch.ones(3)

    x = torch.zeros(3)
    result = torch.compile(function, backend="neuron")(x)
    assert result.device.type == "neuron"
    assert result.tolist() == [3.0] * 3
    assert x.tolist() == [1.0] * 3


def test_a_cpu_tensor_is_refused_when_the_variable_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setenv("TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY", "1")
    with pytest.raises(Exception, match="input 0 of a function compiled for neuron is on cpu"):
        torch.compile(lambda x: x * 5, backend="neuron")(torch.ones(3))


def test_two_devices_in_one_graph_are_refused(device: torch.device, second_device: torch.device) -> None:
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"can't span several neuron devices, but it has tensors on \[0, 1\]"):
        torch.compile(lambda x, y: (x + 1, y + 1), backend="neuron")(
            torch.ones(3, device=device), torch.ones(3, device=second_device)
        )


def test_second_device(second_device: torch.device) -> None:
    torch._dynamo.reset()
    result = torch.compile(lambda x: x + 1, backend="neuron")(torch.ones(3, device=second_device))
    assert result.device == second_device
    made = torch.compile(lambda: torch.ones(3, device=second_device) * 2, backend="neuron")()
    assert made.device == second_device


def test_a_graph_is_among_the_executed_operators(device: torch.device) -> None:
    torch.neuron.reset_dynamo_metrics()
    function = torch.compile(lambda x: (x + 1).relu(), backend="neuron", options={"model_name": "tracked"})
    x = torch.ones(4, device=device)
    function(x)
    torch.neuron.clear_op_tracking()
    function(x)
    function(x)
    (graph,) = torch.neuron.get_dynamo_metrics()
    assert torch.neuron.get_executed_ops() == [f"neuron::graph.{graph['name']}"] * 2
    assert torch.neuron.get_fallback_ops() == []
    torch.neuron.clear_op_tracking()
    assert torch.neuron.get_executed_ops() == []


def test_memory_of_results_is_the_devices(device: torch.device) -> None:
    function = torch.compile(lambda x: (x + 1).relu() * 2, backend="neuron")
    x = torch.ones(256, 256, device=device)
    function(x)
    torch.neuron.synchronize()
    before = torch.neuron.memory_allocated()
    result = function(x)
    assert torch.neuron.memory_allocated() - before == result.untyped_storage().nbytes()
    del result
    torch.neuron.synchronize()
    assert torch.neuron.memory_allocated() == before


def test_dynamic_shapes_compile_once() -> None:
    torch._dynamo.reset()
    torch.neuron.reset_dynamo_metrics()
    function = torch.compile(lambda x: (x.softmax(-1) * x.shape[0], x.shape[1] + 1), backend="neuron", dynamic=True)
    for rows, columns in ((3, 5), (7, 4), (128, 33), (3, 5)):
        x = floats(rows, columns)
        result, integer = function(x.to("neuron"))
        assert_close(result, x.softmax(-1) * rows, f"{rows}x{columns}")
        assert integer == columns + 1
    assert len(torch.neuron.get_dynamo_metrics()) == 1


def test_fake_tensors_and_guards_say_neuron(device: torch.device) -> None:
    seen: list[torch.device] = []

    @torch.compiler.allow_in_graph
    def look(x: Tensor) -> Tensor:
        seen.append(x.device)
        return x

    torch._dynamo.reset()
    torch.compile(lambda x: look(x * 2) + 1, backend="neuron")(torch.ones(3, device=device))
    assert seen
    assert {found.type for found in seen} == {"neuron"}
    exported = torch.export.export(Block().to(device), (torch.ones(2, 16, device=device),))
    assert "cpu" not in str(exported)
    assert_close(
        exported.module()(torch.ones(2, 16, device=device)).cpu() * 0, torch.zeros(2, 16), "an exported graph runs"
    )


def test_the_callers_copy_of_inputs_is_left_alone(device: torch.device) -> None:
    arguments = copied_to([floats(3, 3), floats(3, 3)], "neuron")
    torch.compile(lambda xs: xs[0] + xs[1], backend="neuron")(arguments)
    assert len(arguments) == 2
