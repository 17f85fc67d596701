"""Calling a compiled graph with 10 inputs takes at most 1.3 times what calling the CPU Inductor's takes.

The graph is one kernel over 16x16 tensors, so what is measured is the way there: guards, launch, results.
"""

from __future__ import annotations

import sys

import torch
from measure import Block, Result, Settings, compare, main, timed

INPUTS = 10
CALLS = 500
TARGET = 1.3
BACKENDS = {"cpu": "inductor", "neuron": "neuron"}


def add_one(*inputs: torch.Tensor) -> list[torch.Tensor]:
    return [x + 1 for x in inputs]


def block(device: str) -> Block:
    inputs = [torch.ones(16, 16, device=device) for _ in range(INPUTS)]
    compiled = torch.compile(add_one, backend=BACKENDS[device])

    def call() -> None:
        compiled(*inputs)

    timed(call, 3)
    return lambda: timed(call, CALLS)


def claims(settings: Settings) -> list[Result]:
    torch._dynamo.reset()
    with torch.no_grad():
        blocks = [block(device) for device in BACKENDS]
        return [compare(f"call of a graph with {INPUTS} inputs", *blocks, settings, TARGET, fastest_of=3)]


if __name__ == "__main__":
    sys.exit(main(claims, __doc__))
