"""Sending neuron tensors to other processes: refused with a reason.

torch.save, torch.load, pickle and copy.deepcopy need nothing from us: PyTorch's own functions for a named PrivateUse1
device write "neuron:0" and read it back through `torch.neuron._utils`.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from torch_neuronx.devices import DEVICE_TYPE


def _reduce_storage(storage: torch.UntypedStorage) -> Any:
    if storage.device.type == DEVICE_TYPE:
        raise RuntimeError(
            f"the memory of {storage.device} cannot be shared with another process: "
            "send tensor.cpu() and move it to the device there"
        )
    return reductions.reduce_storage(storage)


def install() -> None:
    """Makes torch.multiprocessing raise a clear RuntimeError for neuron storages; other storages go on as before."""
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
