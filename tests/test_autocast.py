"""torch.autocast("neuron") and GradScaler: the rules PyTorch has for cuda."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists, AutocastTestLists

LOW = [torch.bfloat16, torch.float16]


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(shape, generator=generator).to("neuron", dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", LOW)
def test_lower_precision_ops(dtype: torch.dtype) -> None:
    a, b, v, image, kernel = tensors((4, 4), (4, 4), (4,), (1, 2, 6, 6), (3, 2, 3, 3))
    bias = tensors((4,))[0]
    with torch.autocast("neuron", dtype=dtype):
        results = {
            "mm": a @ b,
            "mv": a @ v,
            "addmm": torch.addmm(a, a, b),
            "bmm": torch.bmm(a[None], b[None]),
            "baddbmm": torch.baddbmm(a[None], a[None], b[None]),
            "linear": F.linear(a, b, bias),
            "einsum": torch.einsum("ij,jk->ik", a, b),
            "conv2d": F.conv2d(image, kernel),
            "conv_transpose2d": F.conv_transpose2d(image, kernel.transpose(0, 1)),
            "prelu": F.prelu(a, torch.full((1,), 0.1, device="neuron")),
            "sdpa": F.scaled_dot_product_attention(a[None, None], a[None, None], b[None, None]),
        }
    for name, result in results.items():
        assert result.dtype == dtype, name
        assert result.device.type == "neuron"


@pytest.mark.parametrize("dtype", LOW)
def test_float32_ops(dtype: torch.dtype) -> None:
    a, b = (t.to(dtype) for t in tensors((4, 4), (4, 4)))
    labels = torch.tensor([0, 1, 2, 3], device="neuron")
    with torch.autocast("neuron", dtype=dtype):
        results = {
            "exp": a.exp(),
            "log": a.log(),
            "pow": a.pow(2),
            "softmax": a.softmax(-1),
            "log_softmax": a.log_softmax(-1),
            "layer_norm": F.layer_norm(a, (4,)),
            "group_norm": F.group_norm(a, 2),
            "cross_entropy": F.cross_entropy(a, labels),
            "mse_loss": F.mse_loss(a, b),
            "sum": a.sum(),
            "cumsum": a.cumsum(0),
            "prod": a.prod(),
            "norm": a.norm(),
            "cosine_similarity": F.cosine_similarity(a, b),
            "bce_with_logits": F.binary_cross_entropy_with_logits(a, b),
        }
    for name, result in results.items():
        assert result.dtype == torch.float32, name


@pytest.mark.parametrize("dtype", LOW)
def test_promoting_ops(dtype: torch.dtype) -> None:
    (a,) = tensors((4,))
    low = a.to(dtype)
    with torch.autocast("neuron", dtype=dtype):
        assert torch.addcmul(a, low, low).dtype == torch.float32
        assert torch.dot(low, low).dtype == dtype
        assert torch.atan2(a, low).dtype == torch.float32
        assert torch.cat([a, low]).dtype == torch.float32
        assert torch.stack([a, low]).dtype == torch.float32


# The lists with which PyTorch tests autocast on its own devices.
_LISTS = AutocastTestLists(torch.device("neuron"))
# cuDNN's own entry points, and an entry that cannot be called as it is written (tested above).
_LEFT_OUT = {"cudnn_convolution", "cudnn_convolution_transpose", "einsum"}


def _cases(expected: torch.dtype, *lists: list[tuple]) -> list[tuple]:
    return [(case[0], case[1:], expected) for cases in lists for case in cases if case[0] not in _LEFT_OUT]


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        *_cases(torch.bfloat16, _LISTS.torch_fp16, _LISTS.nn_fp16),
        *_cases(torch.float32, _LISTS.torch_fp32, _LISTS.nn_fp32, _LISTS.methods_fp32),
    ],
)
def test_lists_of_pytorch(name: str, args: tuple, expected: torch.dtype) -> None:
    kwargs = args[1] if len(args) > 1 and isinstance(args[1], dict) else {}
    function = getattr(torch, name, None) or getattr(torch._C._nn, name, None) or getattr(torch.Tensor, name)
    with torch.autocast("neuron", dtype=torch.bfloat16):
        result = function(*args[0], **kwargs)
    first = result[0] if isinstance(result, tuple | list) else result
    assert first.dtype == expected


def test_values_are_those_of_the_cpu() -> None:
    a, b = tensors((16, 16), (16, 16))
    with torch.autocast("neuron", dtype=torch.bfloat16):
        ours = F.layer_norm(F.gelu(a @ b), (16,))
    # The CPU's own lists differ from cuda's, so the casts are written out.
    theirs = F.layer_norm(F.gelu(a.cpu().bfloat16() @ b.cpu().bfloat16()).float(), (16,))
    assert torch.equal(ours.cpu(), theirs)


def test_state() -> None:
    assert not torch.is_autocast_enabled("neuron")
    with torch.autocast("neuron", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("neuron")
        assert torch.get_autocast_dtype("neuron") == torch.bfloat16
        with torch.autocast("neuron", enabled=False):
            assert not torch.is_autocast_enabled("neuron")
            a, b = tensors((2, 2), (2, 2))
            assert (a @ b).dtype == torch.float32
        assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("neuron")


def test_decorator_and_custom_functions() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="neuron", cast_inputs=torch.float32)
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            assert not torch.is_autocast_enabled("neuron")
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type="neuron")
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            return grad @ b.T, a.T @ grad

    @torch.autocast("neuron", dtype=torch.bfloat16)
    def step(a, b):
        return Product.apply(a, b)

    a, b = tensors((3, 3), (3, 3), dtype=torch.bfloat16)
    out = step(a.requires_grad_(), b)
    assert out.dtype == torch.float32
    out.sum().backward()
    assert a.grad.dtype == torch.bfloat16


def test_casts_of_weights_are_cached() -> None:
    weight = torch.nn.Parameter(tensors((4, 4))[0])
    (x,) = tensors((4, 4))
    torch.neuron.clear_op_tracking()
    with torch.autocast("neuron", dtype=torch.bfloat16):
        F.linear(x, weight)
        F.linear(x, weight)
    casts = [name for name in torch.neuron.get_executed_ops() if "copy" in name]
    assert len(casts) == 3  # x twice, the weight once


def test_unsupported_dtype_switches_autocast_off() -> None:
    with pytest.warns(UserWarning, match="neuron Autocast only supports dtypes of"):
        context = torch.autocast("neuron", dtype=torch.float64)
    with context:
        assert not torch.is_autocast_enabled("neuron")


def test_binary_cross_entropy_is_refused() -> None:
    a, b = tensors((4,), (4,))
    with (
        torch.autocast("neuron", dtype=torch.bfloat16),
        pytest.raises(RuntimeError, match="are unsafe to autocast"),
    ):
        F.binary_cross_entropy(a, b)
    assert F.binary_cross_entropy(a, b).isfinite()


def test_other_devices_are_left_alone() -> None:
    with torch.autocast("neuron", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    (a,) = tensors((2, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.float32


def test_float64_is_left_alone() -> None:
    (a,) = tensors((2, 2), dtype=torch.float64)
    with torch.autocast("neuron", dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.float64


class TestGradScaler:
    def make(self) -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1).to("neuron")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, torch.amp.GradScaler("neuron", init_scale=8.0, growth_interval=2)

    def test_scales_and_steps(self) -> None:
        model, optimizer, scaler = self.make()
        (x,) = tensors((8, 4))
        before = model.weight.detach().clone()
        with torch.autocast("neuron", dtype=torch.float16):
            loss = model(x).float().square().mean()
        scaled = scaler.scale(loss)
        assert scaled.item() == pytest.approx(8 * loss.item())
        scaled.backward()
        scaled_grad = model.weight.grad.clone()
        scaler.unscale_(optimizer)
        assert torch.equal(model.weight.grad, scaled_grad / 8)
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(model.weight.detach(), before - 0.1 * scaled_grad / 8)
        assert scaler.get_scale() == 8.0

    def test_grows(self) -> None:
        model, optimizer, scaler = self.make()
        (x,) = tensors((8, 4))
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(model(x).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 16.0

    def test_skips_steps_with_infinite_gradients(self) -> None:
        model, optimizer, scaler = self.make()
        (x,) = tensors((8, 4))
        before = model.weight.detach().clone()
        scaler.scale((model(x) * float("inf")).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(model.weight.detach(), before)
        assert scaler.get_scale() == 4.0

    def test_saved_and_loaded(self) -> None:
        _, _, scaler = self.make()
        other = torch.amp.GradScaler("neuron")
        other.load_state_dict(scaler.state_dict())
        assert other.get_scale() == 8.0

    def test_is_enabled_without_warning(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.amp.GradScaler("neuron").is_enabled()


# ---- host-autocast mode: the CPU's rules -----------------------------------------------------------------------------


HOST_CALLS = {
    "mm": lambda x: x @ x,
    "softmax is left alone": lambda x: (x @ x).softmax(-1),
    "sum is left alone": lambda x: (x @ x).sum(),
    "layer_norm is left alone": lambda x: torch.nn.functional.layer_norm(x @ x, (8,)),
    "float32": lambda x: torch.nn.functional.mse_loss(x @ x, x),
    "float32, several results": lambda x: torch.linalg.svd((x @ x) + 8 * torch.eye(8, device=x.device))[1],
    "widest, a list": lambda x: torch.cat([x @ x, x]),
    "widest, lower precision": lambda x: torch.stack([x @ x, x @ x]),
    "banned on accelerators": lambda x: torch.nn.functional.binary_cross_entropy((x @ x).sigmoid(), x.sigmoid()),
    "convolution": lambda x: torch.nn.functional.conv1d(x[None], x[:, :, None]),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(*[x[None, None]] * 3),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", HOST_CALLS)
def test_host_autocast_does_what_the_cpu_does(name: str, dtype: torch.dtype) -> None:
    values = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    results = []
    for device in ("cpu", "neuron"):
        x = values.clone().to(device).requires_grad_()
        with torch.neuron.host_autocast(True), torch.autocast(device, dtype=dtype):
            result = HOST_CALLS[name](x)
        result.float().sum().backward()
        results.append((result, x.grad))
    assert results[0][0].dtype == results[1][0].dtype
    assert all(torch.equal(a, b.cpu()) for a, b in zip(*results, strict=True))


def test_host_autocast_ends_where_its_context_ends() -> None:
    x = torch.randn(8, 8, device="neuron")
    before = torch.neuron.is_host_autocast_enabled()
    with torch.autocast("neuron", dtype=torch.bfloat16):
        for enabled, dtype in [(False, torch.float32), (True, torch.bfloat16)] * 2:
            with torch.neuron.host_autocast(enabled):
                assert torch.neuron.is_host_autocast_enabled() is enabled
                assert (x @ x).softmax(-1).dtype == dtype
    assert torch.neuron.is_host_autocast_enabled() is before


def test_host_autocast_covers_what_the_cpu_autocasts() -> None:
    """With the lists that PyTorch tests autocast on the CPU with."""
    cpu, neuron = (AutocastCPUTestLists(torch.device(device)) for device in ("cpu", "neuron"))
    checked = 0
    for kind in ("torch_16", "torch_fp32", "nn_fp32", "nn_16", "torch_need_autocast_promote"):
        module = torch._C._nn if kind.startswith("nn") else torch
        for on_cpu, on_neuron in zip(getattr(cpu, kind), getattr(neuron, kind), strict=True):
            name = on_cpu[0]
            if not hasattr(module, name):
                continue
            dtypes = []
            for device, case in (("cpu", on_cpu), ("neuron", on_neuron)):
                kwargs = case[2] if len(case) > 2 and isinstance(case[2], dict) else {}
                with torch.neuron.host_autocast(True), torch.autocast(device, dtype=torch.bfloat16):
                    output = getattr(module, name)(*case[1], **kwargs)
                dtypes.append(output.dtype if isinstance(output, torch.Tensor) else output[0].dtype)
            assert dtypes[0] == dtypes[1], name
            checked += 1
    assert checked > 25
