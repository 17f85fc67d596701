"""Automatic mixed precision: float32 weights, matrix products in bfloat16, or in float16 with a scaled loss.

Run: python examples/amp_training.py --device neuron
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.nn.functional as F
from cnn_digits import ResNet
from digits import Digits, load_digits


def train(train_set: Digits, device: torch.device, dtype: torch.dtype, steps: int) -> tuple[float, float]:
    """Losses of the first and the last step."""
    torch.manual_seed(0)
    model = ResNet(width=8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    # Small gradients vanish in float16: the loss is multiplied before backward, the gradients divided before the step.
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
    first = last = torch.zeros(())
    for step in range(steps):
        picked = torch.randperm(len(train_set))[:64]
        images, labels = train_set.images[picked].to(device), train_set.labels[picked].to(device)
        with torch.autocast(device.type, dtype=dtype):
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
        assert logits.dtype is dtype, f"the last layer ran in {logits.dtype}"
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # so that clipping sees the true gradients
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        last = loss.detach().float()
        first = last if step == 0 else first
    if scaler.is_enabled():
        print(f"  the loss was scaled by {scaler.get_scale():g} at the end")
    return first.item(), last.item()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()

    train_set, _ = load_digits()
    learned = True
    for dtype in (torch.bfloat16, torch.float16):
        first, last = train(train_set, torch.device(arguments.device), dtype, arguments.steps)
        print(f"{dtype}  loss {first:.6f} -> {last:.6f}")
        learned = learned and last < 0.5 * first
    if not learned:
        print("a loss has not fallen by half: train for more steps", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
