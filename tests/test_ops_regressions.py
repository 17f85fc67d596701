"""One test for each kind of bug that the conformance sweep found in the device."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from torch_neuronx import _C

HAND_OFFS = ("measured", "never", "always")


@pytest.fixture(params=HAND_OFFS)
def hand_off(request: pytest.FixtureRequest):
    """Runs a test with launches on the caller's thread and on the executor's."""
    _C._set_hand_off(request.param)
    yield request.param
    torch.neuron.synchronize()
    _C._set_hand_off("measured")


def on_both(make):
    """The results of `make(device)` on cpu and on neuron, both on the CPU."""
    return make("cpu"), make("neuron").cpu()


# ---- zero tensors of forward-mode differentiation have no memory -------------------------------------------------------


def zero_tensor(device: str, *shape: int) -> torch.Tensor:
    return torch._efficientzerotensor(shape, device=device)


@pytest.mark.parametrize(
    "call",
    [
        lambda zero, other: zero * 2.0,
        lambda zero, other: zero + 1.0,
        lambda zero, other: torch.dot(zero, other),
        lambda zero, other: torch.cat([zero, other]),
        lambda zero, other: zero.clone(),
        lambda zero, other: other.clone().copy_(zero),
        lambda zero, other: torch.sort(zero).values,
        lambda zero, other: torch.stack([zero[1:], other[1:]]),
    ],
)
def test_zero_tensors_are_zeros(hand_off, call) -> None:
    def run(device: str) -> torch.Tensor:
        zero = zero_tensor(device, 5)
        assert zero._is_zerotensor() and zero.device.type == device
        return call(zero, torch.arange(5.0, device=device))

    expected, actual = on_both(run)
    assert torch.equal(expected, actual)


def test_zero_tensors_cannot_be_written() -> None:
    with pytest.raises(RuntimeError, match="ZeroTensors are immutable"):
        zero_tensor("neuron", 3).copy_(torch.ones(3, device="neuron"))


def test_forward_mode_of_sgn_has_a_zero_tangent(hand_off) -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.randn(4, device="neuron"), torch.ones(4, device="neuron"))
        tangent = forward_ad.unpack_dual(torch.sgn(dual)).tangent
        assert torch.equal(tangent.cpu(), torch.zeros(4))


# ---- transforms hand wrappers without memory to code that chooses a kernel --------------------------------------------


def test_vmap_over_attention(hand_off) -> None:
    def run(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        query, key, value = (torch.randn(3, 2, 4, 8, 16).to(device) for _ in range(3))
        return torch.vmap(F.scaled_dot_product_attention)(query, key, value)

    expected, actual = on_both(run)
    assert torch.equal(expected, actual)


# ---- one tensor given twice is one tensor for the kernel, too ------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_cat_into_its_own_input_is_refused(hand_off, device) -> None:
    empty = torch.zeros(0, device=device)
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        torch.cat([empty, torch.ones(4, 6, device=device)], out=empty)


def test_triangle_into_its_own_transposed_input(hand_off) -> None:
    def run(device: str) -> torch.Tensor:
        matrix = torch.arange(25.0, device=device).reshape(5, 5).t()
        return torch.tril(matrix, out=matrix)

    for _ in range(2):
        expected, actual = on_both(run)
        assert torch.equal(expected, actual)


# ---- out= forms whose own kernel knows only PyTorch's devices ------------------------------------------------------------


def test_mode_into_given_tensors(hand_off) -> None:
    values, indices = torch.empty(0, device="neuron"), torch.empty(0, dtype=torch.int64, device="neuron")
    torch.mode(torch.tensor([[1.0, 2.0, 2.0]], device="neuron"), out=(values, indices))
    assert values.tolist() == [2.0] and indices.tolist() == [2]


# ---- layouts that neuron does not carry ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.ones(3, 3, device="neuron").to_sparse(),
        lambda: torch.ones(3, 3, device="neuron").to_sparse_csr(),
        lambda: torch.eye(3).to_sparse().to("neuron"),
        lambda: torch.eye(3).to_sparse_csr().to("neuron"),
        lambda: torch.sparse_coo_tensor(
            torch.zeros(2, 1, dtype=torch.int64, device="neuron"), torch.ones(1, device="neuron"), (3, 3)
        ),
        lambda: torch.quantize_per_tensor(torch.ones(3, device="neuron"), 0.1, 0, torch.quint8),
        lambda: torch.zeros(3, device="neuron", dtype=torch.float32).to_mkldnn(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="neuron") * 2,
    ],
)
def test_other_layouts_are_refused_by_name(call) -> None:
    with pytest.raises((NotImplementedError, RuntimeError)) as info:
        call()
        torch.neuron.synchronize()
    assert isinstance(info.value, NotImplementedError), info.value


# ---- results whose shape depends on data ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_indexing_with_a_mask_of_the_same_shape_but_other_values(hand_off, dtype) -> None:
    data = torch.arange(12.0, device="neuron").reshape(4, 3)
    for mask in ([1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0]):
        selected = data[torch.tensor(mask, dtype=dtype, device="neuron")]
        assert torch.equal(selected.cpu(), data.cpu()[torch.tensor(mask, dtype=torch.bool)])


# ---- autograd counts what is written in place ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        lambda t: torch._foreach_add_(t, 1.0),
        lambda t: torch._foreach_mul_(t, [x.clone() for x in t]),
        lambda t: torch._foreach_zero_(t),
        lambda t: torch._foreach_addcmul_(t, t, t, 0.5),
        lambda t: torch._foreach_lerp_(t, [x + 1 for x in t], 0.5),
    ],
)
def test_foreach_in_place_counts_as_a_write(hand_off, write) -> None:
    def versions(device: str) -> list[int]:
        tensors = [torch.ones(3, device=device), torch.ones(2, 2, device=device)]
        for _ in range(3):
            write(tensors)
        return [tensor._version for tensor in tensors]

    assert versions("neuron") == versions("cpu") == [3, 3]


def test_backward_refuses_what_foreach_has_overwritten(hand_off) -> None:
    x = torch.ones(3, device="neuron", requires_grad=True)
    y = x.exp()
    torch._foreach_mul_([y.detach()], 2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# ---- a tensor without dimensions has no trace of the one that its alias stood for before -----------------------------------


def test_norm_along_dimension_zero_of_a_scalar(hand_off) -> None:
    """PyTorch's kernel reads size(0) of a tensor that has none."""
    one, scalar = torch.ones(1, dtype=torch.float64), torch.tensor(60000.0, dtype=torch.float64)
    on_device = one.to("neuron"), scalar.to("neuron")
    for _ in range(3):
        torch.norm(on_device[0], 2, 0)
        assert torch.norm(on_device[1], 3, 0).item() == torch.norm(scalar, 3, 0).item()


# ---- operators of libraries that come and go -----------------------------------------------------------------------------


def test_operators_whose_library_is_gone() -> None:
    for number in range(12):
        arguments = ", ".join(f"Tensor a{i}" for i in range(1 + number % 5))
        with torch.library._scoped_library("neuron_test", "FRAGMENT") as library:
            library.define(f"op{number}({arguments}) -> Tensor")
            library.impl(f"op{number}", lambda *tensors: torch.stack(tensors).sum(0), "CPU")
            tensors = [torch.full((3,), float(i + 1), device="neuron") for i in range(1 + number % 5)]
            torch.neuron.clear_op_tracking()
            result = getattr(torch.ops.neuron_test, f"op{number}")(*tensors)
            assert result.tolist() == [sum(range(1, len(tensors) + 1))] * 3
            assert f"neuron_test::op{number}" in torch.neuron.get_fallback_ops()


def test_lazy_clone_is_a_clone() -> None:
    x = torch.ones(2, device="neuron")
    y = torch._lazy_clone(x)
    y.add_(1)
    assert (x.tolist(), y.tolist()) == ([1.0, 1.0], [2.0, 2.0])


# ---- tensors on the wrong device -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda c, n, i: c.__setitem__(i, n),
        lambda c, n, i: c[i],
        lambda c, n, i: n.__setitem__(i, c),
        lambda c, n, i: n.index_put_((i,), c),
        lambda c, n, i: torch._fused_adam_(
            [c], [n], [n], [n], [], [], lr=0.1, beta1=0.9, beta2=0.9, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False
        ),
    ],
    ids=["set neuron values", "cpu indexed on neuron", "set cpu values", "index_put", "fused adam"],
)  # fmt: skip
def test_cpu_tensors_where_neuron_tensors_belong(call) -> None:
    index = torch.tensor([0, 1, 2], device="neuron")
    with pytest.raises(RuntimeError, match="same device"):
        call(torch.ones(3), torch.ones(3, device="neuron"), index)


def test_indices_may_be_on_the_cpu() -> None:
    x = torch.arange(4.0, device="neuron")
    assert x[torch.tensor([2, 0])].tolist() == [2.0, 0.0]
    x[torch.tensor([1])] = 9
    assert x.tolist() == [0.0, 9.0, 2.0, 3.0]


# ---- what the call can refuse, it refuses at the call --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (lambda x: F.smooth_l1_loss(x, x, beta=1.0), lambda x: F.smooth_l1_loss(x, x, beta=-1.0)),
        (
            lambda x: torch.ops.aten.elu_backward(x, 1.0, 1.0, 1.0, True, x),
            lambda x: torch.ops.aten.elu_backward(x, -1.0, 1.0, 1.0, True, x),
        ),
        (lambda x: torch._foreach_pow([x.int()], 2), lambda x: torch._foreach_pow([x.int()], -2)),
        (
            lambda x: torch.empty(3, device="neuron:1").copy_(x),
            lambda x: torch.empty(2, device="neuron:1").copy_(x),
        ),
        (
            lambda x: torch.empty(3).pin_memory().copy_(x, non_blocking=True),
            lambda x: torch.empty(2).pin_memory().copy_(x, non_blocking=True),
        ),
    ],
    ids=["smooth_l1_loss", "elu_backward", "foreach_pow", "copy between devices", "copy to pinned memory"],
)
def test_refused_at_the_call(hand_off, good, bad) -> None:
    x = torch.ones(3, device="neuron")
    good(x)
    torch.neuron._sleep(20_000_000)
    with pytest.raises(RuntimeError):
        bad(x)
    torch.neuron.synchronize()


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("lengths", [(4, 4, 4), (4, 4, 2), (1, 1), (3,)], ids=str)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}, {"bias": False}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_packed_sequences_as_on_the_cpu(kind: str, lengths: tuple[int, ...], options: dict, dtype: torch.dtype) -> None:
    """The CPU takes its fused layer for a packed batch whose sequences have one length, too."""
    torch.manual_seed(0)
    module = getattr(torch.nn, kind)(3, 5, **options).to(dtype)
    x = torch.randn(max(lengths), len(lengths), 3, dtype=dtype)
    seen = []
    for device in ("cpu", "neuron"):
        there = copy.deepcopy(module).to(device)
        inputs = x.detach().to(device).requires_grad_()
        packed = torch.nn.utils.rnn.pack_padded_sequence(inputs, torch.tensor(lengths))
        output, state = there(packed)
        (output.data * output.data.detach().cos()).sum().backward()
        states = state if isinstance(state, tuple) else (state,)
        gradients = [inputs.grad, *(parameter.grad for parameter in there.parameters())]
        seen.append([tensor.detach().cpu() for tensor in (output.data, *states, *gradients)])
    for on_cpu, on_device in zip(*seen, strict=True):
        assert torch.equal(on_cpu, on_device)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.add_(1),
        lambda t: t.relu_(),
        lambda t: torch._foreach_mul_([t], 2.0),
        lambda t: torch._foreach_maximum_([t], 0.0),
        lambda t: torch._foreach_add_([t], [t]),
        lambda t: torch._foreach_zero_([t]),
        lambda t: torch.add(t, 1, out=t),
        lambda t: t.copy_(t + 1),
    ],
)
def test_tensors_of_inference_mode_change_only_in_it(change: Callable[[torch.Tensor], object]) -> None:
    for device in ("cpu", "neuron"):
        with torch.inference_mode():
            t = torch.ones(3, device=device)
            change(t)
        outcome = None
        try:
            change(t)
        except RuntimeError as error:
            outcome = str(error).splitlines()[0]
        if device == "cpu":
            expected = outcome
    assert outcome == expected


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_histogram_of_integers(hand_off, dtype) -> None:
    # The CPU has no kernel for it, but code that knows this sends integers to all other devices.
    values = torch.tensor([0, 3, 1, 3, 3, 7, 9], dtype=dtype)
    counted = torch.histc(values.to("neuron"), bins=4, min=0, max=3)
    assert counted.dtype == dtype
    assert counted.tolist() == torch.histc(values.double(), bins=4, min=0, max=3).tolist() == [1, 1, 0, 3]
