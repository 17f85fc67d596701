"""Mixed precision: torch.autocast("neuron") casts each op by the rules that PyTorch has for cuda."""

from __future__ import annotations

import torch

from torch_neuronx import _C
from torch_neuronx.mode_switch import ModeSwitch


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that torch.autocast("neuron", dtype=...) accepts."""
    return [torch.float16, torch.bfloat16, torch.float32]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 can be computed: always.

    Args:
        including_emulation: accepted, as in torch.cuda; the chip has bfloat16 natively.
    """
    return True


class host_autocast(ModeSwitch):
    """Switches host-autocast mode, in which torch.autocast("neuron") casts by PyTorch's lists for the CPU.

    The lists for the CPU leave operators alone that those for accelerators compute in float32 (softmax, layer_norm,
    sum), so the same script learns slightly different numbers under autocast. With this mode, and the same dtype, it
    learns the same: meant for runs that are compared with the CPU. Works as a function, at once and for all threads,
    and as a context manager, which restores the mode before. TORCH_NEURONX_HOST_AUTOCAST=1 switches it on from the
    start.

    Args:
        enabled: the new mode.
    """

    _is_on = staticmethod(_C.host_autocast)
    _switch = staticmethod(_C.set_host_autocast)


def is_host_autocast_enabled() -> bool:
    """Whether host-autocast mode is on."""
    return _C.host_autocast()
