"""Trains a small multilayer perceptron on handwritten digits (scikit-learn's 8 x 8 images).

Run: python examples/mlp_digits.py --device neuron
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from digits import load_digits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)

    torch.manual_seed(0)
    train, test = load_digits()
    images, labels = train.images.flatten(1).to(device), train.labels.to(device)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    for epoch in range(1, arguments.epochs + 1):
        order = torch.randperm(len(labels)).to(device)
        total = torch.zeros((), device=device)
        for picked in order.split(64):
            loss = F.cross_entropy(model(images[picked]), labels[picked])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(picked)
        print(f"epoch {epoch:2d}  loss {total.item() / len(labels):.6f}")

    with torch.no_grad():
        predicted = model(test.images.flatten(1).to(device)).argmax(1)
    accuracy = (predicted.cpu() == test.labels).float().mean().item()
    print(f"accuracy on {len(test.labels)} images never trained on: {accuracy:.2%}")
    if accuracy < 0.95:
        print("below 95 %: train for more epochs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
