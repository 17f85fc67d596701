"""What one Trainium chip is made of, read from chips.json, where each number has its source."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DATA_FILE = Path(__file__).with_name("chips.json")


@dataclass(frozen=True)
class ChipSpec:
    """One generation. Sizes are bytes, clocks GHz, rates TFLOP/s and GB/s; "core" is one physical NeuronCore."""

    target: str  # "trn2", as NEURON_PLATFORM_TARGET_OVERRIDE names it
    name: str  # "Trainium2"
    core: str  # "NeuronCore-v3"
    core_version: int
    cores_per_chip: int
    lnc_options: tuple[int, ...]  # how many physical cores a logical core may have
    lnc_default: int
    hbm_bytes: int  # per chip
    hbm_stacks: int
    hbm_bandwidth: float  # GB/s per chip
    base_clock: float  # GHz; cycle counts are in this unit
    clocks: dict[str, float]  # per engine: tensor, vector, scalar, gpsimd
    tensor_tflops: dict[str, float]  # per core and dtype, dense
    sbuf_bytes: int  # per core
    sbuf_bytes_per_partition: int
    psum_bytes: int  # per core
    psum_banks: int
    partitions: int

    def devices_per_chip(self, lnc: int) -> int:
        """Logical cores of one chip when each has `lnc` physical cores."""
        return self.cores_per_chip // lnc

    def hbm_bytes_per_device(self, lnc: int) -> int:
        """The share of HBM that one logical core of `lnc` physical cores has, in bytes."""
        return self.hbm_bytes * lnc // self.cores_per_chip


@functools.cache
def _data() -> dict[str, Any]:
    with _DATA_FILE.open(encoding="utf-8") as file:
        return json.load(file)["chips"]


def chip_names() -> tuple[str, ...]:
    """The known generations: ("trn1", "trn2", "trn3")."""
    return tuple(_data())


@functools.cache
def chip_spec(target: str) -> ChipSpec:
    """The numbers of a generation.

    Args:
        target: "trn1", "trn2" or "trn3".

    Raises:
        ValueError: the generation is not known.
    """
    chips = _data()
    if target not in chips:
        raise ValueError(f"unknown chip {target!r}; known are {', '.join(chips)}")
    chip = chips[target]

    def values(leaves: dict[str, dict[str, Any]]) -> dict[str, float]:
        return {name: leaf["value"] for name, leaf in leaves.items()}

    return ChipSpec(
        target=target,
        name=chip["name"],
        core=chip["core"],
        core_version=chip["core_version"]["value"],
        cores_per_chip=chip["cores_per_chip"]["value"],
        lnc_options=tuple(chip["lnc"]["value"]),
        lnc_default=chip["lnc_default"]["value"],
        hbm_bytes=chip["hbm_bytes"]["value"],
        hbm_stacks=chip["hbm_stacks"]["value"],
        hbm_bandwidth=chip["hbm_bandwidth"]["value"],
        base_clock=chip["base_clock"]["value"],
        clocks=values(chip["clocks"]),
        tensor_tflops=values(chip["tensor_tflops"]),
        sbuf_bytes=chip["sbuf_bytes"]["value"],
        sbuf_bytes_per_partition=chip["sbuf_bytes_per_partition"]["value"],
        psum_bytes=chip["psum_bytes"]["value"],
        psum_banks=chip["psum_banks"]["value"],
        partitions=chip["partitions"]["value"],
    )
