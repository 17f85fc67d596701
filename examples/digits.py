"""Handwritten digits: 1,797 real images of 8 x 8 pixels that come with scikit-learn. Nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass

import sklearn.datasets
import torch
from torch import Tensor
from torch.utils.data import Dataset


@dataclass
class Digits(Dataset[tuple[Tensor, Tensor]]):
    images: Tensor  # (count, 1, 8, 8) float32, mean about 0, on the CPU
    labels: Tensor  # (count,) int64, 0 to 9

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]


def load_digits(test_share: float = 0.2) -> tuple[Digits, Digits]:
    """A training and a test set, always cut in the same way."""
    bunch = sklearn.datasets.load_digits()
    images = torch.from_numpy(bunch.images).float().unsqueeze(1) / 8 - 1  # pixels are 0 to 16
    labels = torch.from_numpy(bunch.target).long()
    # The images are sorted by writer: mix them, with a generator of its own so that no other random number moves.
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0), device="cpu")
    test, train = order.tensor_split([int(len(order) * test_share)])
    return Digits(images[train], labels[train]), Digits(images[test], labels[test])
