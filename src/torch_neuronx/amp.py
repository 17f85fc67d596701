"""Mixed precision: torch.autocast("neuron") casts each op by the rules that PyTorch has for cuda."""

from __future__ import annotations

import functools

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


class autocast(torch.autocast):
    """`torch.autocast("neuron", ...)`, as torch.cuda.amp.autocast is that of cuda.

    Args:
        enabled: whether to cast at all.
        dtype: what is cast to: float16 or bfloat16.
        cache_enabled: whether casts of weights are kept within the block.
    """

    def __init__(self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True) -> None:
        super().__init__("neuron", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler("neuron", ...)`, with that class's arguments."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__("neuron", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="neuron")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="neuron")
