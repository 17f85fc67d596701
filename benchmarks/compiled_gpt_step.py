"""A compiled training step of a GPT takes at most 1.02 times what the CPU's Inductor takes.

Forward and backward are compiled, clipping and AdamW (foreach) are not, as most training loops have it; in float32 and
with bfloat16 autocast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from measure import Block, Result, Settings, compare, main, timed

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))
from gpt import GPT, GPTConfig

# width, heads, batch, length
SIZES = [(256, 8, 8, 128), (512, 8, 4, 128)]
TARGET = 1.02
LAYERS = 4
VOCABULARY = 512
BLOCK_SECONDS = 0.05
BACKENDS = {"cpu": "inductor", "neuron": "neuron"}


def training_step(device: str, width: int, heads: int, batch: int, length: int, autocast: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    model = GPT(GPTConfig(VOCABULARY, context=length, layers=LAYERS, heads=heads, width=width)).to(device)
    loss_of = torch.compile(model.loss, backend=BACKENDS[device])
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
        for width, heads, batch, length in SIZES:
            torch._dynamo.reset()
            steps = [training_step(device, width, heads, batch, length, autocast) for device in BACKENDS]
            for step in steps:
                timed(step, 2)
            count = max(1, round(BLOCK_SECONDS / timed(steps[0], 2)))
            blocks: list[Block] = [lambda step=step, count=count: timed(step, count) for step in steps]
            name = f"compiled GPT step d={width} B={batch} T={length} {'bf16' if autocast else 'fp32'}"
            results.append(compare(name, *blocks, settings, TARGET, fastest_of=2))
    return results


if __name__ == "__main__":
    sys.exit(main(claims, __doc__))
