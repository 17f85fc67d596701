"""Compiles every operator of the OpInfo database for neuron: `python -m tests.conformance.compiled [--match TEXT]`.

For each operator the first sample with float32 tensors is compiled and run twice on neuron, and compared with the
operator on the CPU. Where that fails, the CPU's own Inductor is asked: what it can't do either counts as not supported.
Workers are processes, so a crash is reported with the operator that caused it. The exit status is 1 when anything failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

REPORT = Path("build/conformance-compiled.json")
# What compiled code may round differently: fused multiply-adds, sums in another order.
TOLERANCE = 1e-4
# Their results are random, or not determined: memory that nobody wrote, signs of eigenvectors.
UNDETERMINED = (
    "empty", "rand", "normal", "uniform", "bernoulli", "multinomial", "exponential", "cauchy", "geometric", "dropout",
    "svd", "eig", "qr", "pca", "lstsq", "linalg.householder", "ormqr", "geqrf", "rrelu",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="", help="only operators whose name contains this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work()
        return 0
    from torch.testing._internal.common_methods_invocations import op_db

    names = [index for index, op in enumerate(op_db) if arguments.match in op.name]
    todo = iter(names)
    results: list[dict[str, Any]] = []
    lock = threading.Lock()

    def feed() -> None:
        process = None
        while True:
            with lock:
                index = next(todo, None)
            if index is None:
                break
            if process is None or process.poll() is not None:
                process = start_worker()
            result = ask(process, index) or {"op": op_db[index].name, "state": "crash", "why": "the worker died"}
            with lock:
                results.append(result)
                if result["state"] not in ("passed", "unsupported"):
                    print(f"{result['state']:<12} {result['op']}: {result['why']}", flush=True)
        if process is not None and process.stdin is not None:
            process.stdin.close()

    threads = [threading.Thread(target=feed) for _ in range(arguments.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return report(results)


def start_worker() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.conformance.compiled", "--worker"]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def ask(process: subprocess.Popen[str], index: int) -> dict[str, Any] | None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{index}\n")
    process.stdin.flush()
    line = process.stdout.readline()
    return json.loads(line) if line else None


def report(results: list[dict[str, Any]]) -> int:
    counts: dict[str, int] = {}
    for result in results:
        counts[result["state"]] = counts.get(result["state"], 0) + 1
    through_python = sorted({result["op"] for result in results if result.get("python_reason")})
    print(", ".join(f"{count} {state}" for state, count in sorted(counts.items())))
    print(f"called through Python: {', '.join(through_python) or 'none'}")
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(results, indent=1))
    return 1 if counts.get("failed") or counts.get("crash") else 0


def work() -> None:
    """Reads numbers of operators, writes a line of JSON for each."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    answers, sys.stdout = sys.stdout, sys.stderr  # operators print
    for line in sys.stdin:
        print(json.dumps(check(op_db[int(line)])), file=answers, flush=True)


def check(op: Any) -> dict[str, Any]:
    import torch
    from torch.utils import _pytree as pytree

    full_name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
    if torch.float32 not in op.dtypes:
        return {"op": full_name, "state": "unsupported", "why": "no float32"}
    sample = next(iter(op.sample_inputs("cpu", torch.float32)), None)
    if sample is None:
        return {"op": full_name, "state": "unsupported", "why": "no sample"}
    arguments = (sample.input, *sample.args)

    def on(device: str) -> Any:
        def copy(value: Any) -> Any:
            return value.detach().clone().to(device) if isinstance(value, torch.Tensor) else value

        moved_keywords = {
            name: device if name == "device" else pytree.tree_map(copy, value) for name, value in sample.kwargs.items()
        }
        return pytree.tree_map(copy, arguments), moved_keywords

    def run(device: str, backend: str | None) -> Any:
        torch._dynamo.reset()
        function = torch.compile(op.op, backend=backend) if backend else op.op
        for _ in range(2 if backend else 1):
            positional, keywords = on(device)
            results = function(*positional, **keywords)
        return pytree.tree_map(lambda value: value.cpu() if isinstance(value, torch.Tensor) else value, results)

    try:
        expected = run("cpu", None)
    except Exception as error:
        return {"op": full_name, "state": "unsupported", "why": f"eager: {brief(error)}"}
    torch.neuron.reset_dynamo_metrics()
    try:
        actual = run("neuron", "neuron")
        if not any(part in op.name for part in UNDETERMINED):
            compare(actual, expected)
    except Exception as error:
        if "sparse tensors are not supported" in str(error):
            return {"op": full_name, "state": "unsupported", "why": "sparse"}
        try:
            again = run("cpu", "inductor")
            compare(again, expected)
        except Exception as theirs:
            return {"op": full_name, "state": "unsupported", "why": f"CPU Inductor: {brief(theirs)}"}
        return {"op": full_name, "state": "failed", "why": brief(error)}
    reasons = [graph["python_reason"] for graph in torch.neuron.get_dynamo_metrics() if graph["python_reason"]]
    return {"op": full_name, "state": "passed", "why": "", "python_reason": reasons[0] if reasons else None}


def compare(actual: Any, expected: Any) -> None:
    import torch
    from torch.utils import _pytree as pytree

    for mine, theirs in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


def brief(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:300]}"


if __name__ == "__main__":
    sys.exit(main())
