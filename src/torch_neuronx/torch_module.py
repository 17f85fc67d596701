"""The module that is torch.neuron: the parts of the package under the names that torch.cuda has for them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from torch_neuronx import _C, amp, devices, memory, patches, random, serialization, streams
from torch_neuronx.adaptive import (
    adaptive_stats,
    eager_mode,
    get_eager_mode,
    record_adaptive_cuts,
    reset_adaptive_stats,
)
from torch_neuronx.amp import get_amp_supported_dtype, host_autocast, is_bf16_supported, is_host_autocast_enabled
from torch_neuronx.compiler.metrics import get_dynamo_metrics, reset_dynamo_metrics
from torch_neuronx.devices import (
    NeuronDeviceProperties,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_arch_list,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_initialized,
    is_neuron_runtime_initialized,
    is_tf32_supported,
    set_device,
    synchronize,
)
from torch_neuronx.memory import *  # noqa: F403 - memory.py says in __all__ what belongs to torch.neuron
from torch_neuronx.random import (
    get_rng_state,
    get_rng_state_all,
    host_rng,
    initial_seed,
    is_host_rng_enabled,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_neuronx.streams import (
    Event,
    Stream,
    StreamContext,
    _sleep,  # noqa: F401 - torch.cuda has it, and tests use it
    current_stream,
    default_stream,
    query,
    record_event,
    set_stream,
    stream,
    wait_event,
    wait_stream,
)
from torch_neuronx.sync_debug import get_sync_debug_mode, set_sync_debug_mode

# The exceptions of all accelerators, under the names that torch.cuda has for them.
OutOfMemoryError = torch.OutOfMemoryError
AcceleratorError = torch.AcceleratorError

has_half = True  # float16 can be computed

# What PyTorch itself and libraries ask a device module for, by these names.
_is_in_bad_fork = devices.is_in_bad_fork
_lazy_init = devices.init
_exchange_device = _C.exchange_device
_maybe_exchange_device = _C.exchange_device  # changing the device starts nothing, so there is no case to leave out


def _lazy_call(callback: Callable[[], object]) -> None:
    """Calls `callback` at once: nothing of the device has to wait until it is started."""
    callback()


def is_current_stream_capturing() -> bool:
    """Whether the current stream records a graph instead of running: never, there are no device graphs."""
    return False


def ipc_collect() -> None:
    """Frees memory that other processes have given back: none, since neuron memory is not shared between processes."""


class _utils:
    _get_device_index = staticmethod(devices.get_device_index)


def get_executed_ops() -> list[str]:
    """The ops that ran on the devices since the last `clear_op_tracking`, as "aten::add.Tensor".

    Grouped by op, each as often as it was called. A compiled graph is one op: "neuron::graph." and the graph's name in
    `get_dynamo_metrics`; what it computes is not listed. Views, `empty` and copies to and from the host are not either.
    """
    return _C._get_executed_ops()


def get_fallback_ops() -> list[str]:
    """The ops that fell back since the last `clear_op_tracking`, as `get_executed_ops` names them.

    A fallback is a CPU kernel of another library that ran on the device's memory, because there was no other.
    """
    return _C._get_fallback_ops()


def clear_op_tracking() -> None:
    """Empties the lists of `get_executed_ops` and `get_fallback_ops`."""
    _C._clear_op_tracking()


def __getattr__(name: str) -> Any:
    # Both change after the import, so they cannot be plain variables.
    if name == "_initialized":
        return _C.is_started()
    if name == "default_generators":
        return random.default_generators()
    raise AttributeError(f"module 'torch.neuron' has no attribute {name!r}")


__all__ = [
    "Event",
    "NeuronDeviceProperties",
    "Stream",
    "StreamContext",
    "amp",
    "AcceleratorError",
    "OutOfMemoryError",
    "adaptive_stats",
    "can_device_access_peer",
    "clear_op_tracking",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "eager_mode",
    "get_amp_supported_dtype",
    "get_arch_list",
    "get_device_capability",
    "get_dynamo_metrics",
    "get_device_name",
    "get_device_properties",
    "get_eager_mode",
    "get_executed_ops",
    "get_fallback_ops",
    "get_rng_state",
    "get_rng_state_all",
    "get_sync_debug_mode",
    "has_half",
    "host_autocast",
    "host_rng",
    "init",
    "initial_seed",
    "is_available",
    "ipc_collect",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_host_autocast_enabled",
    "is_host_rng_enabled",
    "is_initialized",
    "is_neuron_runtime_initialized",
    "is_tf32_supported",
    "manual_seed",
    "manual_seed_all",
    "memory",
    "query",
    "random",
    "record_adaptive_cuts",
    "record_event",
    "reset_adaptive_stats",
    "reset_dynamo_metrics",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
    "streams",
    "synchronize",
    "wait_event",
    "wait_stream",
    *memory.__all__,
]

serialization.install()
patches.install()

# So that `import torch.neuron.memory` works as it does for torch.cuda.
for _submodule in ("amp", "memory", "random", "streams"):
    sys.modules[f"torch.neuron.{_submodule}"] = globals()[_submodule]
