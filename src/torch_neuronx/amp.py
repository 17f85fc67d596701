"""Mixed precision: torch.autocast("neuron") casts each op by the rules that PyTorch has for cuda."""

from __future__ import annotations

import torch


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that torch.autocast("neuron", dtype=...) accepts."""
    return [torch.float16, torch.bfloat16, torch.float32]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 can be computed: always.

    Args:
        including_emulation: accepted, as in torch.cuda; the chip has bfloat16 natively.
    """
    return True
