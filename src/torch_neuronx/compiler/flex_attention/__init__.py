"""FlexAttention compiled for the host: kernels for forward and backward that compute only the blocks a mask keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest.mock import patch

import torch


@contextlib.contextmanager
def lowerings() -> Iterator[None]:
    """While a graph compiles for the host, Inductor takes this package's kernels for PyTorch's FlexAttention operators."""
    # Inductor is imported only when something compiles.
    from torch._inductor.lowering import lowerings as table

    from torch_neuronx.compiler.flex_attention.backward import lower_backward
    from torch_neuronx.compiler.flex_attention.forward import lower_forward

    operators = torch.ops.higher_order
    own = {operators.flex_attention: lower_forward, operators.flex_attention_backward: lower_backward}
    with patch.dict(table, own):
        yield
