"""torch.compile on neuron; see docs/compile.md. The backend itself is loaded when the first function is compiled."""

from __future__ import annotations


def rebuilt_artifacts() -> int:
    """How many damaged or foreign files this process found in the artifact cache; each was made again."""
    from .verified_artifacts import rebuilt_artifacts as count

    return count()
