"""Batches made by worker processes, in pinned memory, copied to the device while it is busy.

Run: python examples/dataloader_workers.py --device neuron
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.nn.functional as F
from digits import Digits, load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class ShiftedDigits(Dataset[tuple[Tensor, Tensor]]):
    """Each image moved by up to one pixel, at random: work for the workers, on the CPU only."""

    def __init__(self, digits: Digits) -> None:
        self.digits = digits

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, label = self.digits[index]
        down, right = torch.randint(-1, 2, (2,)).tolist()
        return image.roll((down, right), dims=(1, 2)), label


def train_epoch(loader: DataLoader[tuple[Tensor, Tensor]], device: torch.device, pinned: bool) -> float:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss = torch.zeros(())
    for images, labels in loader:
        assert images.is_pinned() == pinned
        logits = model(images.to(device, non_blocking=True))
        loss = F.cross_entropy(logits, labels.to(device, non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="neuron")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)

    digits, _ = load_digits()
    # Pinned memory belongs to an accelerator. The CPU has no use for it.
    pinned = device.type != "cpu"
    losses = {}
    for start_method in ("fork", "spawn"):
        loader = DataLoader(
            ShiftedDigits(digits),
            batch_size=128,
            shuffle=True,
            num_workers=2,
            pin_memory=pinned,
            multiprocessing_context=start_method,
            generator=torch.Generator().manual_seed(0),  # fixes the order and the workers' random numbers
        )
        losses[start_method] = train_epoch(loader, device, pinned)
        print(f"2 workers by {start_method}  last loss {losses[start_method]:.6f}")
    return 0 if losses["fork"] == losses["spawn"] < 1.5 else 1


if __name__ == "__main__":
    sys.exit(main())
