"""AWS Trainium as a native PyTorch device, `neuron`, on virtual NeuronCores computed by the host.

`import torch` loads this package by itself (entry point `torch.backends`); importing it explicitly, before or after
torch and in any thread, does the same. Everything in `torch.neuron` can also be reached as `torch_neuronx.NAME`.
"""

from __future__ import annotations

from typing import Any

from torch_neuronx import _load

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    return _load.find_public(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_load.public_names()})


_load.load()
