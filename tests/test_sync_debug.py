"""torch.neuron.set_sync_debug_mode: what waits for the device says so."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

neuron = torch.neuron
LARGE = 1 << 20


@pytest.fixture(autouse=True)
def mode_is_off_outside() -> Iterator[None]:
    assert neuron.get_sync_debug_mode() == 0
    yield
    neuron.set_sync_debug_mode(0)


def on_device() -> torch.Tensor:
    return torch.ones(4, 4, device="neuron")


WAITS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "non_blocking, but not pinned": lambda x: torch.empty(4, 4).copy_(x, non_blocking=True),
    "print": repr,
    "nonzero": lambda x: x.nonzero(),
    "a mask": lambda x: x[x > 0],
    "unique": lambda x: x.unique(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "equal": lambda x: torch.equal(x, x + 1),
    "large copy from the host": lambda x: torch.ones(LARGE).to("neuron"),
    "Stream.synchronize": lambda x: neuron.current_stream().synchronize(),
}
DOES_NOT_WAIT: dict[str, Callable[[torch.Tensor], Any]] = {
    "ops": lambda x: (x @ x).relu_().sum(),
    "a shape that is new": lambda x: torch.ones(3, 7, 11, device="neuron").cumsum(1),
    "shapes": lambda x: (x.shape, x.numel(), x.dtype),
    "views": lambda x: x[1:, ::2].reshape(-1),
    "small copy from the host": lambda x: torch.ones(8).to("neuron"),
    "pinned copies": lambda x: torch.empty(4, 4, pin_memory=True).copy_(x, non_blocking=True),
    "large pinned copy": lambda x: torch.ones(LARGE).pin_memory().to("neuron", non_blocking=True),
    "copy to another device": lambda x: x.to(f"neuron:{neuron.device_count() - 1}"),
    "synchronize": lambda x: neuron.synchronize(),
    "events": lambda x: neuron.current_stream().record_event().synchronize(),
    "backward": lambda x: (x.requires_grad_() * 2).sum().backward(),
    "optimizer": lambda x: torch.optim.AdamW([x.requires_grad_()], foreach=True).step(),
}


@pytest.mark.parametrize("name", WAITS)
def test_what_waits_warns_or_raises(name: str) -> None:
    x = on_device()
    WAITS[name](x)
    neuron.set_sync_debug_mode("warn")
    with pytest.warns(UserWarning, match="called a synchronizing neuron operation: "):
        WAITS[name](x)
    neuron.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="called a synchronizing neuron operation: "):
        WAITS[name](x)
    neuron.set_sync_debug_mode("default")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        WAITS[name](x)


@pytest.mark.parametrize("name", DOES_NOT_WAIT)
def test_what_does_not_wait_says_nothing(name: str) -> None:
    x = on_device()
    neuron.set_sync_debug_mode("error")
    DOES_NOT_WAIT[name](x)


def test_an_operation_that_raises_has_done_nothing() -> None:
    x = on_device()
    out = torch.zeros(4, 4)
    neuron.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError):
        out.copy_(x)
    assert out.count_nonzero() == 0
    neuron.set_sync_debug_mode(0)
    assert torch.equal(out.copy_(x), torch.ones(4, 4))


@pytest.mark.parametrize(("mode", "number"), [("default", 0), ("warn", 1), ("error", 2), (0, 0), (1, 1), (2, 2)])
def test_modes(mode: int | str, number: int) -> None:
    neuron.set_sync_debug_mode(mode)
    assert neuron.get_sync_debug_mode() == number


@pytest.mark.parametrize(
    ("mode", "error"), [("loud", RuntimeError), (3, ValueError), (-1, ValueError), (None, TypeError), (1.0, TypeError)]
)
def test_other_modes_are_refused(mode: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="debug_mode"):
        neuron.set_sync_debug_mode(mode)
    assert neuron.get_sync_debug_mode() == 0
