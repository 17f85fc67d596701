"""Which devices the environment variables give, and the chip numbers behind them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import torch_neuronx
from torch_neuronx.chip import chip_names, chip_spec
from torch_neuronx.config import BLOCKING_VARIABLE, CORE_SWITCHES, MAX_DEVICES, read_bool, read_config

GIB = 2**30


@pytest.mark.parametrize(
    ("environ", "count", "gib", "lnc"),
    [
        ({}, 4, 24, 2),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "trn2"}, 4, 24, 2),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "TRN2", "NEURON_LOGICAL_NC_CONFIG": "1"}, 8, 12, 1),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "trn1"}, 2, 16, 1),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "trn3"}, 4, 36, 2),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "trn3", "NEURON_RT_VIRTUAL_CORE_SIZE": "1"}, 8, 18, 1),
        ({"NEURON_RT_NUM_CORES": "1"}, 1, 24, 2),
        ({"NEURON_RT_NUM_CORES": "64"}, 64, 24, 2),
        ({"NEURON_RT_VISIBLE_CORES": "3"}, 1, 24, 2),
        ({"NEURON_RT_VISIBLE_CORES": ""}, 4, 24, 2),
        ({"NEURON_LOGICAL_NC_CONFIG": "2", "NEURON_RT_VIRTUAL_CORE_SIZE": "2"}, 4, 24, 2),
    ],
)
def test_count_and_memory(environ: dict[str, str], count: int, gib: int, lnc: int) -> None:
    config = read_config(environ)
    assert (config.device_count, config.hbm_bytes, config.lnc) == (count, gib * GIB, lnc)


@pytest.mark.parametrize(
    ("text", "core_ids"),
    [("0,2-3", (0, 2, 3)), ("4-7", (4, 5, 6, 7)), (" 1 , 0 ", (1, 0)), ("5-5", (5,)), ("60-63,0", (60, 61, 62, 63, 0))],
)
def test_visible_cores(text: str, core_ids: tuple[int, ...]) -> None:
    assert read_config({"NEURON_RT_VISIBLE_CORES": text}).core_ids == core_ids


def test_visible_cores_win_over_the_number() -> None:
    assert read_config({"NEURON_RT_VISIBLE_CORES": "2-3", "NEURON_RT_NUM_CORES": "8"}).core_ids == (2, 3)


@pytest.mark.parametrize(
    ("environ", "mode"),
    [
        ({}, "strict"),
        ({"TORCH_NEURONX_EAGER_MODE": "Verify"}, "verify"),
        ({"TORCH_NEURONX_ENABLE_CONCATENATION": "1"}, "adaptive"),
        ({"TORCH_NEURONX_ENABLE_CONCATENATION": "0"}, "strict"),
        ({"TORCH_NEURONX_ENABLE_CONCATENATION": "1", "TORCH_NEURONX_EAGER_MODE": "strict"}, "strict"),
    ],
)
def test_eager_mode(environ: dict[str, str], mode: str) -> None:
    assert read_config(environ).eager_mode == mode


def test_the_variable_sets_the_eager_mode() -> None:
    code = "import torch; torch.ones(1, device='neuron'); print(torch.neuron.get_eager_mode())"
    environment = {**os.environ, "TORCH_NEURONX_EAGER_MODE": "adaptive"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "adaptive"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"TORCH_NEURONX_EAGER_MODE": "fast"}, "TORCH_NEURONX_EAGER_MODE='fast'.*strict, adaptive, verify"),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "h100"}, "NEURON_PLATFORM_TARGET_OVERRIDE='h100'.*trn1, trn2, trn3"),
        ({"NEURON_RT_NUM_CORES": "0"}, "NEURON_RT_NUM_CORES='0'.*at least 1"),
        ({"NEURON_RT_NUM_CORES": "-2"}, "NEURON_RT_NUM_CORES='-2'.*at least 1"),
        ({"NEURON_RT_NUM_CORES": "two"}, "NEURON_RT_NUM_CORES='two'.*whole number"),
        ({"NEURON_RT_NUM_CORES": "128"}, "NEURON_RT_NUM_CORES='128'.*at most 127"),
        ({"NEURON_RT_NUM_CORES": "9" * 30}, "at most 127"),
        ({"NEURON_RT_VISIBLE_CORES": "0-"}, "NEURON_RT_VISIBLE_CORES='0-'.*ranges like"),
        ({"NEURON_RT_VISIBLE_CORES": "a"}, "ranges like"),
        ({"NEURON_RT_VISIBLE_CORES": "0,,1"}, "ranges like"),
        ({"NEURON_RT_VISIBLE_CORES": "3-1"}, "range 3-1 is empty"),
        ({"NEURON_RT_VISIBLE_CORES": "0-1,1"}, "named twice"),
        ({"NEURON_RT_VISIBLE_CORES": "0-999999999999"}, "at most 127"),
        ({"NEURON_LOGICAL_NC_CONFIG": "4"}, "NEURON_LOGICAL_NC_CONFIG='4': Trainium2 can have 1 or 2"),
        ({"NEURON_LOGICAL_NC_CONFIG": "2", "NEURON_PLATFORM_TARGET_OVERRIDE": "trn1"}, "Trainium can have 1"),
        ({"NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_RT_VIRTUAL_CORE_SIZE": "2"}, "disagree"),
        *(({switch: "maybe"}, f"{switch}='maybe'.*1 or 0") for switch in (BLOCKING_VARIABLE, *CORE_SWITCHES)),
    ],
)
def test_bad_values_are_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_config(environ)


def test_most_devices() -> None:
    assert read_config({"NEURON_RT_NUM_CORES": str(MAX_DEVICES)}).device_count == MAX_DEVICES


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("0", False), ("", False), ("OFF", False)])
def test_switch(text: str, value: bool) -> None:
    assert read_bool({"SWITCH": text}, "SWITCH") is value
    assert read_bool({}, "SWITCH") is False


def test_chip_numbers_fit_together() -> None:
    for name in chip_names():
        chip = chip_spec(name)
        assert chip.sbuf_bytes == chip.sbuf_bytes_per_partition * chip.partitions
        assert chip.psum_bytes % (chip.psum_banks * chip.partitions) == 0
        assert chip.lnc_default in chip.lnc_options
        assert chip.hbm_bytes_per_device(1) * chip.cores_per_chip == chip.hbm_bytes
        # A 128 x 128 array does one multiply and one add a cycle in each cell.
        assert chip.tensor_tflops["bfloat16"] == pytest.approx(128 * 128 * 2 * chip.clocks["tensor"] / 1000, rel=0.01)
        assert chip.tensor_tflops["float32"] == pytest.approx(chip.tensor_tflops["bfloat16"] / 4, rel=0.02)


def test_every_chip_number_has_a_source() -> None:
    data = json.loads(Path(torch_neuronx.__file__).with_name("chip").joinpath("chips.json").read_text())
    numbers = 0

    def check(node: object) -> None:
        nonlocal numbers
        assert not isinstance(node, int | float), "a number without unit and source"
        if isinstance(node, dict):
            if "value" in node:
                numbers += 1
                assert node["source"] in data["sources"]
                assert isinstance(node["unit"], str)
            else:
                for child in node.values():
                    check(child)

    check(data["chips"])
    assert numbers > 50


def test_chip_package_needs_no_torch() -> None:
    location = Path(torch_neuronx.__file__).parent / "chip" / "__init__.py"
    code = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location(
    "chip", {str(location)!r}, submodule_search_locations=[{str(location.parent)!r}])
chip = sys.modules["chip"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(chip)
print(chip.chip_spec("trn2").cores_per_chip, "torch" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.split() == ["8", "False"]


def test_unknown_chip() -> None:
    with pytest.raises(ValueError, match="unknown chip 'trn9'; known are trn1, trn2, trn3"):
        chip_spec("trn9")
