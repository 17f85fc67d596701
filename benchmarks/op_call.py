"""Calling a small op costs the caller at most 1.3 times what the plain CPU op costs.

On 16 x 16 matrices. "caller" is the time until the call returns; "done" includes waiting for the device at the end of
the block, and is for information.
"""

from __future__ import annotations

import sys
import time
import timeit

import torch
from measure import Result, Settings, compare_sides, main, synchronize
from side import Timer

OPS = ["a + b", "a @ b", "a.relu_()", "a.sum()"]
CALLS = 500  # a block; fewer than a caller may run ahead, so that no call waits for the device
TARGET = 1.3


def call_timer(device: str, op: str, wait: bool) -> Timer:
    a, b = (torch.randn(16, 16).to(device) for _ in range(2))
    timer = timeit.Timer(op, globals={"a": a, "b": b})

    def run(count: int) -> float:
        start = time.perf_counter()
        seconds = timer.timeit(count)
        synchronize()
        return (time.perf_counter() - start if wait else seconds) / count

    for _ in range(5):
        run(CALLS)
    return run


def claims(settings: Settings) -> list[Result]:
    results = []
    for wait in (False, True):
        for op in OPS:
            name = f"{op}  {'done' if wait else 'caller'}"
            target = None if wait else TARGET
            results.append(compare_sides(name, call_timer, (op, wait), settings, target, count=CALLS, fastest_of=5))
    return results


if __name__ == "__main__":
    sys.exit(main(claims, __doc__))
