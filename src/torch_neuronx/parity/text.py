"""Turns the output of a run into lines that can be compared: a skeleton of words, and the numbers in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"

# In a printed tensor, sometimes on a line of its own; on the CPU there is nothing in its place.
_DEVICE_OF_TENSOR = re.compile(r",\s+device='\w+(?::\d+)?'")

# What differs from run to run on the same device, or names the device. Matches are cut out of a line.
DEFAULT_IGNORE = (
    r"\x1b\[[0-9;]*[A-Za-z]",  # terminal colours
    r"\b(?:cpu|neuron|privateuseone)(?::\d+)?\b",
    r"\b0x[0-9a-fA-F]+\b",  # addresses
    r"\b(?:pid|PID)\s*[:=]?\s*\d+",
    r"\[\d+:\d[\d:]*<[^,\]]*,[^,\]]*",  # tqdm: [00:05<00:01, 39.8it/s
    r"\b\d{4}-\d\d-\d\d\b",
    r"\b1[5-9]\d{8}(?:\.\d+)?\b",  # time.time()
    r"\b\d+:\d\d(?::\d\d)?(?:[.,]\d+)?\b",  # clock times and mm:ss
    rf"{_NUMBER}\s*[kKMGT]?(?:it|step|tok|token|sample|image|example|op|FLOP|B|iB)s?/s(?:ec(?:ond)?)?\b",
    rf"{_NUMBER}\s*[kKMGT]?(?:FLOPS|FLOP/s)\b",
    rf"\b\w*/s(?:ec(?:ond)?)?\s*[:=]?\s*{_NUMBER}",  # tok/s: 1234
    rf"{_NUMBER}\s*(?:ns|us|µs|ms|s|secs?|seconds?|mins?|minutes?|hours?)(?:/\w+)?\b",
    rf"\b(?:time|elapsed|took|duration|dt|eta|latency|throughput|speed)(?:_\w+)?\s*[:=]?\s*{_NUMBER}",
    rf"{_NUMBER}\s*(?:[KMGT]i?B|[Bb]ytes?)\b",  # memory in use
    r"/tmp/\S+",
)


@dataclass
class Line:
    """A line of output, taken apart."""

    number: int  # in the output of the run, from 1
    text: str  # as printed
    skeleton: str  # with # for each number
    numbers: list[str]


class LineReader:
    """Reads lines under a set of regular expressions whose matches are cut out first.

    Raises:
        ValueError: an expression is not valid.
    """

    def __init__(self, ignore: Sequence[str] = (), use_defaults: bool = True) -> None:
        self._ignore = []
        for pattern in [*ignore, *(DEFAULT_IGNORE if use_defaults else ())]:
            try:
                self._ignore.append(re.compile(pattern))
            except re.error as error:
                raise ValueError(f"not a regular expression: {pattern!r}: {error}") from None
        self._number = re.compile(rf"(?<![\w.]){_NUMBER}(?!\w)|\b(?:nan|inf|NaN|Infinity)\b|(?<![\w.])-inf\b")

    def read(self, output: str) -> list[Line]:
        """All lines that are not empty after the cuts. Of a progress bar, its last state."""
        lines = []
        for number, raw in enumerate(_DEVICE_OF_TENSOR.sub("", output).split("\n"), start=1):
            # A terminal shows what was written after the last carriage return.
            shown = next((part for part in reversed(raw.split("\r")) if part.strip()), "")
            line = self.read_line(shown, number)
            if line.skeleton:
                lines.append(line)
        return lines

    def read_line(self, text: str, number: int = 1) -> Line:
        """One line, with its number in the output."""
        cut = _DEVICE_OF_TENSOR.sub("", text)
        for pattern in self._ignore:
            cut = pattern.sub("~", cut)
        skeleton = self._number.sub("#", cut)
        # Only cuts and spaces left: nothing to compare.
        skeleton = " ".join(skeleton.split()) if skeleton.strip("~ \t") else ""
        return Line(number, text.strip(), skeleton, [found.group() for found in self._number.finditer(cut)])
