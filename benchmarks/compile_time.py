"""Compiling a training step with nothing cached takes at most 1.1 times what the CPU's Inductor takes; a second process
that starts with the caches of the first gets there at least 5 times faster.

Each compilation is a process of its own with an empty cache directory, the two devices in turn.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import Result, Settings, compare, main

HERE = Path(__file__).resolve().parent
COLD_TARGET = 1.1
WARM_TARGET = 5.0
MAX_PAIRS = 3  # a compilation takes tens of seconds

SCRIPT = """
import sys, time, torch
sys.path[:0] = [sys.argv[2]]
from gpt_step import training_step
step = training_step(sys.argv[1], 64, 4, 2, 32, autocast=False, compiled=True)
torch.neuron.synchronize()
import torch._inductor.compile_fx
if sys.argv[1] == "neuron":
    import torch_neuronx.compiler.backend
start = time.perf_counter()
step()
torch.accelerator.synchronize()
print(time.perf_counter() - start)
"""


def first_step(device: str, cache: str) -> float:
    """Seconds of the first training step, which compiles, in a new process whose caches lie in `cache`."""
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "TORCH_NEURONX_NEFF_CACHE_DIR": f"{cache}/neuron",
    }
    command = [sys.executable, "-c", SCRIPT, device, str(HERE)]
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return float(output.split()[-1])


def cold(device: str) -> float:
    with tempfile.TemporaryDirectory() as cache:
        return first_step(device, cache)


def claims(settings: Settings) -> list[Result]:
    few = Settings(min(settings.pairs, MAX_PAIRS), 0)
    results = [
        compare("cold first step, GPT d=64", lambda: cold("cpu"), lambda: cold("neuron"), few, COLD_TARGET),
    ]
    with tempfile.TemporaryDirectory() as cache:
        first_step("neuron", cache)
        results.append(
            compare(
                "speed of a warm first step to a cold one",
                lambda: cold("neuron"),
                lambda: first_step("neuron", cache),
                few,
                WARM_TARGET,
                at_least=True,
            )
        )
    return results


if __name__ == "__main__":
    sys.exit(main(claims, __doc__))
