"""Random numbers of the neuron device, in the conventions of torch.cuda.

The state of a generator is 16 bytes, {uint64 seed, int64 offset}. A random op reserves its part of the offset when it
is called, in program order, so asynchronous and replayed runs draw the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torch_neuronx import _C
from torch_neuronx.devices import Device, core_index, device_count
from torch_neuronx.mode_switch import ModeSwitch


def default_generators() -> tuple[torch.Generator, ...]:
    """The generator of each device; `torch.neuron.default_generators` is this tuple."""
    return tuple(_C.default_generator(index) for index in range(device_count()))


def _generator(device: Device) -> torch.Generator:
    return _C.default_generator(core_index(device, optional=True))


def get_rng_state(device: Device = "neuron") -> torch.Tensor:
    """The state of the device's generator: a CPU tensor of 16 uint8, seed and offset."""
    return _generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators, in the order of the devices."""
    return [generator.get_state() for generator in default_generators()]


def set_rng_state(new_state: torch.Tensor, device: Device = "neuron") -> None:
    """Sets the state of the device's generator.

    Args:
        new_state: a CPU tensor of 16 uint8 as `get_rng_state` gives it.

    Raises:
        RuntimeError: another size, or an offset that is no multiple of 4.
        TypeError: another dtype or device.
    """
    _generator(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of the devices' generators, from the first device on."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the generator of the current device. Does not start the device."""
    _C.default_generator(-1).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices. Does not start the device."""
    # torch.Generator.manual_seed accepts negative seeds as two's complement.
    _C.seed_default_generators(int(seed) & 0xFFFF_FFFF_FFFF_FFFF)


def seed() -> None:
    """Seeds the generator of the current device with a number that differs from run to run."""
    _C.default_generator(-1).seed()


def seed_all() -> None:
    """Seeds the generators of all devices with one number that differs from run to run."""
    manual_seed_all(_C.default_generator(-1).seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _C.default_generator(-1).initial_seed()


class host_rng(ModeSwitch):
    """Switches host-RNG mode, in which random ops draw exactly what the default CPU generator would draw there.

    With the same `torch.manual_seed`, a script then initialises and drops out the same numbers on "neuron" as on "cpu".
    Works as a function, at once and for all threads, and as a context manager, which restores the mode before.
    TORCH_NEURONX_HOST_RNG=1 switches it on from the start.

    Args:
        enabled: the new mode.
    """

    _is_on = staticmethod(_C.host_rng)
    _switch = staticmethod(_C.set_host_rng)


def is_host_rng_enabled() -> bool:
    """Whether host-RNG mode is on."""
    return _C.host_rng()
