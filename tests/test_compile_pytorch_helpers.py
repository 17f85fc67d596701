"""PyTorch's own helpers for testing compilers, which ship in the wheel, used on neuron."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend, same
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code
from torch.testing._internal.optests import aot_autograd_check


def test_the_backend_is_called_once_a_graph(device: torch.device) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("neuron")

    @torch.compile(backend=counter)
    def function(x: Tensor) -> Tensor:
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos() + 1

    x = torch.ones(4, device=device)
    assert same(function(x), (x.sin().cos() + 1), tol=1e-6)
    assert (counter.frame_count, counter.op_count) == (2, 3)


def test_generated_code_is_at_hand(device: torch.device) -> None:
    torch._dynamo.reset()
    function = torch.compile(lambda x: (x * 3).sum(), backend="neuron")
    with torch._inductor.config.patch(force_disable_caches=True):
        result, codes = run_and_get_code(function, torch.ones(4, device=device))
    assert result.item() == 12.0
    assert len(codes) == 1
    assert "cpp_fused" in codes[0]


def test_aot_autograd_check(device: torch.device) -> None:
    x = torch.randn(3, 4, device=device, requires_grad=True)
    for dynamic in (False, True):
        aot_autograd_check(lambda x: (x.sigmoid() @ x.t()).sum(0), (x,), {}, dynamic=dynamic)


def test_opcheck_of_a_custom_operator(device: torch.device) -> None:
    @torch.library.custom_op("neuron_opcheck_test::scaled", mutates_args=())
    def scaled(x: Tensor, factor: float) -> Tensor:
        return x * factor

    @scaled.register_fake
    def _(x: Tensor, factor: float) -> Tensor:
        return torch.empty_like(x)

    scaled.register_autograd(lambda ctx, gradient: (gradient * 2.0, None))
    # Its check of the autograd registration knows a list of device types only.
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_static", "test_aot_dispatch_dynamic")
    torch.library.opcheck(scaled, (torch.randn(3, device=device, requires_grad=True), 2.0), test_utils=checks)


def test_regional_compilation(device: torch.device) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).relu()

    graphs = {}
    for place, backend in (("cpu", "inductor"), (str(device), "neuron")):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        blocks = nn.Sequential(*(Block() for _ in range(3))).to(place)
        x = torch.ones(2, 8, device=place)
        expected = blocks(x)
        for block in blocks:
            block.compile(backend=backend)
        torch.testing.assert_close(blocks(x), expected, rtol=1e-5, atol=1e-5)
        graphs[backend] = counters["stats"]["unique_graphs"]
    assert graphs["neuron"] == graphs["inductor"] > 0
