"""A compiled training step of a GPT takes at most 1.02 times what the CPU's Inductor takes.

Forward and backward are compiled, clipping and AdamW (foreach) are not, as most training loops have it; in float32 and
with bfloat16 autocast.
"""

from __future__ import annotations

import sys

from gpt_step import step_timer
from measure import Result, Settings, compare_sides, main

# width, heads, batch, length
SIZES = [(256, 8, 8, 128), (512, 8, 4, 128)]
TARGET = 1.02


def claims(settings: Settings) -> list[Result]:
    results = []
    for autocast in (False, True):
        for width, heads, batch, length in SIZES:
            name = f"compiled GPT step d={width} B={batch} T={length} {'bf16' if autocast else 'fp32'}"
            arguments = (width, heads, batch, length, autocast, True)
            results.append(compare_sides(name, step_timer, arguments, settings, TARGET, fastest_of=2))
    return results


if __name__ == "__main__":
    sys.exit(main(claims, __doc__))
