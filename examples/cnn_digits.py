"""Trains a small residual network (convolutions, batch norm, skip connections) on handwritten digits.

Run: python examples/cnn_digits.py --device neuron
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from digits import load_digits
from torch import Tensor


class ResidualBlock(nn.Module):
    """(batch, channels_in, height, width) -> (batch, channels_out, height / stride, width / stride)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.skip = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


class ResNet(nn.Module):
    """images (batch, 1, 8, 8) -> logits (batch, 10)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(
            ResidualBlock(width, width, stride=1),
            ResidualBlock(width, 2 * width, stride=2),
            ResidualBlock(2 * width, 4 * width, stride=2),
        )
        self.head = nn.Linear(4 * width, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(images)), 1).flatten(1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)

    torch.manual_seed(0)
    train, test = load_digits()
    images, labels = train.images.to(device), train.labels.to(device)
    model = ResNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    # Down to a tenth: at a constant rate the last steps decide the accuracy, by the last bits of the host's kernels.
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=arguments.epochs)

    for epoch in range(1, arguments.epochs + 1):
        model.train()
        order = torch.randperm(len(labels)).to(device)
        total = torch.zeros((), device=device)
        for picked in order.split(64):
            loss = F.cross_entropy(model(images[picked]), labels[picked])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(picked)
        schedule.step()
        print(f"epoch {epoch}  loss {total.item() / len(labels):.6f}")

    model.eval()
    with torch.no_grad():
        predicted = model(test.images.to(device)).argmax(1)
    accuracy = (predicted.cpu() == test.labels).float().mean().item()
    print(f"accuracy on {len(test.labels)} images never trained on: {accuracy:.2%}")
    return 0 if accuracy >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
