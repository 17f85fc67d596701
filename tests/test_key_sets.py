"""A tensor that came out of a host kernel must be indistinguishable from one made on the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch


def made_by_kernel(device: str) -> dict[str, Callable[[], torch.Tensor]]:
    x = torch.rand(8, 8).to(device)
    big = torch.rand(600, 600).to(device)
    return {
        "small": lambda: x + x,
        "recorded": lambda: torch.cumsum(x, 0),
        "enqueued": lambda: torch.softmax(big @ big, 0),
        "list": lambda: torch._foreach_sqrt([x, x])[1],
        "view of a result": lambda: torch.cumsum(x, 0)[1:],
        "data-dependent": lambda: x[x > 0.5],
        "from the host": lambda: torch.rand(3).to(device),
    }


@pytest.mark.parametrize("name", sorted(made_by_kernel("cpu")))
@pytest.mark.parametrize("inference", [False, True])
def test_key_set_is_that_of_a_fresh_tensor(name: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        fresh = torch.empty(2, device="neuron")
        make = made_by_kernel("neuron")[name]
        for _ in range(3):  # first call, replay, replay
            assert str(torch._C._dispatch_keys(make())) == str(torch._C._dispatch_keys(fresh))


def test_results_take_part_in_autocast() -> None:
    for make in made_by_kernel("neuron").values():
        for _ in range(3):
            x = make().half()
            y = x + x  # made by a kernel, in low precision
            with torch.autocast("neuron", dtype=torch.float16):
                assert torch.log(y).dtype == torch.float32
