"""Does a script learn on `neuron` exactly what it learns on `cpu`?

    python -m torch_neuronx.parity [options] script.py [arguments of the script]

runs any script once per device, in separate processes, with the same seed, thread count and random numbers, and
compares what the two runs say: the numbers they print and log, the value of every loss they call `backward()` on, and
the parameters their optimizers end with. See `--help` for the options and the exit codes.

A script may hand over more with `log`; outside of such a run that does nothing:

    from torch_neuronx import parity
    parity.log("gradient of the head", model.head.weight.grad)
"""

from __future__ import annotations

from torch_neuronx.parity.compare import Comparison, Difference, Unmatched, compare
from torch_neuronx.parity.launch import DeviceRun, Job, ScriptRunError, run_on
from torch_neuronx.parity.records import log

__all__ = ["Comparison", "DeviceRun", "Difference", "Job", "ScriptRunError", "Unmatched", "compare", "log", "run_on"]
