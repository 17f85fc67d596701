"""Where a program runs: the CPU, or neuron devices with several streams."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from torch_neuronx import _C

from .observe import is_leaf
from .program import Program, Step
from .training import optimize, rnn
from .values import values

DEVICES = 2
STREAMS = 3


class Machine:
    """The CPU. Streams and devices are one there."""

    kind = "cpu"

    def __init__(self, program: Program) -> None:
        torch.manual_seed(program.seed)
        self.names: dict[str, Any] = self.namespace()
        self.seen_version: dict[str, int] = {}

    def device(self, index: int) -> torch.device:
        return torch.device("cpu")

    def namespace(self) -> dict[str, Any]:
        """What the code of a step can name, besides what earlier steps made."""
        return {
            "torch": torch,
            "F": F,
            "nan": float("nan"),
            "inf": float("inf"),
            "devices": [self.device(index) for index in range(DEVICES)],
            "make": self.make,
            "host": values,
            "move": self.move,
            "optimize": optimize,
            "rnn": rnn,
        }

    def make(self, shape: tuple[int, ...], dtype: torch.dtype, kind: str, seed: int, device: int = 0) -> torch.Tensor:
        return values(shape, dtype, kind, seed).to(self.device(device))

    def move(self, tensor: torch.Tensor, device: int) -> torch.Tensor:
        return tensor.to(self.device(device), copy=True)

    @contextlib.contextmanager
    def running(self, step: Step) -> Iterator[None]:
        """Everything around a step: its device and stream, and the order between streams that it needs."""
        yield

    def synchronize(self) -> list[BaseException]:
        """Waits for everything; the late errors that this raised."""
        return []

    def take_late_errors(self) -> list[BaseException]:
        """Errors that ordering the streams raised since the last call."""
        return []

    def close(self) -> None:
        self.names.clear()


@dataclass
class Uses:
    """The launches that last used a storage, as positions in streams."""

    memory: int = 0
    home: tuple[int, int] = (0, 0)
    writer: tuple[tuple[int, int], int] | None = None
    readers: dict[tuple[int, int], int] = field(default_factory=dict)


class NeuronMachine(Machine):
    """Neuron devices. Orders streams as a careful user would: before each step, by what its operands were used for.

    Streams are ordered only where operands ask for it, so launches of different streams do run at the same time; and
    memory used away from the stream it was allocated for is named to `record_stream`.
    """

    kind = "neuron"
    _streams: dict[tuple[int, int], torch.Stream] = {}  # noqa: RUF012 - of the process, as streams are never destroyed

    def __init__(self, program: Program, hand_off: str) -> None:
        super().__init__(program)
        self._count: dict[tuple[int, int], int] = {}
        self._known: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
        self._storages: dict[int, Uses] = {}
        self._late: list[BaseException] = []
        self._one_stream = all(step.stream == 0 and step.other_device is None for step in program.steps)
        self._hand_off = hand_off
        self._host_rng_before = _C.host_rng()
        _C._set_hand_off(hand_off)
        torch.neuron.host_rng(program.host_rng)

    def close(self) -> None:
        super().close()
        _C._set_hand_off("measured")
        torch.neuron.host_rng(self._host_rng_before)

    def device(self, index: int) -> torch.device:
        return torch.device("neuron", index)

    def stream(self, place: tuple[int, int]) -> torch.Stream:
        device, number = place
        if place not in self._streams:
            self._streams[place] = (
                torch.neuron.default_stream(device) if number == 0 else torch.neuron.Stream(device=device)
            )
        return self._streams[place]

    @contextlib.contextmanager
    def running(self, step: Step) -> Iterator[None]:
        if self._one_stream:
            with torch.neuron.device(step.device):
                yield
            return
        place = (step.device, step.stream)
        places = [place]
        if step.kind == "backward":
            places += [other for other in self._count if other != place]
        elif step.other_device is not None:
            places.append((step.other_device, step.stream))
        for one in places:
            self._count.setdefault(one, 0)
            self._known.setdefault(one, {})
        before = {tensor.untyped_storage()._cdata for tensor in self._operands(step.uses)}
        self._order(step, places)
        with contextlib.ExitStack() as stack:
            for one in reversed(places if step.other_device is not None else [place]):
                stack.enter_context(torch.neuron.stream(self.stream(one)))
            yield
        for one in places:
            self._count[one] += 1
        # A copy between devices, and a backward pass, leave their streams ordered: each has waited for the others.
        if len(places) > 1:
            for one in places:
                self._wait(one, [other for other in places if other != one], step.order)
        self._note(step, place, before)

    def _order(self, step: Step, places: list[tuple[int, int]]) -> None:
        needed: set[tuple[int, int]] = set()
        place = places[0]
        for tensor in self._operands(step.uses):
            uses = self._storages.get(tensor.untyped_storage()._cdata)
            if uses is None:
                continue
            before = [uses.writer] if uses.writer is not None else []
            before += list(uses.readers.items()) if step.writes or len(places) > 1 else []
            for other, position in before:
                if other != place and self._known[place].get(other, 0) < position:
                    needed.add(other)
        if step.kind == "backward":
            needed.update(places[1:])
        self._wait(place, sorted(needed), step.order)
        for other in places[1:]:
            self._wait(other, [place, *(one for one in needed if one != other)], step.order)

    def _wait(self, place: tuple[int, int], others: list[tuple[int, int]], order: str) -> None:
        stream = self.stream(place)
        for other in others:
            with self._collecting():
                if order == "event":
                    event = torch.neuron.Event()
                    event.record(self.stream(other))
                    event.wait(stream)
                elif order == "stream":
                    stream.wait_stream(self.stream(other))
                elif order == "host":
                    self.stream(other).synchronize()
                else:
                    torch.neuron.synchronize(other[0])
            known = self._known[place]
            known[other] = self._count[other]
            for third, position in self._known[other].items():
                known[third] = max(known.get(third, 0), position)

    def _note(self, step: Step, place: tuple[int, int], before: set[int]) -> None:
        position = self._count[place]
        for tensor in self._operands({*step.uses, *step.makes}):
            storage = tensor.untyped_storage()
            if storage._cdata not in before:
                self._storages.pop(storage._cdata, None)  # what is known is about an earlier one at this address
                before.add(storage._cdata)
            uses = self._storages.setdefault(storage._cdata, Uses())
            if uses.memory != storage.data_ptr():
                uses.memory = storage.data_ptr()
                uses.home = place if tensor.device.index == place[0] else (tensor.device.index, place[1])
            elif uses.home != place and tensor.device.index == place[0]:
                tensor.record_stream(self.stream(place))
            if step.writes or not uses.readers or step.kind == "backward":
                uses.writer = (place, position)
                uses.readers = {}
            uses.readers[place] = position

    def _operands(self, names: Any) -> Iterator[torch.Tensor]:
        for name in names:
            value = self.names.get(name)
            if not isinstance(value, torch.Tensor) or value.device.type != "neuron":
                continue
            for tensor in (value, value.grad if is_leaf(value) else None):
                if tensor is not None and not tensor._is_zerotensor():
                    yield tensor

    @contextlib.contextmanager
    def _collecting(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._late.append(error)

    def synchronize(self) -> list[BaseException]:
        for index in range(DEVICES):
            # A device keeps one error for each of its streams and raises one at a time.
            for _ in range(STREAMS + 1):
                found = len(self._late)
                with self._collecting():
                    torch.neuron.synchronize(index)
                if len(self._late) == found:
                    break
        return self.take_late_errors()

    def take_late_errors(self) -> list[BaseException]:
        taken, self._late = self._late, []
        return taken
