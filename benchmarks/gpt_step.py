"""A training step of a GPT takes at most 1.05 times the plain CPU's time, and less than it where Python dominates.

Forward, backward, clipping and AdamW (foreach), in float32 and with bfloat16 autocast. Losses are not read: as in a
training loop that logs now and then, the caller may run ahead of the device within a block.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from measure import Result, Settings, compare_sides, main, timed
from side import Timer

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))
from gpt import GPT, GPTConfig

# width, heads, batch, length, target
SIZES = [(64, 4, 2, 32, 1.0), (256, 8, 8, 128, 1.05), (512, 8, 4, 128, 1.05)]
LAYERS = 4
VOCABULARY = 512
BACKENDS = {"cpu": "inductor", "neuron": "neuron"}


def training_step(
    device: str, width: int, heads: int, batch: int, length: int, autocast: bool, compiled: bool = False
) -> Callable[[], None]:
    """One step on `device`; forward and backward are compiled if asked for."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(VOCABULARY, context=length, layers=LAYERS, heads=heads, width=width)).to(device)
    loss_of = torch.compile(model.loss, backend=BACKENDS[device]) if compiled else model.loss
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    tokens = torch.randint(VOCABULARY, (batch, length + 1)).to(device)

    def step() -> None:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            loss = loss_of(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def step_timer(device: str, *arguments: object) -> Timer:
    """Times training steps that `training_step(device, *arguments)` makes, compiled ones by the device's backend."""
    step = training_step(device, *arguments)
    timed(step, 4)
    return lambda count: timed(step, count)


def claims(settings: Settings) -> list[Result]:
    results = []
    for autocast in (False, True):
        for width, heads, batch, length, target in SIZES:
            name = f"GPT step d={width} B={batch} T={length} {'bf16' if autocast else 'fp32'}"
            arguments = (width, heads, batch, length, autocast)
            results.append(compare_sides(name, step_timer, arguments, settings, target, fastest_of=2))
    return results


if __name__ == "__main__":
    sys.exit(main(claims, __doc__))
