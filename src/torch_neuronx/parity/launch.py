"""Starts a script on one device in a process of its own, and collects what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from torch_neuronx.parity import records

CHILD = Path(__file__).resolve().parent / "child.py"
DEVICE_PLACEHOLDER = "{device}"


class ScriptRunError(RuntimeError):
    """A run did not come to an end that can be compared."""


@dataclass
class Job:
    """What to run, the same for every device."""

    script: str  # path of a script, or name of a module
    arguments: list[str] = field(default_factory=list)  # {device} in them stands for the device of the run
    is_module: bool = False
    seed: int = 0
    threads: int = 1
    host_random_numbers: bool = True  # draw on the device what the CPU would draw
    host_autocast: bool = True  # torch.autocast casts on the device what it would cast on the CPU
    set_default_device: bool = True
    watch: bool = True  # record losses, final parameters and log messages without the script's help
    timeout: float | None = None  # seconds


@dataclass
class DeviceRun:
    """What one run said."""

    device: str
    exit_code: int
    seconds: float
    stdout: str
    stderr: str
    records: list[tuple[str, str, np.ndarray]]  # (kind, name, value) in the order in which they were made
    bytes_allocated: int  # on the device, by the script's main process


def run_on(device: str, job: Job) -> DeviceRun:
    """Runs the job's script on a device ("cpu", "neuron", "neuron:1") and waits for it.

    Raises:
        ScriptRunError: the script did not end within the job's timeout.
    """
    with tempfile.TemporaryDirectory(prefix="torch-neuronx-parity-") as folder:
        return _run_in(Path(folder), device, job)


def _run_in(folder: Path, device: str, job: Job) -> DeviceRun:
    record_file, result_file = folder / "records", folder / "result.json"
    description = {
        "device": device,
        "script": job.script,
        "arguments": [argument.replace(DEVICE_PLACEHOLDER, device) for argument in job.arguments],
        "is_module": job.is_module,
        "seed": job.seed,
        "threads": job.threads,
        "set_default_device": job.set_default_device and device != "cpu",
        "watch": job.watch,
        "result": str(result_file),
    }
    command = [sys.executable, str(CHILD), json.dumps(description)]
    # Output goes to files: a process that the script leaves behind may keep a pipe open for ever.
    with (folder / "stdout").open("w+b") as stdout, (folder / "stderr").open("w+b") as stderr:
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=_environment(device, job, record_file),
            start_new_session=True,
        )
        try:
            exit_code = process.wait(job.timeout)
        except subprocess.TimeoutExpired:
            raise ScriptRunError(f"the run on {device} did not end within {job.timeout:g} seconds") from None
        finally:
            if process.poll() is None:  # a timeout, or Ctrl-C in this process
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        seconds = time.perf_counter() - start
        for file in (stdout, stderr):
            file.seek(0)
        said, said_aside = (file.read().decode(errors="replace") for file in (stdout, stderr))
    result = json.loads(result_file.read_text()) if result_file.exists() else {"bytes_allocated": 0}
    return DeviceRun(
        device=device,
        exit_code=exit_code,
        seconds=seconds,
        stdout=said,
        stderr=said_aside,
        records=list(records.read(record_file)),
        bytes_allocated=result["bytes_allocated"],
    )


def _environment(device: str, job: Job, record_file: Path) -> dict[str, str]:
    environment = dict(os.environ)
    threads = str(job.threads)
    environment |= {
        records.RECORDS_VARIABLE: str(record_file),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONHASHSEED": str(job.seed % 2**32),  # the order of sets of strings
        "PYTHONIOENCODING": "utf-8",
    }
    if device == "cpu":
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    else:
        environment["TORCH_NEURONX_HOST_RNG"] = "1" if job.host_random_numbers else "0"
        environment["TORCH_NEURONX_HOST_AUTOCAST"] = "1" if job.host_autocast else "0"
    return environment
