"""How the parity tool pairs and compares what two runs said."""

from __future__ import annotations

import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from torch_neuronx.parity import Comparison, DeviceRun, compare, log, records


def run(device: str = "cpu", stdout: str = "", stderr: str = "", **logged: object) -> DeviceRun:
    kept = [("logged", name, np.asarray(value)) for name, value in logged.items()]
    return DeviceRun(device, 0, 1.0, stdout, stderr, kept, 1)


def compared(one: DeviceRun, other: DeviceRun, tolerance: float = 0.0) -> Comparison:
    return compare(one, other, tolerance)


def test_equal_runs() -> None:
    result = compared(
        run(stdout="loss 1.5\nloss 1.25\n", x=[1.0, math.nan]),
        run("neuron", "loss 1.5\nloss 1.25\n", x=[1.0, math.nan]),
    )
    assert result.equal
    assert result.compared == {"logged": 2, "stdout": 2}
    assert result.largest_absolute is None


def test_the_largest_difference_and_its_place() -> None:
    result = compared(run(stdout="loss 1.5\nloss 100\nloss 2.0\n"), run(stdout="loss 1.5\nloss 101\nloss 2.5\n"))
    assert not result.equal
    assert (result.different, result.values) == (2, 3)
    assert result.largest_absolute is not None
    assert result.largest_relative is not None
    assert result.first is not None
    assert (result.largest_absolute.where, result.largest_absolute.absolute) == (
        'stdout line 2 "loss 100", number 1',
        1.0,
    )
    assert result.largest_relative.relative == pytest.approx(0.2)
    assert "line 3" in result.largest_relative.where
    assert result.first.values == ("100.0", "101.0")


def test_tolerance_is_absolute_below_one_and_relative_above() -> None:
    assert compared(run(x=[0.5, 1000.0]), run(x=[0.5009, 1000.9]), tolerance=1e-3).equal
    assert not compared(run(x=[0.5]), run(x=[0.5011]), tolerance=1e-3).equal


@pytest.mark.parametrize(("a", "b"), [(1.0, math.nan), (math.inf, 1.0), (math.inf, -math.inf)])
def test_a_number_that_is_not_finite_never_passes_for_another(a: float, b: float) -> None:
    result = compared(run(x=[a]), run(x=[b]), tolerance=1e30)
    assert not result.equal
    assert result.largest_absolute is not None
    assert result.largest_absolute.absolute == math.inf


def test_large_integers_are_compared_exactly() -> None:
    assert not compared(run(x=np.int64(2**62)), run(x=np.int64(2**62 + 1))).equal


def test_shapes_must_agree() -> None:
    result = compared(run(x=[1.0, 2.0]), run(x=[1.0]))
    assert result.first is not None
    assert result.first.values == ("shape (2,)", "shape (1,)")


def test_lines_in_another_order_are_paired_by_their_words() -> None:
    assert compared(run(stdout="a 1\nb 2\na 3\n"), run(stdout="b 2\na 1\na 3\n")).equal


def test_a_line_on_one_device_only_is_a_failure_on_stdout_and_a_note_on_stderr() -> None:
    result = compared(run(stdout="a 1\n", stderr="UserWarning: slow\n"), run("neuron", stdout="a 1\nb 2\n"))
    assert [(item.device, item.text, item.is_failure) for item in result.unmatched] == [
        ("neuron", "b 2", True),
        ("cpu", "UserWarning: slow", False),
    ]
    assert not result.equal


def test_text_that_differs_is_a_difference() -> None:
    assert not compared(run(stdout="the cat\n"), run(stdout="the dog\n")).equal
    assert not compared(run(x="the cat"), run(x="the dog")).equal


@pytest.fixture
def record_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "records"
    monkeypatch.setenv(records.RECORDS_VARIABLE, str(path))
    return path


@pytest.mark.parametrize("device", ["cpu", "neuron"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64]
)
def test_log_keeps_every_bit(record_file: Path, device: str, dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0.1, 1.0], [-2.0, 3.3]]).to(dtype)
    log("x", tensor.to(device).requires_grad_(dtype.is_floating_point))
    [(kind, name, array)] = records.read(record_file)
    assert (kind, name) == ("logged", "x")
    assert torch.equal(torch.from_numpy(array).to(dtype), tensor)


def test_log_takes_nested_values(record_file: Path) -> None:
    log("x", {"loss": 1.5, "parts": [1, torch.tensor(2)]})
    assert [(name, array.item()) for _, name, array in records.read(record_file)] == [
        ("x.loss", 1.5),
        ("x.parts[0]", 1),
        ("x.parts[1]", 2),
    ]


def test_log_refuses_what_it_cannot_compare(record_file: Path) -> None:
    with pytest.raises(TypeError, match="cannot compare a object"):
        log("x", object())


def test_log_outside_of_a_parity_run_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(records.RECORDS_VARIABLE, raising=False)
    log("x", object())


def test_a_record_cut_off_is_an_error_not_an_end(record_file: Path) -> None:
    log("x", 1.0)
    record_file.write_bytes(record_file.read_bytes()[:-3])
    with pytest.raises(pickle.UnpicklingError):
        list(records.read(record_file))
