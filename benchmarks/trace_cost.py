"""What the trace costs a launch, in nanoseconds: when it is off (limit 50) and when it is on (limit 300).

    python benchmarks/trace_cost.py [--repetitions 30]

The first two lines are what a launch does for the trace alone, in CPU time. The lines below are whole ops on 16x16
matrices, as a script sees them, with the trace off and on in turn: what the trace adds to each, the median over the
differences of neighbouring repetitions.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable

import torch

from torch_neuronx import _C
from torch_neuronx.profiler import launches

LIMIT_OFF_NS = 50
LIMIT_ON_NS = 300


def op_ns(op: Callable[[], object], count: int = 2000) -> float:
    """Nanoseconds per call of `op`, the device synchronized at both ends."""
    torch.neuron.synchronize()
    start = time.perf_counter_ns()
    for _ in range(count):
        op()
    torch.neuron.synchronize()
    return (time.perf_counter_ns() - start) / count


def added_ns(op: Callable[[], object], repetitions: int) -> tuple[float, float]:
    """Nanoseconds of a call with the trace off, and what the trace adds; medians."""
    with launches():
        op_ns(op)
    off, added = [], []
    gc.collect()
    gc.disable()
    try:
        for _ in range(repetitions):
            # Off on both sides of on: a drift of the machine's speed cancels out.
            before = op_ns(op)
            with launches():
                on = op_ns(op)
            after = op_ns(op)
            off.append((before + after) / 2)
            added.append(on - off[-1])
    finally:
        gc.enable()
    return statistics.median(off), statistics.median(added)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=30)
    repetitions = parser.parse_args().repetitions

    off, on = [], []
    for _ in range(repetitions):
        off.append(_C._measure_trace_cost(100_000, False))
        on.append(_C._measure_trace_cost(20_000, True))
    off_ns, on_ns = statistics.median(off), statistics.median(on)
    print(f"trace off: {off_ns:7.1f} ns per launch (limit {LIMIT_OFF_NS})")
    print(f"trace on:  {on_ns:7.1f} ns per launch (limit {LIMIT_ON_NS})")

    a = torch.randn(16, 16, device="neuron")
    ops: dict[str, Callable[[], object]] = {
        "a.relu_()": a.relu_,
        "a + a": lambda: a + a,
        "a @ a": lambda: a @ a,
    }
    met = off_ns < LIMIT_OFF_NS and on_ns < LIMIT_ON_NS
    for name, op in ops.items():
        plain_ns, trace_ns = added_ns(op, repetitions)
        met = met and trace_ns < LIMIT_ON_NS
        print(f"{name:10} {plain_ns:7.0f} ns off, {trace_ns:+5.0f} ns on (limit {LIMIT_ON_NS})")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
