"""Calling a compiled graph with 10 inputs takes at most 1.3 times what calling the CPU Inductor's takes.

The graph is one kernel over 16x16 tensors, so what is measured is the way there: guards, launch, results.
"""

from __future__ import annotations

import sys

import torch
from measure import Result, Settings, compare_sides, main, timed
from side import Timer

INPUTS = 10
CALLS = 500
TARGET = 1.3
BACKENDS = {"cpu": "inductor", "neuron": "neuron"}


def add_one(*inputs: torch.Tensor) -> list[torch.Tensor]:
    return [x + 1 for x in inputs]


def call_timer(device: str) -> Timer:
    inputs = [torch.ones(16, 16, device=device) for _ in range(INPUTS)]
    compiled = torch.compile(add_one, backend=BACKENDS[device])

    def call() -> None:
        compiled(*inputs)

    torch.set_grad_enabled(False)
    timed(call, 3)
    return lambda count: timed(call, count)


def claims(settings: Settings) -> list[Result]:
    name = f"call of a graph with {INPUTS} inputs"
    return [compare_sides(name, call_timer, (), settings, TARGET, count=CALLS, fastest_of=3)]


if __name__ == "__main__":
    sys.exit(main(claims, __doc__))
