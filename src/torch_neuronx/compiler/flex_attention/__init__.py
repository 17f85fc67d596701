"""FlexAttention compiled for the host: kernels for forward and backward that compute only the blocks a mask keeps."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

_lock = threading.Lock()
# How many compilations use this package's kernels now, and what Inductor had before the first of them.
_users = 0
_before: dict[Any, Any] = {}


@contextlib.contextmanager
def lowerings() -> Iterator[None]:
    """While a graph compiles for the host, Inductor takes the kernels of this package for FlexAttention's operators."""
    _install()
    try:
        yield
    finally:
        _remove()


def _install() -> None:
    # Inductor is imported only when something compiles.
    from torch._inductor.lowering import lowerings as table

    from .backward import lower_backward
    from .forward import lower_forward

    global _users
    own: dict[Any, Any] = {
        torch.ops.higher_order.flex_attention: lower_forward,
        torch.ops.higher_order.flex_attention_backward: lower_backward,
    }
    with _lock:
        if _users == 0:
            _before.update({operator: table[operator] for operator in own})
            table.update(own)
        _users += 1


def _remove() -> None:
    from torch._inductor.lowering import lowerings as table

    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            table.update(_before)
