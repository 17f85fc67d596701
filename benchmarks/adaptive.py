"""Adaptive eager takes a fraction of the plain CPU's time where launches can be joined, and never more than strict.

Unchanged eager scripts with TORCH_NEURONX_EAGER_MODE=adaptive; the CPU's side is plain eager, too.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import torch
from gpt_step import training_step
from measure import Result, Settings, compare, compare_sides, main, timed
from side import Side, Timer

CHAIN_NUMBERS = 4_000_000
PARAMETERS = 200
# width, heads, batch, length, target
SIZES = [(64, 4, 2, 32, 0.65), (128, 4, 4, 64, 0.8), (256, 8, 8, 128, 1.0), (512, 8, 4, 128, 1.0)]
NEW_SHAPES = 400  # of one block: none of them comes twice


def chain_timer(device: str) -> Timer:
    """12 element-wise operators on as many numbers as CHAIN_NUMBERS says."""
    a, b = (torch.rand(CHAIN_NUMBERS).to(device) for _ in range(2))

    def chain() -> torch.Tensor:
        x = a * b
        x = x + 0.3
        x = x / 1.7
        x = x - b
        x = x.relu()
        x = torch.addcmul(x, a, b, value=0.37)
        x = x.sqrt()
        x = torch.lerp(x, a, 0.12)
        x = x.add(b, alpha=0.21)
        x = torch.addcdiv(x, a, b, value=1.3)
        x = -x
        return x * x

    return adaptive_timer(device, chain)


def block_timer(device: str) -> Timer:
    """LayerNorm, GELU and a residual, forward."""
    x = torch.randn(8, 256, 512).to(device)
    norm = torch.nn.LayerNorm(512).to(device)

    def block() -> torch.Tensor:
        with torch.no_grad():
            return x + torch.nn.functional.gelu(norm(x))

    return adaptive_timer(device, block)


def optimizer_timer(device: str) -> Timer:
    """AdamW over many small parameters."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(32, 32).to(device)) for _ in range(PARAMETERS)]
    for parameter in parameters:
        parameter.grad = torch.randn(32, 32).to(device)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, foreach=True)
    return adaptive_timer(device, optimizer.step)


def adaptive_timer(device: str, work: Callable[[], object], mode: str = "adaptive") -> Timer:
    if device == "neuron":
        torch.neuron.eager_mode(mode)
    timed(work, 10)
    return lambda count: timed(work, count)


def step_timer(device: str, *arguments: object) -> Timer:
    return adaptive_timer(device, training_step(device, *arguments))


def new_shapes_timer(device: str, mode: str) -> Timer:
    """A chain of three operators, each time on tensors of another size."""
    memory = torch.rand(100_000, device=device)
    size = 1_000

    def step() -> None:
        nonlocal size
        size = 1_000 + (size + 7_919) % 89_000
        x = memory[:size] * 2.0
        x = x + 1.0
        x = x.relu()

    return adaptive_timer(device, step, mode)


def against_strict(settings: Settings) -> Result:
    sides = [Side(new_shapes_timer, "neuron", mode) for mode in ("strict", "adaptive")]
    strict, adaptive = [functools.partial(side, NEW_SHAPES) for side in sides]
    try:
        return compare("new shapes each time, against strict", strict, adaptive, settings, 1.1)
    finally:
        for side in sides:
            side.close()


def claims(settings: Settings) -> list[Result]:
    results = [
        compare_sides("12 element-wise operators on 4M floats", chain_timer, (), settings, 0.35),
        compare_sides("LayerNorm, GELU, residual", block_timer, (), settings, 0.7),
        compare_sides(f"AdamW, {PARAMETERS} small parameters", optimizer_timer, (), settings, 0.5),
        against_strict(settings),
    ]
    for width, heads, batch, length, target in SIZES:
        name = f"GPT step d={width} B={batch} T={length} fp32"
        arguments = (width, heads, batch, length, False)
        results.append(compare_sides(name, step_timer, arguments, settings, target, fastest_of=2))
    return results


if __name__ == "__main__":
    sys.exit(main(claims, __doc__))
