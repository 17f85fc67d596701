"""Builds a program from a seed: steps are tried on the CPU as they are made, so that later ones fit what is there."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import replace

import torch

from .differential import _run_step
from .machine import DEVICES, STREAMS, Machine
from .program import Program, Step

DTYPES = (
    *([torch.float32] * 6),
    *([torch.bfloat16] * 2),
    *([torch.float16] * 2),
    *([torch.float64] * 2),
    *([torch.int64] * 3),
    *([torch.int32] * 2),
    torch.int8,
    torch.uint8,
    *([torch.bool] * 2),
    *([torch.complex64] * 2),
)
FLOATS = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
SIZES = (0, 1, 1, 2, 3, 3, 4, 5, 7, 8, 16, 33)
MOST_ELEMENTS = 20_000
MOST_TENSORS = 14
# How many of the steps that raise stay in the program.
KEPT_ERRORS = 0.3


def is_float(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point


class Builder:
    """The state of a program that is being made: its steps, and the tensors that they left, on the CPU."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.host_rng = self.random.random() < 0.3
        self.devices = DEVICES if self.random.random() < 0.2 else 1
        self.streams = self.random.choice((1, 1, 1, 2, STREAMS))
        self.with_grad = self.random.random() < 0.5
        self.machine = Machine(Program(seed, ()))
        self.where: dict[str, int] = {}
        self.steps: list[Step] = []
        self.stream = 0
        self._next_name = 0

    def program(self) -> Program:
        first = self.random.choice(("measured", "measured", "never", "always"))
        return Program(self.seed, tuple(self.steps), hand_offs=(first, "always"), host_rng=self.host_rng)

    # ---- what is there ----------------------------------------------------------------------------------------------

    def tensor(self, name: str) -> torch.Tensor:
        return self.machine.names[name]

    def tensors(self, fits: Callable[[torch.Tensor], bool] = lambda _: True, device: int | None = None) -> list[str]:
        return [
            name
            for name, where in self.where.items()
            if (device is None or where == device) and fits(self.machine.names[name])
        ]

    def pick(self, fits: Callable[[torch.Tensor], bool] = lambda _: True, device: int | None = None) -> str | None:
        """The name of a tensor that fits; recent ones are more likely."""
        found = self.tensors(fits, device)
        if not found:
            return None
        return found[-1 - min(int(self.random.expovariate(0.4)), len(found) - 1)]

    def pick_or_make(
        self, fits: Callable[[torch.Tensor], bool], shape: tuple[int, ...], dtype: torch.dtype, device: int
    ) -> str:
        if self.random.random() < 0.7:
            found = self.pick(fits, device)
            if found is not None:
                return found
        return self.make(shape, dtype, device)

    def new_name(self) -> str:
        self._next_name += 1
        return f"t{self._next_name}"

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def seed_number(self) -> int:
        return self.random.randrange(10_000)

    # ---- choosing ---------------------------------------------------------------------------------------------------

    def shape(self, ranks: tuple[int, ...] = (0, 1, 1, 2, 2, 2, 3, 3, 4)) -> tuple[int, ...]:
        if self.chance(0.04):
            return self.random.choice(((70, 80), (6000,), (3, 2000)))
        return tuple(self.random.choice(SIZES) for _ in range(self.random.choice(ranks)))

    def broadcast_to(self, shape: torch.Size) -> tuple[int, ...]:
        """A shape that broadcasts to `shape`."""
        dims = list(shape)[self.random.randrange(len(shape) + 1) if shape and self.chance(0.3) else 0 :]
        return tuple(1 if self.chance(0.15) else size for size in dims)

    def dim(self, tensor: torch.Tensor) -> int:
        rank = max(tensor.dim(), 1)
        low, high = (-rank - 1, rank) if self.chance(0.02) else (-rank, rank - 1)
        return self.random.randint(low, high)

    def number(self, dtype: torch.dtype) -> str:
        """A Python number, mostly of the kind that goes with `dtype`."""
        choose = self.random.random()
        if choose < 0.05:
            return self.random.choice(("nan", "inf", "300", "-129", "1e10", "True", "2j", "70000"))
        if dtype.is_floating_point and choose < 0.8:
            return self.random.choice(("0.5", "2.0", "-1.25", "1e-3", "3", "0.0"))
        if dtype.is_complex and choose < 0.6:
            return self.random.choice(("0.5", "1+2j", "-1j"))
        return self.random.choice(("2", "3", "-1", "1", "0", "5"))

    def other(self, name: str) -> str:
        """An operand next to `name`: a tensor that broadcasts with it, or a number. Names are used as they are."""
        tensor = self.tensor(name)
        choose = self.random.random()
        if choose < 0.25:
            return self.number(tensor.dtype)
        if choose < 0.33:
            return f"torch.tensor({self.random.choice(('2.5', '3', 'True', '-1'))})"
        dtype = tensor.dtype if self.chance(0.75) else self.random.choice(DTYPES)
        return self.pick_or_make(
            lambda t: broadcasts(t.shape, tensor.shape) and (t.dtype == tensor.dtype or self.chance(0.3)),
            self.broadcast_to(tensor.shape),
            dtype,
            self.where[name],
        )

    def partner(self, name: str) -> str:
        """A tensor of the same dtype that broadcasts to `name`."""
        tensor = self.tensor(name)
        return self.pick_or_make(
            lambda t: broadcasts(t.shape, tensor.shape) and t.dtype == tensor.dtype,
            tuple(tensor.shape),
            tensor.dtype,
            self.where[name],
        )

    # ---- adding steps -----------------------------------------------------------------------------------------------

    def make(self, shape: tuple[int, ...], dtype: torch.dtype, device: int = 0) -> str:
        kind = self.random.choice(("normal", "normal", "normal", "small", "special", "positive"))
        name = self.new_name()
        self.add(f"make({shape}, {dtype}, {kind!r}, {self.seed_number()}, {device})", name, device=device)
        return name

    def add(
        self,
        code: str,
        *makes: str,
        uses: tuple[str, ...] = (),
        kind: str = "op",
        writes: bool = False,
        device: int = 0,
        other_device: int | None = None,
        assign: bool = True,
    ) -> bool:
        """Tries a step and, when it is worth it, appends it. Returns whether it ran without an error."""
        makes = tuple(makes)
        if makes and assign:
            code = f"{', '.join(makes)} = {code}"
        step = Step(
            code,
            makes,
            tuple(dict.fromkeys(name for name in uses if name in self.where)),
            kind,
            writes,
            device,
            self.stream,
            other_device,
            order=self.random.choice(("event", "stream", "event", "stream", "host", "device"))
            if self.streams > 1
            else "event",
            patience=self.random.choice((0, 0, 1, 3)),
        )
        step = replace(step, lost=self._lost_by(step))
        names = self.machine.names
        before = {name: names[name] for name in makes if name in names}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = _run_step(self.machine, step)
        if outcome.outcome == "raised" or not self._worth_keeping(makes):
            for name in makes:
                names.pop(name, None)
            names.update(before)
            if outcome.outcome == "raised" and self.chance(KEPT_ERRORS):
                self.steps.append(step)
                for name in step.lost:
                    self.forget(name)
            return False
        self.steps.append(step)
        if kind != "read":
            for name in makes:
                if isinstance(names.get(name), torch.Tensor):
                    self.where.pop(name, None)  # so that it counts as recent
                    self.where[name] = other_device if other_device is not None else device
        return True

    def _worth_keeping(self, makes: tuple[str, ...]) -> bool:
        made = [self.machine.names.get(name) for name in makes]
        return all(not isinstance(value, torch.Tensor) or value.numel() <= MOST_ELEMENTS for value in made)

    def _lost_by(self, step: Step) -> tuple[str, ...]:
        """What is half written when the step raises."""
        if step.kind == "backward":
            return tuple(self.tensors(lambda t: t.requires_grad))
        if not step.writes:
            return ()
        written = {self.tensor(name).untyped_storage()._cdata for name in step.uses}
        return tuple(self.tensors(lambda t: t.untyped_storage()._cdata in written))

    def forget(self, name: str) -> None:
        self.where.pop(name, None)
        self.machine.names.pop(name, None)

    def delete(self, *names: str) -> None:
        self.add(f"del {', '.join(names)}", uses=names, kind="delete", device=self.where[names[0]])
        for name in names:
            self.where.pop(name, None)


def broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    """Whether `shape` broadcasts to `to` without making it larger."""
    return len(shape) <= len(to) and all(a in (b, 1) for a, b in zip(reversed(shape), reversed(to), strict=False))
