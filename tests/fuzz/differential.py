"""Runs a program on the CPU and on neuron, step by step, and finds the first difference."""

from __future__ import annotations

import functools
import types
import warnings
from typing import Any

import torch

from .machine import Machine, NeuronMachine
from .observe import Observation, brief, contents, difference, is_leaf, metadata, observed_value, same_error, version
from .program import Program, Step


@functools.lru_cache(maxsize=4096)
def _compiled(code: str) -> types.CodeType:
    return compile(code, code, "exec")


def _run_step(machine: Machine, step: Step) -> Observation:
    names = machine.names
    if any(name not in names for name in step.uses):
        return Observation("left out")
    try:
        with machine.running(step):
            exec(_compiled(step.code), names)
    except Exception as error:
        return Observation("raised", error=error.with_traceback(None))
    if step.kind == "delete":
        return Observation("done")
    seen = Observation("done")
    for name in (*step.makes, *step.uses) if step.writes else step.makes:
        value = names.get(name)
        if step.kind == "read":
            seen.value = observed_value(names.pop(name))
        elif isinstance(value, torch.Tensor):
            if name in step.makes:
                machine.seen_version[name] = version(value)
            seen.tensors[name] = metadata(value, machine.seen_version[name])
            machine.seen_version[name] = version(value)
    return seen


def _look_at_everything(machine: Machine) -> Observation:
    seen = Observation("done")
    for name, value in sorted((k, v) for k, v in machine.names.items() if isinstance(v, torch.Tensor)):
        facts = metadata(value, machine.seen_version[name])
        facts["values"] = contents(value)
        if is_leaf(value) and value.grad is not None:
            facts["grad"] = contents(value.grad)
            facts["grad metadata"] = str(metadata(value.grad, version(value.grad)))
        seen.tensors[name] = facts
    return seen


def _forget(machine: Machine, step: Step, before: dict[str, Any]) -> None:
    """After a step that raised: its names are as they were, and what it may have half written is gone."""
    for name in step.makes:
        if name in before:
            machine.names[name] = before[name]
        else:
            machine.names.pop(name, None)
    for name in step.lost:
        machine.names.pop(name, None)


def run_on_cpu(program: Program) -> list[Observation]:
    """One observation a step, and one of all that is left at the end."""
    machine = Machine(program)
    seen = []
    for step in program.steps:
        before = {name: machine.names[name] for name in step.makes if name in machine.names}
        seen.append(_run_step(machine, step))
        if seen[-1].outcome == "raised":
            _forget(machine, step, before)
    seen.append(_look_at_everything(machine))
    machine.close()
    return seen


class _Comparison:
    """A run on neuron next to the observations of the CPU's run.

    An error may come late: a step that must raise may return, if the error is there at the latest after its patience.
    """

    def __init__(self, program: Program, expected: list[Observation], hand_off: str) -> None:
        self.program = program
        self.expected = expected
        self.machine = NeuronMachine(program, hand_off)
        self.owed: tuple[int, BaseException] | None = None
        self.patience = 0

    def run(self) -> str | None:
        try:
            for index, step in enumerate(self.program.steps):
                found = self._step(index, step) or self._late_errors(self.machine.take_late_errors())
                if found is None and self.owed is not None:
                    self.patience -= 1
                    if self.patience < 0:
                        found = self._collect()
                if found is not None:
                    return f"step {index}: {step.code}\n  {found}"
            found = self._collect()
            if found is None:
                found = difference(self.expected[-1], _look_at_everything(self.machine))
                found = found or self._late_errors(self.machine.synchronize())
            return None if found is None else f"at the end\n  {found}"
        finally:
            self.machine.synchronize()
            self.machine.close()

    def _step(self, index: int, step: Step) -> str | None:
        expected = self.expected[index]
        if expected.outcome == "raised" and self.owed is not None:
            found = self._collect()
            if found is not None:
                return found
        names = self.machine.names
        before = {name: names[name] for name in step.makes if name in names} if expected.outcome == "raised" else {}
        actual = _run_step(self.machine, step)
        brought = self.owed is not None and step.kind == "read" and actual.error is not None
        if brought and same_error(self.owed[1], actual.error):
            # The read brought the error of an earlier step; it does so once.
            self.owed = None
            actual = _run_step(self.machine, step)
        if expected.outcome == "raised":
            _forget(self.machine, step, before)
            if actual.outcome == "done":
                self.owed = (index, expected.error)
                self.patience = step.patience
                return None
            # Of a step's operators that fail, one raises at the call, and one before it may have been queued.
            for error in self.machine.synchronize():
                if not same_error(expected.error, error):
                    return f"late error {brief(error)} of a step that had to raise {brief(expected.error)}"
        return difference(expected, actual)

    def _collect(self) -> str | None:
        """Waits, which brings the error that is owed."""
        found = self._late_errors(self.machine.synchronize())
        if found is None and self.owed is not None:
            index, error = self.owed
            return f"step {index} ({self.program.steps[index].code}) did not raise {brief(error)}"
        return found

    def _late_errors(self, errors: list[BaseException]) -> str | None:
        for error in errors:
            if self.owed is None or not same_error(self.owed[1], error):
                owed = "" if self.owed is None else f" while step {self.owed[0]} owed {brief(self.owed[1])}"
                return f"late error {brief(error)}{owed}"
            self.owed = None
        return None


def _cpu_agrees_with_itself(program: Program, expected: list[Observation]) -> bool:
    """Whether the CPU gives the same again when fresh memory holds something else: some kernels read what nobody wrote."""
    for number in range(8):
        junk = [
            torch.full((size,), 1e9 * number - 7.5) for size in (1, 2, 4, 8, 16, 32, 64, 200, 1000) for _ in range(8)
        ]
        del junk
        again = run_on_cpu(program)
        if any(difference(*pair) for pair in zip(expected, again, strict=True)):
            return False
    return True


def find_difference(program: Program) -> str | None:
    """The first difference between the CPU and neuron, in words; None when there is none.

    A program that the CPU itself gives different results for has no difference.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = run_on_cpu(program)
        for hand_off in program.hand_offs:
            found = _Comparison(program, expected, hand_off).run()
            if found is not None:
                return f"hand-off {hand_off}, {found}" if _cpu_agrees_with_itself(program, expected) else None
    return None
