"""`python -m tests.fuzz`: many random programs on cpu and neuron, in two processes; failures are made small and printed."""

from __future__ import annotations

import argparse
import sys
import time

from .generate import STEPS, generate
from .pool import Pool, Result, difference_in_new_process
from .program import Program
from .shrink import shrink

SHRUNK = 5
SHRINKING_PATIENCE = 15.0


class Progress:
    """A line that is rewritten on a terminal, and written now and then elsewhere."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.failures: list[Result] = []
        self.start = time.monotonic()
        self.shown = 0.0

    def __call__(self, result: Result) -> None:
        self.done += 1
        if result.difference is not None:
            self.failures.append(result)
            self.write(f"\nseed {result.seed}: {result.difference}\n")
        now = time.monotonic()
        terminal = sys.stdout.isatty()
        if now - self.shown > (0.2 if terminal else 15) or self.done == self.total:
            self.shown = now
            took = now - self.start
            line = f"{self.done} of {self.total} programs, {len(self.failures)} failed, {self.done / took:.0f} a second"
            self.write(f"\r{line}\033[K" if terminal else f"{line}\n")

    @staticmethod
    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def explain(result: Result, steps: int) -> None:
    """Prints a failing seed as a small script, when it fails alone."""
    program = generate(result.seed, steps)

    def fails(smaller: Program) -> bool:
        return difference_in_new_process(smaller, SHRINKING_PATIENCE) is not None

    if not fails(program):
        count = result.seed - result.first_of_process + 1
        print(
            f"\nseed {result.seed} does not fail alone. Its process began with seed {result.first_of_process}: try\n"
            f"  python -m tests.fuzz --processes 1 --seed {result.first_of_process} --programs {count} --steps {steps}"
        )
        return
    small = shrink(program, fails)
    print(f"\nseed {result.seed}, from {len(program.steps)} steps to {len(small.steps)}:\n\n{small.as_script()}")
    print(f"# {difference_in_new_process(small)}\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first program; the others follow it")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of a program, about")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--print", action="store_true", help="print the programs as scripts and run nothing")
    given = parser.parse_args()
    if given.print:
        for seed in range(given.seed, given.seed + given.programs):
            print(generate(seed, given.steps).as_script())
        return 0
    last = given.seed + given.programs - 1
    print(f"seeds {given.seed} to {last}, {given.steps} steps each, {given.processes} processes")
    progress = Progress(given.programs)
    Pool(given.seed, given.programs, given.steps, given.processes, progress).run()
    print()
    for result in progress.failures[:SHRUNK]:
        explain(result, given.steps)
    if progress.failures:
        print(f"failing seeds: {sorted(result.seed for result in progress.failures)}")
        return 1
    print(f"{given.programs} programs, no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
