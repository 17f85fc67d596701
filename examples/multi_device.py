"""Several devices in one process: a model cut in two, and one batch shared between copies of a model.

Run: python examples/multi_device.py --device neuron
"""

from __future__ import annotations

import argparse
import copy
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TwoStages(nn.Module):
    """The first half of the layers on one device, the second half on another. Autograd follows by itself."""

    def __init__(self, first: torch.device, second: torch.device) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Linear(32, 64), nn.Tanh()).to(first)
        self.back = nn.Linear(64, 4).to(second)

    def forward(self, x: Tensor) -> Tensor:
        return self.back(self.front(x).to(self.back.weight.device, non_blocking=True))


def train_in_stages(devices: list[torch.device], inputs: Tensor, targets: Tensor) -> list[float]:
    torch.manual_seed(0)
    model = TwoStages(devices[0], devices[-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(10):
        loss = F.mse_loss(model(inputs.to(devices[0])), targets.to(devices[-1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def shared_gradient(devices: list[torch.device], inputs: Tensor, targets: Tensor) -> list[Tensor]:
    """Each device works on its share of the batch; the gradients meet on the first one."""
    torch.manual_seed(0)
    model = nn.Linear(32, 4)
    copies = [copy.deepcopy(model).to(device) for device in devices]
    shares = zip(inputs.chunk(len(devices)), targets.chunk(len(devices)), strict=True)
    for device, replica, (x, y) in zip(devices, copies, shares, strict=True):
        F.mse_loss(replica(x.to(device)), y.to(device)).backward()
    gradients = []
    for parameters in zip(*(replica.parameters() for replica in copies), strict=True):
        parts = [parameter.grad.to(devices[0]) for parameter in parameters if parameter.grad is not None]
        gradients.append(torch.stack(parts).mean(0).cpu())
    return gradients


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="neuron")
    arguments = parser.parse_args()
    kind = torch.device(arguments.device).type
    count = 2 if kind == "cpu" else min(4, torch.accelerator.device_count())
    devices = [torch.device("cpu")] * count if kind == "cpu" else [torch.device(kind, i) for i in range(count)]
    print(f"devices: {', '.join(map(str, devices))}")

    torch.manual_seed(1)
    inputs, targets = torch.randn(64, 32), torch.randn(64, 4)
    in_stages = train_in_stages(devices, inputs, targets)
    on_one = train_in_stages(devices[:1], inputs, targets)
    print(f"two stages  loss {in_stages[0]:.6f} -> {in_stages[-1]:.6f}")
    print(f"two stages  the same as on one device: {in_stages == on_one}")

    shared = shared_gradient(devices, inputs, targets)
    whole = shared_gradient([torch.device("cpu")], inputs, targets)
    difference = max((a - b).abs().max().item() for a, b in zip(shared, whole, strict=True))
    # The mean of a batch is summed in another order when the batch is cut: equal up to rounding.
    print(f"shared batch  gradient equal to the whole batch's within 1e-6: {difference < 1e-6}")
    return 0 if in_stages == on_one and difference < 1e-6 else 1


if __name__ == "__main__":
    sys.exit(main())
