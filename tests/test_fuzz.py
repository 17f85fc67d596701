"""The fuzzer: a fixed slice of its programs, and whether it finds, shrinks and survives planted bugs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from tests.fuzz import pool
from tests.fuzz.differential import find_difference, run_on_cpu
from tests.fuzz.generate import generate
from tests.fuzz.pool import Pool, Result
from tests.fuzz.program import Program, Step
from tests.fuzz.shrink import shrink

# Programs do much that PyTorch warns about.
pytestmark = pytest.mark.filterwarnings("ignore")

FIRST_SEED = 500_000


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("part", range(10))
def test_programs_agree(part: int) -> None:
    for seed in range(FIRST_SEED + 15 * part, FIRST_SEED + 15 * (part + 1)):
        found = find_difference(generate(seed))
        assert found is None, f"seed {seed}: {found}"


def test_a_seed_gives_one_program() -> None:
    first, second = generate(7), generate(7)
    assert first == second
    assert first != generate(8)


def test_programs_reach_what_they_are_meant_to_reach() -> None:
    """Steps of every kind, steps that raise, several streams, two devices and gradients, in a small sample."""
    programs = [generate(seed) for seed in range(60)]
    steps = [step for program in programs for step in program.steps]
    assert {step.kind for step in steps} == {"op", "read", "backward", "delete"}
    assert {step.stream for step in steps} == {0, 1, 2}
    assert {step.device for step in steps} == {0, 1}
    assert {program.host_rng for program in programs} == {True, False}
    assert {mode for program in programs for mode in program.hand_offs} == {"measured", "never", "always"}
    outcomes = [seen.outcome for program in programs[:20] for seen in run_on_cpu(program)]
    assert 0.01 < outcomes.count("raised") / len(outcomes) < 0.15
    assert outcomes.count("left out") < 0.02 * len(outcomes)
    code = "\n".join(step.code for step in steps)
    training = ("inference_mode", "rnn('LSTM'", "rnn('GRU'", "rnn('RNNCell'", "'SGD'", "'Adam'", "'AdamW'")
    for part in (
        "out=",
        "as_strided",
        ".backward(",
        "_foreach_",
        "[",
        "requires_grad_",
        "torch.matmul",
        ".mul_(",
        *training,
    ):
        assert part in code


def test_a_program_is_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    program = generate(11, steps=8)
    names: dict[str, object] = {}
    exec(program.as_script(), names)
    assert names["program"] == program
    assert capsys.readouterr().out == "no difference\n"


# ---- planted bugs --------------------------------------------------------------------------------------------------------


def _wrong_on_neuron(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor.mul_ forgets to multiply on neuron."""
    right = torch.Tensor.mul_

    def wrong(self, other):
        return self if self.device.type == "neuron" else right(self, other)

    monkeypatch.setattr(torch.Tensor, "mul_", wrong)


def test_a_planted_bug_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    _wrong_on_neuron(monkeypatch)
    failing = next(program for program in map(generate, range(100)) if find_difference(program) is not None)
    small = shrink(failing, lambda program: find_difference(program) is not None)
    assert len(small.steps) < len(failing.steps)
    without_one = [small.without(i, i + 1) for i in range(len(small.steps))]
    assert [find_difference(program) for program in without_one] == [None] * len(small.steps)
    assert any("mul_" in step.code for step in small.steps)
    monkeypatch.undo()
    assert find_difference(small) is None


def step(code: str, *makes: str, uses: tuple[str, ...] = (), **more: object) -> Step:
    return Step(code, makes, uses, **more)


def _program(*steps: Step) -> Program:
    return Program(0, steps)


@pytest.mark.parametrize(
    ("last", "difference"),
    [
        ("t2 = t1 * (2 if t1.is_cpu else 3)", "values of t2: values: 3 of 3 differ"),
        ("t2 = t1.to(torch.float32 if t1.is_cpu else torch.float64)", "dtype of t2"),
        ("t2 = t1.expand(2, 3) if t1.is_cpu else t1.repeat(2, 1)", "stride of t2"),
        ("t2 = t1 if t1.is_cpu else 1 / 0", "done (nothing) on the CPU, raised (ZeroDivisionError"),
        ("t2 = 1 / 0 if t1.is_cpu else t1", "did not raise ZeroDivisionError"),
        ("t2 = [][0] if t1.is_cpu else {}[0]", "the CPU raised IndexError"),
        ("t2 = t1.clone().requires_grad_(t1.is_cpu)", "requires_grad of t2"),
    ],
)
def test_every_kind_of_difference_is_seen(last: str, difference: str) -> None:
    program = _program(step("t1 = make((3,), torch.float32, 'positive', 1)", "t1"), step(last, "t2", uses=("t1",)))
    found = find_difference(program)
    assert found is not None
    assert difference in found


def test_an_error_that_comes_late_is_no_difference() -> None:
    program = _program(
        step("t1 = make((3,), torch.float32, 'normal', 1)", "t1"),
        step("i = make((3,), torch.int64, 'positive', 1)", "i"),
        step("t2 = torch.gather(t1, 0, i % 3)", "t2", uses=("t1", "i")),
        step("t3 = torch.gather(t1, 0, i + 3)", "t3", uses=("t1", "i"), patience=3),
        step("t4 = t1 + 1", "t4", uses=("t1",)),
        step("read = t4.cpu()", "read", uses=("t4",), kind="read"),
    )
    assert [seen.outcome for seen in run_on_cpu(program)][3] == "raised"
    assert find_difference(program) is None


def test_a_step_without_its_operands_is_left_out() -> None:
    program = _program(
        step("t2 = t1 + 1", "t2", uses=("t1",)), step("t3 = make((2,), torch.float32, 'normal', 0)", "t3")
    )
    assert [seen.outcome for seen in run_on_cpu(program)] == ["left out", "done", "done"]
    assert find_difference(program) is None


# ---- children that crash or hang -----------------------------------------------------------------------------------------


def _crash_at(seed: int, steps: int) -> Program:
    if seed == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    if seed == 5:
        time.sleep(1000)
    return generate(seed, steps)


def _run_seeds_with_a_crash(connection, steps: int, errors: str) -> None:
    from tests.fuzz import worker

    worker.generate = _crash_at
    worker.run_seeds(connection, steps, errors)


def test_crashes_and_hangs_are_reported_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "PATIENCE", 3.0)
    monkeypatch.setattr(pool.worker, "run_seeds", _run_seeds_with_a_crash)
    results: list[Result] = []
    Pool(0, 8, 10, 1, results.append).run()
    assert sorted(result.seed for result in results) == list(range(8))
    failed = {result.seed: result.difference for result in results if result.difference is not None}
    assert sorted(failed) == [3, 5]
    assert "exit code -11" in failed[3] and "Segmentation fault" in failed[3]
    assert failed[5].startswith("no answer for 3 s") and "_crash_at" in failed[5]


@pytest.mark.fuzz
def test_the_whole_run() -> None:
    """What `make fuzz` runs."""
    assert subprocess.run([sys.executable, "-m", "tests.fuzz"], check=False).returncode == 0
