"""Allocating and freeing 1 MiB takes at most as long as with the CPU allocator. Other sizes are for information."""

from __future__ import annotations

import sys
import timeit

import torch
from measure import Result, Settings, compare_sides, main
from side import Timer

CALLS = 500
SIZES = {"1 MiB": (2**20, 1.0), "1 KiB": (2**10, None), "32 MiB": (2**25, None)}


def allocation_timer(device: str, nbytes: int) -> Timer:
    names = {"empty": torch.empty, "size": nbytes, "dtype": torch.uint8, "device": torch.device(device)}
    timer = timeit.Timer("empty(size, dtype=dtype, device=device)", globals=names)  # freed as soon as it is made
    timer.timeit(CALLS)
    return lambda count: timer.timeit(count) / count


def claims(settings: Settings) -> list[Result]:
    return [
        compare_sides(
            f"allocate and free {name}", allocation_timer, (nbytes,), settings, target, count=CALLS, fastest_of=5
        )
        for name, (nbytes, target) in SIZES.items()
    ]


if __name__ == "__main__":
    sys.exit(main(claims, __doc__))
