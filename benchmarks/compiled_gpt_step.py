"""A compiled training step of a GPT takes at most 1.02 times what the CPU's Inductor takes.

Forward and backward are compiled, clipping and AdamW (foreach) are not, as most training loops have it; in float32 and
with bfloat16 autocast.
"""

from __future__ import annotations

import sys

import torch
from gpt_step import training_step
from measure import Block, Result, Settings, compare, main, timed

# width, heads, batch, length
SIZES = [(256, 8, 8, 128), (512, 8, 4, 128)]
TARGET = 1.02
BLOCK_SECONDS = 0.05
BACKENDS = {"cpu": "inductor", "neuron": "neuron"}


def claims(settings: Settings) -> list[Result]:
    results = []
    for autocast in (False, True):
        for width, heads, batch, length in SIZES:
            torch._dynamo.reset()
            steps = [
                training_step(device, width, heads, batch, length, autocast, backend)
                for device, backend in BACKENDS.items()
            ]
            for step in steps:
                timed(step, 2)
            count = max(1, round(BLOCK_SECONDS / timed(steps[0], 2)))
            blocks: list[Block] = [lambda step=step, count=count: timed(step, count) for step in steps]
            name = f"compiled GPT step d={width} B={batch} T={length} {'bf16' if autocast else 'fp32'}"
            results.append(compare(name, *blocks, settings, TARGET, fastest_of=2))
    return results


if __name__ == "__main__":
    sys.exit(main(claims, __doc__))
