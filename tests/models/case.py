"""What a file of a model family gives: a tiny model with random weights, its inputs, and what compiling it comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

BATCH, SEQUENCE, VOCABULARY = 2, 16, 96


@dataclass
class Case:
    """A model to train and to compile.

    Attributes:
        model: on the CPU, in training mode, without dropout.
        inputs: keyword arguments of its forward.
        graphs: graphs that Dynamo captures in one training step.
        breaks: graph breaks on the way.
        python_reasons: why graphs are called through Python instead of as steps of the core, one entry a graph.
        inductors_bits: whether float32 code is to the bit what Inductor computes on the CPU.
        tolerance: of compiled code by dtype, relative to the largest value of a tensor. Inductor reorders sums, and
            keeps in float32 what eager code rounds to bfloat16 between two operators.
    """

    model: nn.Module
    inputs: dict[str, Any]
    graphs: int = 1
    breaks: int = 0
    python_reasons: list[str] = field(default_factory=list)
    inductors_bits: bool = True
    tolerance: dict[torch.dtype, float] = field(default_factory=lambda: {torch.float32: 2e-5, torch.bfloat16: 2e-2})


def tokens(*sizes: int, below: int = VOCABULARY) -> torch.Tensor:
    """int64 token ids of the given shape; the same ones at each call."""
    return torch.randint(0, below, sizes, generator=torch.Generator().manual_seed(7))


def floats(*sizes: int) -> torch.Tensor:
    """float32 numbers from a normal distribution; the same ones at each call."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(11))


def language_inputs() -> dict[str, Any]:
    """Token ids with labels, [BATCH, SEQUENCE]; the loss is that of the next token."""
    ids = tokens(BATCH, SEQUENCE)
    return {"input_ids": ids, "labels": ids, "use_cache": False}
