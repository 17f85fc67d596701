"""A worker of the sweep: reads pairs from its standard input, one a line, and writes each result to a pipe.

Run by `sweep.py`, one process for each launch mode, so that a crash takes only the pair that caused it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys


def main() -> None:
    results = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    max_samples = int(sys.argv[2])

    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    import torch_neuronx  # noqa: F401
    from torch_neuronx import _C

    from .checks import PairChecker

    faulthandler.enable()
    torch.set_num_threads(1)
    _C.set_host_rng(True)  # random operators can then be compared with the CPU's numbers
    blocking = os.environ.get("NEURON_LAUNCH_BLOCKING") == "1"
    print(json.dumps({"ready": True}), file=results)
    for line in sys.stdin:
        index, dtype = json.loads(line)
        checker = PairChecker(
            op_db[index],
            getattr(torch, dtype),
            blocking=blocking,
            max_samples=max_samples,
            announce=lambda text: results.write(json.dumps({"at": text}) + "\n"),
        )
        try:
            outcome = checker.run().as_dict()
        except Exception as error:
            outcome = checker.result.as_dict()
            outcome["failures"].append(
                {"kind": "harness", "sample": "", "run": "", "detail": f"{type(error).__name__}: {error}"[:400]}
            )
        print(json.dumps(outcome), file=results)


if __name__ == "__main__":
    main()
