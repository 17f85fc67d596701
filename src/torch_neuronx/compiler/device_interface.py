"""What Dynamo and Inductor ask about the device `neuron`; see torch/_dynamo/device_interface.py."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device
from torch._inductor.codegen.common import (
    get_scheduling_for_device,
    get_wrapper_codegen_for_device,
    init_backend_registration,
    register_backend_for_device,
)


class NeuronInterface(DeviceInterface):
    device = torch.neuron.device  # type: ignore[attr-defined]
    Event = torch.neuron.Event  # type: ignore[attr-defined]
    Stream = torch.neuron.Stream  # type: ignore[attr-defined]

    class Worker:
        """For compile workers, which have no device of their own."""

        @staticmethod
        def set_device(device: int) -> None:
            torch.neuron.set_device(device)  # type: ignore[attr-defined]

        @staticmethod
        def current_device() -> int:
            return torch.neuron.current_device()  # type: ignore[attr-defined]

        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            return torch.neuron.get_device_properties(device)  # type: ignore[attr-defined]

    current_device = staticmethod(torch.neuron.current_device)  # type: ignore[attr-defined]
    set_device = staticmethod(torch.neuron.set_device)  # type: ignore[attr-defined]
    device_count = staticmethod(torch.neuron.device_count)  # type: ignore[attr-defined]
    is_available = staticmethod(torch.neuron.is_available)  # type: ignore[attr-defined]
    stream = staticmethod(torch.neuron.stream)  # type: ignore[attr-defined]
    current_stream = staticmethod(torch.neuron.current_stream)  # type: ignore[attr-defined]
    set_stream = staticmethod(torch.neuron.set_stream)  # type: ignore[attr-defined]
    synchronize = staticmethod(torch.neuron.synchronize)  # type: ignore[attr-defined]
    get_device_properties = staticmethod(torch.neuron.get_device_properties)  # type: ignore[attr-defined]
    memory_allocated = staticmethod(torch.neuron.memory_allocated)  # type: ignore[attr-defined]

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        return torch.neuron.current_stream(device_idx).stream_id  # type: ignore[attr-defined]

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        return torch.neuron.get_device_properties(device).name  # type: ignore[attr-defined]

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return True

    @staticmethod
    def exchange_device(device: int) -> int:
        previous = torch.neuron.current_device()  # type: ignore[attr-defined]
        if device >= 0:
            torch.neuron.set_device(device)  # type: ignore[attr-defined]
        return previous

    maybe_exchange_device = exchange_device


def register_device_interface() -> None:
    """Makes Dynamo know `neuron` and each `neuron:i`, and Inductor's decompositions what its generated code can do."""
    register_interface_for_device("neuron", NeuronInterface)
    for index in range(torch.neuron.device_count()):  # type: ignore[attr-defined]
        register_interface_for_device(f"neuron:{index}", NeuronInterface)
    init_backend_registration()
    scheduling, wrapper = get_scheduling_for_device("cpu"), get_wrapper_codegen_for_device("cpu")
    assert scheduling is not None and wrapper is not None
    register_backend_for_device("neuron", scheduling, wrapper)  # asked for its features; graphs are scheduled as cpu
