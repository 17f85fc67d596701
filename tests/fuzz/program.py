"""A program of the fuzzer: plain data that can be run, printed as a script, and made smaller."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Step:
    """One statement of a program.

    Attributes:
        code: a Python statement over the names of earlier steps and of `machine.Machine.namespace`.
        makes: the names it binds.
        uses: the names it reads or writes. A step whose names are missing is left out.
        kind: "op", "read" (brings a value to the host), "backward" (uses the whole graph) or "delete".
        writes: whether it may write to what it uses.
        device, stream: where it runs; the runtime orders streams before it as its operands ask.
        other_device: the second device of a copy.
        order: how the runtime orders streams: "event", "stream", "host" or "device".
        lost: names to delete when the step raises, because what they hold is then not defined.
        patience: how many further steps may run before the error of this one is asked for.
    """

    code: str
    makes: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    kind: str = "op"
    writes: bool = False
    device: int = 0
    stream: int = 0
    other_device: int | None = None
    order: str = "event"
    lost: tuple[str, ...] = ()
    patience: int = 0

    def as_python(self) -> str:
        shown = [f"{self.code!r}"]
        shown += [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self)[1:] if getattr(self, f.name) != f.default]
        return f"Step({', '.join(shown)})"


@dataclass(frozen=True)
class Program:
    """Steps and the modes that they run in.

    Attributes:
        hand_offs: the program runs once on neuron for each of these `_C._set_hand_off` modes; a later run finds the
            signatures that an earlier one recorded.
        host_rng: whether random numbers are those of the CPU generator.
    """

    seed: int
    steps: tuple[Step, ...]
    hand_offs: tuple[str, ...] = ("measured", "always")
    host_rng: bool = False

    def without(self, start: int, end: int) -> Program:
        """The program without the steps from `start` up to `end`."""
        return replace(self, steps=self.steps[:start] + self.steps[end:])

    def as_script(self) -> str:
        """A Python script that runs the program on both devices and prints the first difference."""
        steps = "\n".join(f"        {step.as_python()}," for step in self.steps)
        return (
            "from tests.fuzz.differential import find_difference\n"
            "from tests.fuzz.program import Program, Step\n\n"
            "program = Program(\n"
            f"    seed={self.seed},\n"
            f"    hand_offs={self.hand_offs!r},\n"
            f"    host_rng={self.host_rng!r},\n"
            f"    steps=(\n{steps}\n    ),\n)\n"
            'print(find_difference(program) or "no difference")\n'
        )
