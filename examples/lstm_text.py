"""Trains a character LSTM on Python's language reference and lets it write.

Run: python examples/lstm_text.py --device neuron
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from text import TextData, batch
from torch import Tensor


class CharacterLSTM(nn.Module):
    """characters (batch, length) int64 -> logits (batch, length, vocabulary) and the state after the last one."""

    def __init__(self, vocabulary: int, width: int = 96, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout)
        self.head = nn.Linear(width, vocabulary)

    def forward(
        self, characters: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, state = self.lstm(self.embedding(characters), state)
        return self.head(y), state


@torch.no_grad()
def write(model: CharacterLSTM, start: Tensor, count: int) -> Tensor:
    """Continues start (length,) by `count` characters, each drawn on the CPU from the model's distribution."""
    characters = [start]
    logits, state = model(start.unsqueeze(0))
    for _ in range(count):
        picked = torch.multinomial((logits[0, -1] / 0.7).softmax(-1).cpu(), 1).to(start.device)
        characters.append(picked)
        logits, state = model(picked.unsqueeze(0), state)
    return torch.cat(characters)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--steps", type=int, default=80)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)

    torch.manual_seed(0)
    places = torch.Generator().manual_seed(0)
    data = TextData.load(vocabulary_size=0).to(device)  # no merges: one token a character
    model = CharacterLSTM(len(data.tokenizer.vocabulary)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    first = last = 0.0
    for step in range(1, arguments.steps + 1):
        characters, following = batch(data.train, 16, 32, places)
        logits, _ = model(characters)
        loss = F.cross_entropy(logits.flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step == 1 or step % 20 == 0:
            last = loss.item()
            first = first or last
            print(f"step {step:3d}  loss {last:.6f}")

    start = data.tokenizer.encode("The ").to(device)
    print(data.tokenizer.decode(write(model, start, 100)))
    if last >= 0.75 * first:
        print("the loss has not fallen by a quarter: train for more steps", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
