"""Runs all benchmarks, each in a process of its own, and says which targets are met (`make bench`).

python benchmarks/run.py --json bench.json      # everything, figures written to a file
python benchmarks/run.py --only gpt_step        # some
python benchmarks/run.py --pairs 5 --seconds 1  # a quick look
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLAIMS = [
    "gpt_step",
    "op_call",
    "products",
    "adaptive",
    "alloc",
    "copy_bandwidth",
    "compiled_gpt_step",
    "compiled_call",
    "compile_time",
    "flex_attention",
]
# These have a form of their own: they pass or fail as a whole.
OTHERS = ["trace_cost"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CLAIMS + OTHERS, default=CLAIMS + OTHERS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--seconds", type=float)
    arguments = parser.parse_args()
    options = [f"--{name}={value}" for name in ("pairs", "seconds") if (value := getattr(arguments, name)) is not None]

    if os.getloadavg()[0] > 0.5:
        print(f"note: the machine is busy with something else (load {os.getloadavg()[0]:.1f}); figures will be noisy")
    results: dict[str, object] = {}
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only:
            print(f"\n{name}: {_claim(name)}", flush=True)
            table = Path(folder) / f"{name}.json"
            own_options = [*options, f"--json={table}"] if name in CLAIMS else []
            code = subprocess.run([sys.executable, str(HERE / f"{name}.py"), *own_options], check=False).returncode
            if code != 0:
                failed.append(name)
            results[name] = json.loads(table.read_text()) if table.exists() else {"exit_code": code}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
        print(f"\nwritten to {arguments.json}")
    print(f"\nmissed: {', '.join(failed)}" if failed else "\nall targets met")
    return 1 if failed else 0


def _claim(name: str) -> str:
    """The first line of the benchmark's docstring."""
    return (HERE / f"{name}.py").read_text().split('"""', 2)[1].split("\n", 1)[0]


if __name__ == "__main__":
    sys.exit(main())
