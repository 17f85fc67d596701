"""Two streams at work at once, ordered by events, and a stretch of work timed on the device.

Run: python examples/streams_and_events.py --device neuron
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import Tensor


def chain(matrix: Tensor, count: int) -> Tensor:
    for _ in range(count):
        matrix = torch.tanh(matrix @ matrix)
    return matrix


def on_one_stream(a: Tensor, b: Tensor) -> Tensor:
    return chain(a, 20) + chain(b, 20)


def on_two_streams(a: Tensor, b: Tensor) -> Tensor:
    main = torch.accelerator.current_stream(a.device)
    side = torch.Stream(a.device)
    side.wait_stream(main)  # a and b were made on the main stream
    with side:
        right = chain(b, 20)
        done = side.record_event()
    left = chain(a, 20)
    main.wait_event(done)
    # `right` was allocated on the side stream: its memory may only be reused when the main stream is past this point.
    right.record_stream(main)
    return left + right


def timed(a: Tensor) -> float:
    """Milliseconds that the device spends on a chain of products."""
    start, end = (torch.Event(a.device, enable_timing=True) for _ in range(2))
    stream = torch.accelerator.current_stream(a.device)
    stream.record_event(start)
    chain(a, 50)
    stream.record_event(end)
    end.synchronize()
    return start.elapsed_time(end)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="neuron")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)

    torch.manual_seed(0)
    a, b = (torch.randn(256, 256).to(device) for _ in range(2))
    one = on_one_stream(a, b)
    print(f"one stream   sum {one.sum().item():.6f}")
    if device.type == "cpu":
        print("the CPU has no streams: everything runs in order")
        return 0

    two = on_two_streams(a, b)
    print(f"two streams  sum {two.sum().item():.6f}")
    print(f"50 products of 256 x 256 took {timed(a):.1f} ms on the device")
    return 0 if torch.equal(one, two) else 1


if __name__ == "__main__":
    sys.exit(main())
