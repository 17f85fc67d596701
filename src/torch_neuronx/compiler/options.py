"""What users pass to torch.compile: `mode=` and `options={...}`."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, field
from typing import Any

import torch._inductor

from torch_neuronx.config import read_bool

NO_FALLBACK_VARIABLE = "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION"

# torch.compile's modes. Those that are about CUDA graphs have nothing to do here, and say so.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

# Options of this backend, beside those of torch._inductor.config.
OWN_OPTIONS = ("fallback_execution", "model_name", "dynamic")


@dataclass
class Options:
    model_name: str = "model_default"
    fallback_execution: bool | None = None  # None: as the variable says
    inductor: dict[str, Any] = field(default_factory=dict)

    def fall_back(self) -> bool:
        """Whether a graph that fails to compile is run operator by operator instead of raising."""
        if self.fallback_execution is not None:
            return self.fallback_execution
        return not read_bool(os.environ, NO_FALLBACK_VARIABLE, default=True)


def parse_options(mode: str | None, options: dict[str, Any] | None) -> Options:
    """Checks what the user gave.

    Raises:
        ValueError: an unknown mode or option.
        TypeError: an option of the wrong type.
    """
    if mode is not None and mode not in MODES:
        raise ValueError(f"torch.compile on neuron: unknown mode {mode!r}; the modes are {', '.join(MODES)}")
    parsed = Options()
    if mode in ("max-autotune", "max-autotune-no-cudagraphs"):
        parsed.inductor["max_autotune"] = True
    for name, value in (options or {}).items():
        _take(parsed, name, value)
    return parsed


def _take(parsed: Options, name: str, value: Any) -> None:
    if name == "model_name":
        if not isinstance(value, str):
            raise TypeError(f"option model_name is a string, not {type(value).__name__}")
        parsed.model_name = value
    elif name == "fallback_execution":
        if not isinstance(value, bool):
            raise TypeError(f"option fallback_execution is a bool, not {type(value).__name__}")
        parsed.fallback_execution = value
    elif name == "dynamic":
        pass  # the chip's compiler writes it there; shapes are Dynamo's business here
    else:
        key = name.replace("-", "_")
        if key.startswith("triton.") and "cudagraph" in key:
            raise ValueError(f"torch.compile on neuron: {name} is about CUDA graphs, which neuron does not have")
        known = torch._inductor.config.get_config_copy()
        if key not in known:
            close = difflib.get_close_matches(key, [*OWN_OPTIONS, *known], n=3)
            hint = f"; did you mean {' or '.join(close)}" if close else ""
            raise ValueError(
                f"torch.compile on neuron: unknown option {name!r}{hint}. The options are {', '.join(OWN_OPTIONS)} "
                "and those of torch._inductor.config (torch._inductor.list_options())"
            )
        parsed.inductor[key] = value
