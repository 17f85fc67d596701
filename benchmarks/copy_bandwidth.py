"""Copies between host and device run at 0.9 of the speed of the C library's memmove, or faster.

The ratio is one of speeds. The side called cpu is memmove between two host buffers of the same size.
"""

from __future__ import annotations

import ctypes
import sys

import torch
from measure import Block, Result, Settings, compare, main, timed
from torch import Tensor

MIB = 2**20
SIZES = {"64 MiB": (64 * MIB, 1), "1 MiB": (MIB, 20)}  # bytes, copies a block
TARGET = 0.9


def memmove(destination: Tensor, source: Tensor) -> None:
    ctypes.memmove(destination.data_ptr(), source.data_ptr(), source.nbytes)


def claims(settings: Settings) -> list[Result]:
    results = []
    for size, (nbytes, count) in SIZES.items():
        host, other_host = (torch.ones(nbytes, dtype=torch.uint8) for _ in range(2))
        device = torch.ones(nbytes, dtype=torch.uint8, device="neuron")
        cpu: Block = lambda a=other_host, b=host, n=count: timed(lambda: memmove(a, b), n)  # noqa: E731
        for name, destination, source in (("host to device", device, host), ("device to host", host, device)):
            copy: Block = lambda a=destination, b=source, n=count: timed(lambda: a.copy_(b), n)  # noqa: E731
            results.append(compare(f"{name} {size}", cpu, copy, settings, TARGET, at_least=True, fastest_of=5))
            print(f"{'':<42} {nbytes / results[-1].device_seconds / 1e9:.1f} GB/s")
    return results


if __name__ == "__main__":
    sys.exit(main(claims, __doc__))
