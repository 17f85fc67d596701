"""Stops a training run half way, goes on from its checkpoint, and arrives at exactly the same losses.

Run: python examples/checkpoint_resume.py --device neuron

A checkpoint that resumes exactly holds the weights, the optimizer's state and the state of the random numbers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from digits import load_digits
from torch import Tensor, nn


class Run:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        train, _ = load_digits()
        self.images, self.labels = train.images.flatten(1).to(device), train.labels.to(device)
        self.model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.step = 0

    def train(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            picked = torch.randint(len(self.labels), (64,)).to(self.device)  # from the CPU's random numbers
            loss = F.cross_entropy(self.model(self.images[picked]), self.labels[picked])  # dropout: the device's
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            losses.append(loss.detach())
        return torch.stack(losses).tolist()

    def save(self, path: Path) -> None:
        contents = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "cpu_random": torch.get_rng_state(),
            "device_random": device_random_state(self.device),
        }
        torch.save(contents, path)

    def load(self, path: Path) -> None:
        # Random states are CPU tensors. Tensors of the model are copied to its device by load_state_dict.
        saved = torch.load(path, map_location="cpu", weights_only=True)
        self.step = saved["step"]
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["cpu_random"])
        if self.device.type != "cpu":
            torch.get_device_module(self.device).set_rng_state(saved["device_random"], self.device)


def device_random_state(device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.get_rng_state()
    return torch.get_device_module(device).get_rng_state(device)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="neuron")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        torch.manual_seed(0)
        run = Run(device)
        run.train(20)
        run.save(path)
        straight = run.train(20)

        torch.manual_seed(12345)  # a fresh process would not know the old seed either
        resumed_run = Run(device)
        resumed_run.load(path)
        resumed = resumed_run.train(20)

    print(f"step 40 without a stop  loss {straight[-1]:.9f}")
    print(f"step 40 after resuming  loss {resumed[-1]:.9f}")
    return 0 if straight == resumed and resumed_run.step == 40 else 1


if __name__ == "__main__":
    sys.exit(main())
