"""How the parity tool reads lines: which numbers it compares, and which it leaves out."""

from __future__ import annotations

import pytest

from torch_neuronx.parity.text import LineReader


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("step 10 loss 2.3456", ["10", "2.3456"]),
        ("loss=-1.5e-03, acc: 97.50%", ["-1.5e-03", "97.50"]),
        ("1,234,567 parameters", ["1,234,567"]),
        ("loss nan norm inf then -inf", ["nan", "inf", "-inf"]),
        ("tensor([1., 2., 3.])", ["1.", "2.", "3."]),
        ("float32 resnet18 v1.2 h2o", []),
        ("lr 3e-4 after 5 steps", ["3e-4", "5"]),
    ],
)
def test_numbers_of_a_line(text: str, numbers: list[str]) -> None:
    assert LineReader().read_line(text).numbers == numbers


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("loss 2.5 in 3.2 s", "loss 2.5 in 4.1 s"),
        ("loss 2.5 (12.3 ms/step)", "loss 2.5 (9 ms/step)"),
        ("loss 2.5, 1,234 tok/s", "loss 2.5, 99 tok/s"),
        ("loss 2.5, tok/s: 1234", "loss 2.5, tok/s: 77.5"),
        ("elapsed=3.1 loss=2.5", "elapsed=0.01 loss=2.5"),
        ("2026-11-30 08:44:17,758 loss 2.5", "2027-01-01 00:00:01,001 loss 2.5"),
        ("100%|####| 20/20 [00:05<00:00,  3.9it/s, loss=2.5]", "100%|####| 20/20 [01:05<00:00,  8.1it/s, loss=2.5]"),
        ("loss 2.5, 123 MiB in use", "loss 2.5, 77.1 MiB in use"),
        ("loss 2.5 of <object at 0x7f00aa>", "loss 2.5 of <object at 0x12>"),
        ("tensor(2.5, device='neuron:0')", "tensor(2.5)"),
        ("training on neuron:0, loss 2.5", "training on cpu, loss 2.5"),
        ("\x1b[32mloss 2.5 at 1796028257.96", "\x1b[32mloss 2.5 at 1796028299.11"),
    ],
)
def test_what_differs_from_run_to_run_is_left_out(one: str, other: str) -> None:
    lines = [LineReader().read_line(text) for text in (one, other)]
    assert lines[0].skeleton == lines[1].skeleton
    assert lines[0].numbers == lines[1].numbers
    assert "2.5" in lines[0].numbers


def test_a_progress_bar_counts_with_its_last_state() -> None:
    lines = LineReader().read("\r 0/2\r 1/2 loss 3.0\r 2/2 loss 2.0\nend\n")
    assert [(line.number, line.numbers) for line in lines] == [(1, ["2", "2", "2.0"]), (2, [])]


def test_the_device_of_a_printed_tensor_may_stand_on_a_line_of_its_own() -> None:
    lines = LineReader().read("tensor([1., 2.],\n       device='neuron:0') end\n")
    assert [line.skeleton for line in lines] == [LineReader().read_line("tensor([1., 2.]) end").skeleton]


def test_ignore_cuts_out_matches_and_empty_lines_go() -> None:
    reader = LineReader([r"run id \w+", r"^secret.*"])
    lines = reader.read("loss 1.0 run id a7\nsecret 3\n\n  \n")
    assert [line.numbers for line in lines] == [["1.0"]]


def test_without_defaults_times_are_compared() -> None:
    assert LineReader(use_defaults=False).read_line("took 3.5 s").numbers == ["3.5"]


def test_a_wrong_expression_is_named() -> None:
    with pytest.raises(ValueError, match=r"not a regular expression: '\('"):
        LineReader(["("])
