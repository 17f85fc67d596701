"""Which virtual NeuronCores this process sees, from the environment variables that users of real Trainium set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from torch_neuronx.chip import ChipSpec, chip_names, chip_spec

DEFAULT_TARGET = "trn2"
# What c10's device index can count.
MAX_DEVICES = 127

TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"
NUM_CORES_VARIABLE = "NEURON_RT_NUM_CORES"
VISIBLE_CORES_VARIABLE = "NEURON_RT_VISIBLE_CORES"
LNC_VARIABLE = "NEURON_LOGICAL_NC_CONFIG"
# The runtime's older name for the same setting.
LNC_ALIAS_VARIABLE = "NEURON_RT_VIRTUAL_CORE_SIZE"
BLOCKING_VARIABLE = "NEURON_LAUNCH_BLOCKING"
HOST_AUTOCAST_VARIABLE = "TORCH_NEURONX_HOST_AUTOCAST"
NARROW_VARIABLE = "TORCH_NEURONX_NARROW_64BIT"
EAGER_MODE_VARIABLE = "TORCH_NEURONX_EAGER_MODE"
EAGER_MODES = ("strict", "adaptive", "verify")
# The real device's switch for its form of the adaptive mode.
CONCATENATION_VARIABLE = "TORCH_NEURONX_ENABLE_CONCATENATION"
# Read by the core, which takes what it does not understand for off.
CORE_SWITCHES = ("TORCH_NEURONX_HOST_RNG", "TORCH_NEURONX_FORBID_FALLBACK", "TORCH_NEURONX_GUARD_MEMORY")

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True)
class DeviceConfig:
    """The devices of a process. A device is one logical NeuronCore of `lnc` physical cores."""

    chip: ChipSpec
    lnc: int
    core_ids: tuple[int, ...]  # logical core behind each device index, counted over all chips
    launch_blocking: bool
    narrow_64bit: bool = False  # 64-bit numbers hold 32 bits, as on the chip
    eager_mode: str = "strict"  # at the start

    @property
    def device_count(self) -> int:
        return len(self.core_ids)

    @property
    def hbm_bytes(self) -> int:
        """HBM of each device, in bytes."""
        return self.chip.hbm_bytes_per_device(self.lnc)


def read_config(environ: Mapping[str, str] = os.environ) -> DeviceConfig:
    """Reads the variables; what is not set gives one Trn2 chip with LNC 2, that is 4 devices of 24 GiB.

    Raises:
        ValueError: a variable has a value that cannot be meant; the message names it and says what is allowed.
    """
    chip = _read_chip(environ)
    lnc = _read_lnc(environ, chip)
    for variable in CORE_SWITCHES:
        read_bool(environ, variable)
    return DeviceConfig(
        chip=chip,
        lnc=lnc,
        core_ids=_read_core_ids(environ, chip.devices_per_chip(lnc)),
        launch_blocking=read_bool(environ, BLOCKING_VARIABLE),
        narrow_64bit=read_bool(environ, NARROW_VARIABLE),
        eager_mode=_read_eager_mode(environ),
    )


_active: DeviceConfig | None = None


def configure_core() -> DeviceConfig:
    """Reads the environment and fixes it for the rest of the process; called by the core on first use."""
    global _active
    from torch_neuronx import _C

    config = read_config()
    if not _C.is_configured():
        _active = config
        _C.configure(
            device_count=config.device_count,
            hbm_bytes=config.hbm_bytes,
            launch_blocking=config.launch_blocking,
            narrow_64bit=config.narrow_64bit,
        )
        if read_bool(os.environ, HOST_AUTOCAST_VARIABLE):
            _C.set_host_autocast(True)
        if config.eager_mode != "strict":
            _C._set_eager_mode(config.eager_mode)
    return config


def active_config() -> DeviceConfig:
    """The configuration in force: the one fixed at first use, or what the environment says now."""
    return _active if _active is not None else read_config()


def read_bool(environ: Mapping[str, str], variable: str, *, default: bool = False) -> bool:
    """A switch: 1/0, true/false, yes/no, on/off; unset or empty means `default`."""
    text = environ.get(variable, "").strip().lower()
    if not text:
        return default
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"{variable}={environ[variable]!r}: expected 1 or 0")


def _read_eager_mode(environ: Mapping[str, str]) -> str:
    concatenation = read_bool(environ, CONCATENATION_VARIABLE)
    mode = environ.get(EAGER_MODE_VARIABLE, "").strip().lower()
    if mode and mode not in EAGER_MODES:
        raise ValueError(f"{EAGER_MODE_VARIABLE}={environ[EAGER_MODE_VARIABLE]!r}: expected {', '.join(EAGER_MODES)}")
    return mode or ("adaptive" if concatenation else "strict")


def _read_chip(environ: Mapping[str, str]) -> ChipSpec:
    text = environ.get(TARGET_VARIABLE, "").strip().lower() or DEFAULT_TARGET
    if text not in chip_names():
        raise ValueError(f"{TARGET_VARIABLE}={environ[TARGET_VARIABLE]!r}: expected one of {', '.join(chip_names())}")
    return chip_spec(text)


def _read_lnc(environ: Mapping[str, str], chip: ChipSpec) -> int:
    set_variables = [name for name in (LNC_VARIABLE, LNC_ALIAS_VARIABLE) if environ.get(name, "").strip()]
    values = {_read_int(environ, name) for name in set_variables}
    if len(values) > 1:
        raise ValueError(
            f"{LNC_VARIABLE}={environ[LNC_VARIABLE]!r} and {LNC_ALIAS_VARIABLE}={environ[LNC_ALIAS_VARIABLE]!r} "
            "disagree; set only one of them"
        )
    if not values:
        return chip.lnc_default
    lnc = values.pop()
    if lnc not in chip.lnc_options:
        options = " or ".join(map(str, chip.lnc_options))
        raise ValueError(f"{set_variables[0]}={environ[set_variables[0]]!r}: {chip.name} can have {options}")
    return lnc


def _read_core_ids(environ: Mapping[str, str], devices_per_chip: int) -> tuple[int, ...]:
    # The runtime, too, lets the list win over the number.
    if environ.get(VISIBLE_CORES_VARIABLE, "").strip():
        core_ids = _parse_core_list(environ[VISIBLE_CORES_VARIABLE])
        variable = VISIBLE_CORES_VARIABLE
    elif environ.get(NUM_CORES_VARIABLE, "").strip():
        count = _read_int(environ, NUM_CORES_VARIABLE)
        if count < 1:
            raise ValueError(f"{NUM_CORES_VARIABLE}={environ[NUM_CORES_VARIABLE]!r}: expected at least 1")
        # Not range(count) at once: a typing error must not fill the memory.
        core_ids = tuple(range(min(count, MAX_DEVICES + 1)))
        variable = NUM_CORES_VARIABLE
    else:
        return tuple(range(devices_per_chip))
    if len(core_ids) > MAX_DEVICES:
        raise ValueError(f"{variable}={environ[variable]!r}: a process can have at most {MAX_DEVICES} neuron devices")
    return core_ids


def _parse_core_list(text: str) -> tuple[int, ...]:
    """Turns "0,2-3" into (0, 2, 3)."""
    core_ids: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
            raise ValueError(f"{VISIBLE_CORES_VARIABLE}={text!r}: expected core numbers and ranges like 0,2-3")
        low, high = int(first), int(last) if dash else int(first)
        if high < low:
            raise ValueError(f"{VISIBLE_CORES_VARIABLE}={text!r}: the range {part.strip()} is empty")
        core_ids.extend(range(low, min(high, low + MAX_DEVICES) + 1))
        if len(core_ids) > MAX_DEVICES:
            break
    if len(set(core_ids)) != len(core_ids):
        raise ValueError(f"{VISIBLE_CORES_VARIABLE}={text!r}: a core is named twice")
    return tuple(core_ids)


def _read_int(environ: Mapping[str, str], variable: str) -> int:
    try:
        return int(environ[variable].strip())
    except ValueError:
        raise ValueError(f"{variable}={environ[variable]!r}: expected a whole number") from None
