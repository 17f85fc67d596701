"""Compares two runs: pairs what they said, and finds the largest difference and its place."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from torch_neuronx.parity.launch import DeviceRun
from torch_neuronx.parity.text import Line, LineReader

WARNING_STREAM = "stderr"  # warnings of one device end up here: a line without a partner is told, but is no failure


@dataclass
class Value:
    """One thing that a run said: the numbers of a line, or one recorded array."""

    where: str
    text: str
    array: np.ndarray
    is_line: bool


# By the words (or the name) and how often these came before.
Said = dict[tuple[str, int], Value]


@dataclass
class Difference:
    """The place where two runs differ most."""

    where: str
    values: tuple[str, str]  # as they were, in the order of the runs
    absolute: float
    relative: float  # to the larger of the two; 1 when only one of them is a finite number

    def __str__(self) -> str:
        return f"{self.where}: {self.values[0]} and {self.values[1]}"


@dataclass
class Unmatched:
    """Something that only one run said."""

    where: str
    device: str
    text: str
    is_failure: bool


@dataclass
class Comparison:
    """What came out of comparing two runs.

    A difference is within a tolerance t when |a - b| <= t * max(1, |a|, |b|).
    """

    values: int = 0  # numbers compared
    compared: dict[str, int] = field(default_factory=dict)  # and where they came from
    different: int = 0
    beyond_tolerance: int = 0
    largest_absolute: Difference | None = None
    largest_relative: Difference | None = None
    first: Difference | None = None  # the first one in the order of the script, of all beyond the tolerance
    unmatched: list[Unmatched] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """True when nothing is beyond the tolerance and both runs said the same things."""
        return self.beyond_tolerance == 0 and not any(item.is_failure for item in self.unmatched)


def compare(
    first: DeviceRun, second: DeviceRun, tolerance: float = 0.0, reader: LineReader | None = None
) -> Comparison:
    """Compares everything that two runs of the same script said.

    What belongs together is found by its words: the n-th line (or record) with the same words on either side. So runs
    whose lines come in another order, or with other times in them, can be compared, too.
    """
    reader = reader or LineReader()
    comparison = Comparison()
    kinds = dict.fromkeys(kind for run in (first, second) for kind, _, _ in run.records)
    # Losses come first: of many differences, the first loss that differs is the one to look at.
    for source in [*sorted(kinds, key=lambda kind: kind != "loss"), "stdout", "stderr"]:
        said, other_said = (_said(run, source, reader) for run in (first, second))
        is_failure = source != WARNING_STREAM
        for device, side, other in ((first.device, said, other_said), (second.device, other_said, said)):
            alone = [value for key, value in side.items() if key not in other]
            comparison.unmatched += [
                Unmatched(value.where, device, _shortened(value.text), is_failure) for value in alone
            ]
        for key, value in said.items():
            if key in other_said:
                _compare_values(comparison, source, value, other_said[key], tolerance)
    return comparison


def _said(run: DeviceRun, source: str, reader: LineReader) -> Said:
    if source in ("stdout", "stderr"):
        return _lines(source, reader.read(getattr(run, source)))
    if source == "message":
        messages = [f"{logger}: {message}" for kind, logger, message in run.records if kind == source]
        return _lines(source, [reader.read_line(text, number) for number, text in enumerate(messages, start=1)])
    count: Counter[str] = Counter()
    said: Said = {}
    for kind, name, array in run.records:
        if kind == source:
            count[name] += 1
            where = name if source == "parameter" else f"{name}, {_ordinal(count[name])} time"
            said[name, count[name]] = Value(where, f"array of shape {array.shape}", array, is_line=False)
    return said


def _lines(source: str, lines: list[Line]) -> Said:
    count: Counter[str] = Counter()
    said: Said = {}
    for line in lines:
        if line.skeleton:
            count[line.skeleton] += 1
            numbers = np.array([float(text.replace(",", "")) for text in line.numbers])
            where = f'{source} line {line.number} "{_shortened(line.text)}"'
            said[line.skeleton, count[line.skeleton]] = Value(where, line.text, numbers, is_line=True)
    return said


def _compare_values(comparison: Comparison, source: str, a: Value, b: Value, tolerance: float) -> None:
    if a.array.shape != b.array.shape:
        shapes = (f"shape {a.array.shape}", f"shape {b.array.shape}")
        _note(comparison, Difference(a.where, shapes, math.inf, 1.0))
        return
    comparison.values += a.array.size
    comparison.compared[source] = comparison.compared.get(source, 0) + a.array.size
    if "U" in (a.array.dtype.kind, b.array.dtype.kind):  # text given to parity.log()
        if a.array.item() != b.array.item():
            _note(comparison, Difference(a.where, (repr(a.array.item()), repr(b.array.item())), math.inf, 1.0))
        return
    unequal = (a.array != b.array) & ~(_is_nan(a.array) & _is_nan(b.array))
    if not unequal.any():
        return
    absolute, relative, beyond = _differences(a.array[unequal], b.array[unequal], tolerance)
    comparison.different += len(absolute)
    comparison.beyond_tolerance += int(beyond.sum())
    indices = np.argwhere(unequal)

    def difference(picked: int) -> Difference:
        index = tuple(indices[picked].tolist())
        where = a.where
        if a.is_line:
            where += f", number {index[0] + 1}"
        elif index:
            where += f", at {list(index)}"
        values = (repr(a.array[index].item()), repr(b.array[index].item()))
        return Difference(where, values, float(absolute[picked]), float(relative[picked]))

    _keep_largest(comparison, difference(int(absolute.argmax())))
    _keep_largest(comparison, difference(int(relative.argmax())))
    if comparison.first is None and beyond.any():
        comparison.first = difference(int(beyond.argmax()))


def _differences(a: np.ndarray, b: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Absolute and relative differences of unequal numbers, and which of them are beyond the tolerance."""
    # Wide enough for every kind of number: bool, integer, float and complex.
    left, right = a.astype(np.complex128), b.astype(np.complex128)
    with np.errstate(invalid="ignore", over="ignore"):
        absolute = np.abs(left - right)
        scale = np.maximum(np.abs(left), np.abs(right))
        relative = absolute / scale
        beyond = ~(absolute <= tolerance * np.maximum(1.0, scale))
    not_finite = ~np.isfinite(absolute)
    absolute[not_finite], relative[not_finite], beyond[not_finite] = math.inf, 1.0, True
    # Two large integers may differ although the floats nearest to them do not.
    rounded_away = absolute == 0
    absolute[rounded_away], relative[rounded_away] = 1.0, np.finfo(np.float64).eps
    beyond[rounded_away] = tolerance < np.finfo(np.float64).eps
    return absolute, relative, beyond


def _note(comparison: Comparison, difference: Difference) -> None:
    comparison.different += 1
    comparison.beyond_tolerance += 1
    comparison.first = comparison.first or difference
    _keep_largest(comparison, difference)


def _keep_largest(comparison: Comparison, difference: Difference) -> None:
    if comparison.largest_absolute is None or difference.absolute > comparison.largest_absolute.absolute:
        comparison.largest_absolute = difference
    if comparison.largest_relative is None or difference.relative > comparison.largest_relative.relative:
        comparison.largest_relative = difference


def _is_nan(array: np.ndarray) -> np.ndarray:
    return np.isnan(array) if array.dtype.kind in "fc" else np.zeros(array.shape, dtype=bool)


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _shortened(text: str, width: int = 90) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
