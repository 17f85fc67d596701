"""What the trace costs a launch, in nanoseconds: when it is off (limit 50) and when it is on (limit 300).

    python benchmarks/trace_cost.py [--repetitions 30]

The first two lines are what a launch does for the trace alone, in CPU time. The lines below are whole ops on 16x16
matrices, as a script sees them, with the trace off and on in turn; medians of interleaved repetitions.
"""

from __future__ import annotations

import argparse
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
        "a + a": lambda: a + a,
        "a @ a": lambda: a @ a,
        "a.relu_()": a.relu_,
    }
    for name, op in ops.items():
        op_ns(op)
        op_off, op_on = [], []
        for _ in range(repetitions):
            op_off.append(op_ns(op))
            with launches():
                op_on.append(op_ns(op))
        before, after = statistics.median(op_off), statistics.median(op_on)
        print(f"{name:10} {before:7.0f} ns off, {after:7.0f} ns on, ratio {after / before:.2f}")
    return 0 if off_ns < LIMIT_OFF_NS and on_ns < LIMIT_ON_NS else 1


if __name__ == "__main__":
    raise SystemExit(main())
