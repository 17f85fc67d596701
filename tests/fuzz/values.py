"""Tensors with given contents, made on the CPU from a seed so that every device gets the same."""

from __future__ import annotations

import torch

SPECIAL = (0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.0, -1.5, 3e-39, 6e4, 1e-7)


def values(shape: tuple[int, ...], dtype: torch.dtype, kind: str, seed: int) -> torch.Tensor:
    """A contiguous CPU tensor.

    Args:
        kind: "normal"; "small" (whole numbers, many of them equal); "special" (infinities, NaN, zeros of both signs);
            "positive".
    """
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    if not dtype.is_floating_point and not dtype.is_complex:
        low, high = (0, 100) if dtype == torch.uint8 or kind == "positive" else (-100, 100)
        if kind == "small":
            low, high = max(low, -3), 4
        return torch.randint(low, high, shape, generator=generator).to(dtype)
    if kind == "small":
        return torch.randint(-3, 4, shape, generator=generator).to(dtype)
    if kind == "special":
        chosen = torch.randint(0, len(SPECIAL), shape, generator=generator)
        return torch.tensor(SPECIAL, dtype=torch.float64)[chosen].clone().to(dtype)
    exact = torch.randn(shape, dtype=torch.complex128 if dtype.is_complex else torch.float64, generator=generator)
    return (exact.abs() + 0.1 if kind == "positive" else exact).to(dtype)
