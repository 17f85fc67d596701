"""What torch.neuron says when it is used wrongly: the kind of error, and words that name the argument and the value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

neuron = torch.neuron
HUGE = 10**10
NO_DEVICE = "invalid neuron device index"

MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {}


def mistake(call: Callable[[], Any], error: type[Exception], words: str, name: str) -> None:
    assert name not in MISTAKES
    MISTAKES[name] = (call, error, words)


# ---- devices that cannot be ---------------------------------------------------------------------------------------------

TAKE_A_DEVICE: dict[str, Callable[[Any], Any]] = {
    "set_device": neuron.set_device,
    "device": lambda index: neuron.device(index).__enter__(),
    "synchronize": neuron.synchronize,
    "Stream": lambda index: neuron.Stream(index),
    "current_stream": neuron.current_stream,
    "default_stream": neuron.default_stream,
    "memory_allocated": neuron.memory_allocated,
    "memory_stats": neuron.memory_stats,
    "memory_summary": neuron.memory_summary,
    "mem_get_info": neuron.mem_get_info,
    "reset_peak_memory_stats": neuron.reset_peak_memory_stats,
    "reset_accumulated_memory_stats": neuron.reset_accumulated_memory_stats,
    "set_per_process_memory_fraction": lambda index: neuron.set_per_process_memory_fraction(0.5, index),
    "get_per_process_memory_fraction": neuron.get_per_process_memory_fraction,
    "caching_allocator_alloc": lambda index: neuron.caching_allocator_alloc(8, index),
    "get_rng_state": neuron.get_rng_state,
    "set_rng_state": lambda index: neuron.set_rng_state(neuron.get_rng_state(), index),
}
for name, function in TAKE_A_DEVICE.items():
    for index in (99, HUGE):
        mistake(lambda f=function, i=index: f(i), RuntimeError, f"{NO_DEVICE} {index}", f"{name}({index})")
    mistake(lambda f=function: f("cpu"), ValueError, "Expected a neuron device, but got: cpu", f"{name}('cpu')")
    mistake(lambda f=function: f(1.5), ValueError, r"Expected a torch\.device.*got: 1\.5", f"{name}(1.5)")
    mistake(lambda f=function: f("neuron:x"), RuntimeError, "neuron:x", f"{name}('neuron:x')")
for function in (neuron.get_device_properties, neuron.get_device_name, neuron.get_device_capability):
    for index in (-1, 99, HUGE):
        words = f"Invalid device id {index}"
        mistake(lambda f=function, i=index: f(i), AssertionError, words, f"{function.__name__}({index})")

# ---- streams and events -------------------------------------------------------------------------------------------------

for name, call in {
    "stream": neuron.stream,
    "StreamContext": neuron.StreamContext,
    "set_stream": neuron.set_stream,
    "wait_stream": neuron.wait_stream,
    "Stream.wait_stream": lambda value: neuron.Stream().wait_stream(value),
    "Event.record": lambda value: neuron.Event().record(value),
    "Event.wait": lambda value: neuron.Event().wait(value),
}.items():
    for value in (5, "0", torch.ones(1)):
        kind = type(value).__name__
        words = f"stream must be a torch.Stream, but got {kind}"
        mistake(lambda c=call, v=value: c(v), TypeError, words, f"{name}({kind})")
for name, call in {
    "wait_event": neuron.wait_event,
    "record_event": neuron.record_event,
    "Stream.wait_event": lambda value: neuron.Stream().wait_event(value),
    "Stream.record_event": lambda value: neuron.Stream().record_event(value),
    "Event.elapsed_time": lambda value: neuron.Event(enable_timing=True).elapsed_time(value),
}.items():
    for value in (3, "e"):
        kind = type(value).__name__
        mistake(
            lambda c=call, v=value: c(v), TypeError, f"event must be a torch.Event, but got {kind}", f"{name}({kind})"
        )
for value in (None, neuron.current_stream()):
    kind = type(value).__name__
    for name in ("wait_event", "Event.elapsed_time"):
        call = {"wait_event": neuron.wait_event, "Event.elapsed_time": neuron.Event().elapsed_time}[name]
        mistake(
            lambda c=call, v=value: c(v), TypeError, f"event must be a torch.Event, but got {kind}", f"{name}({kind})"
        )
mistake(
    lambda: neuron.wait_stream(None), TypeError, "stream must be a torch.Stream, but got NoneType", "wait_stream(None)"
)
mistake(lambda: neuron.Stream(priority="x"), TypeError, "int", "Stream(priority='x')")
for cycles in (-1, -(10**30), 10**30, float("inf"), float("nan")):
    mistake(lambda c=cycles: neuron._sleep(c), ValueError, "cycles must not be negative", f"_sleep({cycles})")
for cycles in ("1", None, [1]):
    mistake(lambda c=cycles: neuron._sleep(c), TypeError, "cycles must be a number", f"_sleep({cycles!r})")


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name: str) -> None:
    call, error, words = MISTAKES[name]
    with pytest.raises(error, match=words) as raised:
        call()
    assert type(raised.value) is error
    assert "incompatible function arguments" not in str(raised.value)


def test_nothing_is_changed_by_a_mistake() -> None:
    before = neuron.current_device(), neuron.current_stream()
    for call, error, _ in MISTAKES.values():
        with pytest.raises(error):
            call()
    assert (neuron.current_device(), neuron.current_stream()) == before
    assert torch.ones(3, device="neuron").sum().item() == 3
