"""Products of 16-bit matrices take at most the CPU's time; less where the host has no instructions for them.

The layouts are those of a linear layer: forward, gradient of the input, gradient of the weight.
"""

from __future__ import annotations

import sys
import time

import torch
from measure import Result, Settings, compare_sides, main, synchronize
from side import Timer

TARGET = 1.05
SIZE = 256
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
LAYOUTS = {"x @ weight.T": "nt", "gradient @ weight": "nn", "gradient.T @ x": "tn"}


def product_timer(device: str, dtype: str, layout: str) -> Timer:
    a, b = (torch.randn(SIZE, SIZE).to(DTYPES[dtype]).to(device) for _ in range(2))
    a, b = (x.T if turned == "t" else x for x, turned in zip((a, b), layout, strict=True))

    def run(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            a @ b
        synchronize()
        return (time.perf_counter() - start) / count

    run(3)
    return run


def claims(settings: Settings) -> list[Result]:
    return [
        compare_sides(f"{dtype} {name}", product_timer, (dtype, layout), settings, TARGET, count=5)
        for dtype in DTYPES
        for name, layout in LAYOUTS.items()
    ]


if __name__ == "__main__":
    sys.exit(main(claims, __doc__))
