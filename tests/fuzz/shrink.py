"""Makes a failing program smaller: steps are dropped as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable

from .program import Program


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The smallest program found by dropping runs of steps, then single ones, until none can go.

    Steps whose operands are gone are left out when a program runs, so any subset of the steps is a program.
    """
    size = max(len(program.steps) // 2, 1)
    while True:
        dropped = False
        start = len(program.steps) - size
        while start > -size:
            low = max(start, 0)
            smaller = program.without(low, start + size)
            if fails(smaller):
                program, dropped = smaller, True
            start -= size
        if size > 1:
            size = max(size // 2, 1)
        elif not dropped:
            return program
