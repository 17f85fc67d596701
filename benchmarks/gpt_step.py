"""A training step of a GPT takes at most 1.05 times the plain CPU's time, and less than it where Python dominates.

Forward, backward, clipping and AdamW (foreach), in float32 and with bfloat16 autocast. Losses are not read: as in a
training loop that logs now and then, the caller may run ahead of the device within a block.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from measure import Block, Result, Settings, compare, main, timed

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))
from gpt import GPT, GPTConfig

# width, heads, batch, length, target
SIZES = [(64, 4, 2, 32, 1.0), (256, 8, 8, 128, 1.05), (512, 8, 4, 128, 1.05)]
LAYERS = 4
VOCABULARY = 512
SLOW_SECONDS = 1.0
BLOCK_SECONDS = 0.05  # long enough to forget what the other side left in the caches


def training_step(
    device: str, width: int, heads: int, batch: int, length: int, autocast: bool, backend: str | None = None
) -> Callable[[], None]:
    """One step on `device`; with a `backend`, forward and backward are compiled by it."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(VOCABULARY, context=length, layers=LAYERS, heads=heads, width=width)).to(device)
    loss_of = torch.compile(model.loss, backend=backend) if backend else model.loss
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


def claims(settings: Settings) -> list[Result]:
    results = []
    for autocast in (False, True):
        for width, heads, batch, length, target in SIZES:
            steps = [training_step(device, width, heads, batch, length, autocast) for device in ("cpu", "neuron")]
            # A host without fast bfloat16 products takes seconds for a large step: these warm up once, and do without
            # repetitions within a pair.
            slow = max(timed(step) for step in steps) > SLOW_SECONDS
            count = 1 if slow else max(1, round(BLOCK_SECONDS / min(timed(steps[0], 2), timed(steps[0], 2))))
            if not slow:
                timed(steps[1], 4)
            blocks: list[Block] = [lambda step=step, count=count: timed(step, count) for step in steps]
            name = f"GPT step d={width} B={batch} T={length} {'bf16' if autocast else 'fp32'}"
            results.append(compare(name, *blocks, settings, target, fastest_of=1 if slow else 2))
    return results


if __name__ == "__main__":
    sys.exit(main(claims, __doc__))
