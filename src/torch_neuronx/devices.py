"""Devices: counting, choosing and describing them, in the conventions of torch.cuda."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from torch_neuronx import _C
from torch_neuronx.config import MAX_DEVICES, active_config

DEVICE_TYPE = "neuron"

# What torch's own functions accept for a device.
Device = torch.device | str | int | None


def get_device_index(spec: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """The index of the device that `spec` means.

    Args:
        spec: an index, "neuron", "neuron:1", a torch.device, a `torch.neuron.device`, or None.
        optional: whether None and a device without index mean the current device.
        allow_cpu: whether a CPU device is accepted, as -1.

    Raises:
        ValueError: another device type, or no index where one is needed.
    """
    # bool is an int, but nobody means device 1 by True.
    if isinstance(spec, int) and not isinstance(spec, bool):
        return spec
    if isinstance(spec, device):
        return spec.idx
    if isinstance(spec, str):
        spec = torch.device(spec)
    if isinstance(spec, torch.device):
        if spec.type == "cpu" and allow_cpu:
            return -1
        if spec.type != DEVICE_TYPE:
            expected = "neuron or cpu" if allow_cpu else "neuron"
            raise ValueError(f"Expected a {expected} device, but got: {spec}")
        if spec.index is not None:
            return spec.index
    elif spec is not None:
        raise ValueError(f"Expected a torch.device, a string, an int or None, but got: {spec!r}")
    if not optional:
        raise ValueError(f"Expected a torch.device with a specified index or an integer, but got: {spec}")
    return current_device()


def core_index(spec: Any, optional: bool = False) -> int:
    """`get_device_index` as a number that the core's functions take, which check that it is a device.

    Raises:
        RuntimeError: a number that no device can have.
    """
    index = get_device_index(spec, optional)
    # The core counts devices in 8 bits.
    if not -MAX_DEVICES <= index <= MAX_DEVICES:
        raise RuntimeError(f"invalid neuron device index {index}: this process sees {device_count()} neuron device(s)")
    return index


def is_available() -> bool:
    """Whether the process has at least one neuron device. Never raises: a bad setting gives False and a warning."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether the device has been used in this process."""
    return _C.is_started()


def is_neuron_runtime_initialized() -> bool:
    """The name that TorchNeuron has for `is_initialized`."""
    return _C.is_started()


def init() -> None:
    """Starts the device. Not needed: the first use does it.

    Raises:
        RuntimeError: in a forked child of a process that had used the device, or with a bad environment variable.
    """
    _C.ensure_started()


def is_in_bad_fork() -> bool:
    """Whether this process was forked from one that had used the device, so that it cannot be used here."""
    return _C.in_bad_fork()


def device_count() -> int:
    """How many neuron devices the process sees. Never raises: a bad setting gives 0 and a warning."""
    if _C.is_configured():
        return _C.device_count()
    try:
        # Not through the core, which would fix the configuration for good.
        return active_config().device_count
    except ValueError as error:
        warnings.warn(f"the neuron devices cannot be used: {error}", stacklevel=2)
        return 0


def current_device() -> int:
    """Index of the calling thread's current device."""
    _C.ensure_started()
    return _C.current_device()


def set_device(device: Device) -> None:
    """Makes `device` the calling thread's current device. A negative index changes nothing.

    Args:
        device: an index, "neuron:1", or a torch.device with an index.

    Raises:
        RuntimeError: no such device.
        ValueError: another device type, or no index.
    """
    index = core_index(device)
    _C.ensure_started()
    _C.exchange_device(index)


def synchronize(device: Device = None) -> None:
    """Waits for everything submitted to all streams of `device` (the current one by default).

    Raises:
        The error of an earlier launch on that device, once.
        RuntimeError: no such device.
        ValueError: another device type.
    """
    _C.ensure_started()
    _C.synchronize(core_index(device, optional=True))


def synchronize_all() -> None:
    """Waits for everything submitted to all devices, if anything was.

    Raises:
        The error of an earlier launch, once.
    """
    if _C.is_started():
        for index in range(_C.device_count()):
            _C.synchronize(index)


class device:
    """Context manager that changes the current device.

    Args:
        device: an index, a string or a torch.device. A negative index or None changes nothing.

    Raises:
        RuntimeError: no such device; when the block is entered.
        ValueError: another device type.
    """

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else core_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> device:
        _C.ensure_started()
        self.prev_idx = _C.exchange_device(self.idx)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _C.exchange_device(self.prev_idx)


class device_of(device):
    """Context manager that makes the device of a tensor or storage current; others change nothing."""

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage | torch.TypedStorage) -> None:
        super().__init__(obj.device.index if obj.device.type == DEVICE_TYPE else -1)


@dataclass(frozen=True)
class NeuronDeviceProperties:
    """What is known of a device. Sizes are bytes, the clock is GHz, rates are TFLOP/s for the whole device."""

    name: str
    total_memory: int  # HBM
    major: int  # generation of the NeuronCore
    minor: int
    target: str  # "trn2"
    chip: str  # "Trainium2"
    core: str  # "NeuronCore-v3"
    core_id: int  # the logical core, counted over all chips
    lnc: int  # physical cores in the device
    sbuf_bytes: int
    psum_bytes: int
    clock: float
    tensor_tflops: dict[str, float]
    virtual: bool = True  # computed by the host, not by a chip

    @property
    def multi_processor_count(self) -> int:
        """The number of physical NeuronCores, under the name that torch.cuda has for the like."""
        return self.lnc


def get_device_properties(device: Device = None) -> NeuronDeviceProperties:
    """The properties of `device` (the current one by default).

    Raises:
        AssertionError: no device has this index.
        ValueError: `device` is of another type.
    """
    _C.ensure_started()
    index = get_device_index(device, optional=True)
    config = active_config()
    if not 0 <= index < config.device_count:
        raise AssertionError(f"Invalid device id {index}: this process sees {config.device_count} neuron device(s)")
    chip = config.chip
    cores = f"{chip.core} x{config.lnc}" if config.lnc > 1 else chip.core
    return NeuronDeviceProperties(
        # Trainers look for "neuron" in the name to find the peak rate.
        name=f"AWS {chip.name} {cores} (virtual, neuron)",
        total_memory=config.hbm_bytes,
        major=chip.core_version,
        minor=0,
        target=chip.target,
        chip=chip.name,
        core=chip.core,
        core_id=config.core_ids[index],
        lnc=config.lnc,
        sbuf_bytes=chip.sbuf_bytes * config.lnc,
        psum_bytes=chip.psum_bytes * config.lnc,
        clock=chip.base_clock,
        tensor_tflops={dtype: rate * config.lnc for dtype, rate in chip.tensor_tflops.items()},
    )


def get_device_name(device: Device = None) -> str:
    """A name like "AWS Trainium2 NeuronCore-v3 x2 (virtual, neuron)". Errors as `get_device_properties`."""
    return get_device_properties(device).name


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """Generation of the NeuronCore as (major, minor): (3, 0) for Trainium2. Errors as `get_device_properties`."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def get_arch_list() -> list[str]:
    """The chips that a device of this process can be: one, as "trn2"."""
    return [active_config().chip.target]


def is_tf32_supported() -> bool:
    """Whether float32 products can be rounded to tf32: never, they are exact float32 products of the host."""
    return False


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Whether `device` can read the memory of `peer_device`: always, but for itself.

    Raises:
        AssertionError: no device has this index.
    """
    return get_device_properties(device).core_id != get_device_properties(peer_device).core_id
