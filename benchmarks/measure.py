"""How every benchmark measures: the plain CPU and the device in turn, in short blocks, each in a process of its own.

On a shared machine the speed itself drifts. So a claim is a ratio of two neighbouring blocks, and its figure is the
median over many such pairs. The quartiles show how far single pairs stray.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from side import Side, Timer

Block = Callable[[], float]  # runs a block of work and returns seconds per unit of it


@dataclass
class Settings:
    pairs: int = 20  # blocks of each kind, at least
    seconds: float = 4.0  # and go on measuring a claim for this long
    most_seconds: float = 60.0  # but where a unit of work is that slow, stop here with FEWEST_PAIRS


FEWEST_PAIRS = 3
BLOCK_SECONDS = 0.3
WARM_UP = 0.3  # of a block, before it: long enough to forget the pause and what the other side left in the caches
SLOW_SECONDS = 1.0


@dataclass
class Result:
    name: str
    cpu_seconds: float  # medians, per unit of work
    device_seconds: float
    ratio: float  # median of the ratios of the pairs
    ratio_low: float  # first and third quartile of these
    ratio_high: float
    pairs: int
    target: float | None  # None: for information
    at_least: bool = False  # a ratio of speeds, which should be high; else of times, which should be low

    @property
    def passed(self) -> bool:
        if self.target is None:
            return True
        return self.ratio >= self.target if self.at_least else self.ratio <= self.target

    def line(self) -> str:
        verdict, limit = "", ""
        if self.target is not None:
            verdict = "PASS" if self.passed else "FAIL"
            limit = f"{'>=' if self.at_least else '<='} {self.target:.2f}"
        return (
            f"{self.name:<42} {_time(self.cpu_seconds):>10} {_time(self.device_seconds):>10} {self.ratio:>7.3f} "
            f"({self.ratio_low:.3f} to {self.ratio_high:.3f}) {self.pairs:>4}  {limit:<8} {verdict}"
        )


HEADER = f"{'claim':<42} {'cpu':>10} {'device':>10} {'ratio':>7} (quartiles)      pairs  target"


def compare(
    name: str,
    cpu: Block,
    device: Block,
    settings: Settings,
    target: float | None,
    at_least: bool = False,
    fastest_of: int = 1,
) -> Result:
    """Runs both kinds of blocks in turn, each pair in the other order than the one before, and prints the result.

    A claim whose units are slow ends after `settings.most_seconds`, with at least three pairs.

    `fastest_of` blocks of either kind, still in turn, make one side of a pair, which counts with its fastest: other
    processes of the machine take the cores away in some blocks and leave others alone.
    """
    cpu()
    device()
    times: list[tuple[float, float]] = []
    start = time.perf_counter()
    while not _enough(settings, len(times), time.perf_counter() - start):
        first, second = (device, cpu) if len(times) % 2 else (cpu, device)
        tries = [(first(), second()) for _ in range(fastest_of)]
        fastest = [min(side) for side in zip(*tries, strict=True)]
        times.append((fastest[1], fastest[0]) if len(times) % 2 else (fastest[0], fastest[1]))
    ratios = [cpu / device if at_least else device / cpu for cpu, device in times]
    low, ratio, high = statistics.quantiles(ratios, n=4, method="inclusive")
    medians = [statistics.median(side) for side in zip(*times, strict=True)]
    result = Result(name, *medians, ratio, low, high, len(times), target, at_least)
    print(result.line(), flush=True)
    return result


def compare_sides(
    name: str,
    make: Callable[..., Timer],
    arguments: tuple[object, ...],
    settings: Settings,
    target: float | None,
    count: int | None = None,
    at_least: bool = False,
    fastest_of: int = 1,
) -> Result:
    """`compare` for `make("cpu", *arguments)` and `make("neuron", *arguments)`, each in a process of its own.

    A block has `count` units of work; by default as many as take the CPU BLOCK_SECONDS, but just one, and that not
    repeated within a pair, where either side needs more than SLOW_SECONDS for it: a host without fast bfloat16 products
    takes seconds for a large training step.
    """
    sides = [Side(make, device, *arguments) for device in ("cpu", "neuron")]
    slow = False
    if count is None:
        fastest = [min(side(), side()) for side in sides]
        slow = max(fastest) > SLOW_SECONDS
        count = 1 if slow else max(1, round(BLOCK_SECONDS / fastest[0]))
        fastest_of = 1 if slow else fastest_of
    cpu, device = [functools.partial(side, count, 0 if slow else math.ceil(count * WARM_UP)) for side in sides]
    try:
        return compare(name, cpu, device, settings, target, at_least, fastest_of)
    finally:
        for side in sides:
            side.close()


def _enough(settings: Settings, pairs: int, seconds: float) -> bool:
    if seconds > settings.most_seconds:
        return pairs >= min(FEWEST_PAIRS, settings.pairs)
    return pairs >= settings.pairs and seconds > settings.seconds


def synchronize() -> None:
    """Waits for the device, if there is one."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def timed(work: Callable[[], object], count: int = 1) -> float:
    """Seconds per call of `work`, until the device, if there is one, has done all of it."""
    start = time.perf_counter()
    for _ in range(count):
        work()
    synchronize()
    return (time.perf_counter() - start) / count


def machine() -> dict[str, object]:
    """What the figures depend on."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
    }


def main(claims: Callable[[Settings], list[Result]], description: str | None) -> int:
    """The command line of a benchmark. Returns 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=Settings.pairs, help="blocks on each side, at least")
    parser.add_argument("--seconds", type=float, default=Settings.seconds, help="time for each claim, at least")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    before = machine()
    print("  ".join(f"{name} {value}" for name, value in before.items()))
    print(HEADER)
    results = claims(Settings(max(2, arguments.pairs), arguments.seconds))
    if arguments.json is not None:
        rows = [asdict(result) | {"passed": result.passed} for result in results]
        arguments.json.write_text(json.dumps({"machine": before, "results": rows}, indent=2) + "\n")
    return 0 if all(result.passed for result in results) else 1


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.2f} {unit}"
    return f"{seconds / 1e-9:.0f} ns"
