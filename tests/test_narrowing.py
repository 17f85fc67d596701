"""TORCH_NEURONX_NARROW_64BIT=1: 64-bit numbers hold what the chip's 32 bits would; expected values come from NumPy's own
32-bit types. The mode is fixed at the first use of the device, so each case is a process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
import warnings
import numpy as np
import torch

def low(values):  # what 32 bits keep of integers
    return torch.from_numpy(np.asarray(values, dtype=np.int64).astype(np.int32).astype(np.int64))

big = [2**31 - 1, 2**31, -2**31 - 1, 2**40 + 7, -1]
tenth = float(np.float32(0.1))
"""


def run(code: str, narrow: str = "1", blocking: str = "0") -> str:
    environment = {**os.environ, "TORCH_NEURONX_NARROW_64BIT": narrow, "NEURON_LAUNCH_BLOCKING": blocking}
    result = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stderr


VALUES = """
    x = torch.tensor(big, device="neuron")
    assert x.dtype == torch.int64 and torch.equal(x.cpu(), low(big)), x
    # arithmetic wraps around as int32 does
    narrow = low(big).numpy().astype(np.int32)
    with np.errstate(over="ignore"):
        for mine, numpy in [(x + 1, narrow + np.int32(1)), (x * x, narrow * narrow), (x << 3, narrow << 3)]:
            assert torch.equal(mine.cpu(), torch.from_numpy(numpy.astype(np.int64))), (mine, numpy)
    # in place, through a view with strides, into out=, by factories and by lists of tensors
    y = torch.zeros(4, 6, dtype=torch.int64, device="neuron")
    y[1::2, ::3].add_(2**33 + 5)
    expected = torch.zeros(4, 6, dtype=torch.int64)
    expected[1::2, ::3] += 5
    assert torch.equal(y.cpu(), expected)
    out = torch.empty(2, dtype=torch.int64, device="neuron")
    torch.add(torch.tensor([2**31 - 1, 3], device="neuron"), 1, out=out)
    assert out.tolist() == [-2**31, 4]
    assert torch.full((2,), 2**32 + 9, device="neuron").tolist() == [9, 9]
    assert torch.arange(2**31 - 1, 2**31 + 1, device="neuron").tolist() == [2**31 - 1, -2**31]
    lists = [torch.full((2,), 2**31 - 1, device="neuron"), torch.ones(1, dtype=torch.int64, device="neuron")]
    torch._foreach_add_(lists, 1)
    assert [t.tolist() for t in lists] == [[-2**31] * 2, [2]]
    # floats: rounded to float32, each result again
    d = torch.tensor([0.1, 1e300, float("nan")], dtype=torch.float64, device="neuron")
    assert d.dtype == torch.float64 and d[:2].tolist() == [tenth, float("inf")] and d[2].isnan()
    third = (torch.ones(1, dtype=torch.float64, device="neuron") / 3).item()
    assert third == float(np.float32(1) / np.float32(3)) != 1 / 3
    c = torch.tensor([0.1 + 0.7j], dtype=torch.complex128, device="neuron")
    assert c.item() == complex(np.complex64(0.1 + 0.7j))
    # what is not 64 bits wide stays exact, and gradients flow
    assert torch.equal(torch.tensor([0.1], device="neuron").cpu(), torch.tensor([0.1]))
    p = torch.tensor([0.1], dtype=torch.float64, device="neuron", requires_grad=True)
    (p * p).sum().backward()
    assert p.grad.item() == float(np.float32(0.1) + np.float32(0.1))
    # tensors that stay on the CPU are not touched
    assert torch.tensor(big).tolist() == big
"""


@pytest.mark.parametrize("hand_off", ["measured", "always", "never"])
def test_values(hand_off: str) -> None:
    run(f'import torch_neuronx; torch_neuronx._C._set_hand_off("{hand_off}")' + textwrap.dedent(VALUES))


def test_values_when_blocking() -> None:
    run(VALUES, blocking="1")


def test_one_warning() -> None:
    code = """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.ones(3, device="neuron").sum()  # nothing is 64 bits wide
            assert not caught, caught
            for _ in range(3):
                torch.arange(5, device="neuron").cumsum(0).double()
        assert len(caught) == 1 and "narrowed as on the chip" in str(caught[0].message), caught
    """
    run(code)


def test_exact_by_default() -> None:
    code = """
        assert torch.tensor(big, device="neuron").add(1).tolist() == [v + 1 for v in big]
        assert torch.tensor(0.1, dtype=torch.float64, device="neuron").item() == 0.1
    """
    assert "narrowed" not in run(code, narrow="0")


def test_bad_value() -> None:
    run("""
        try:
            torch.ones(1, device="neuron")
        except RuntimeError as error:
            assert "TORCH_NEURONX_NARROW_64BIT='perhaps': expected 1 or 0" in str(error), error
        else:
            raise AssertionError("accepted")
    """, narrow="perhaps")  # fmt: skip
