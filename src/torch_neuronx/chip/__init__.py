"""The documented hardware: numbers of the Trainium generations. Pure Python, without torch."""

from __future__ import annotations

from .specs import ChipSpec, chip_names, chip_spec

__all__ = ["ChipSpec", "chip_names", "chip_spec"]
