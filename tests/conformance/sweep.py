"""Runs the whole OpInfo sweep: `python -m tests.conformance.sweep --help`.

Each pair (operator, dtype) runs in blocking and in asynchronous mode, in worker processes: a crash or a hang is reported
with the pair that caused it, and the sweep goes on. Prints a table and writes a report in JSON; the exit status is 1 when
anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from .report import failure_line, print_report, write_report

UNIT_TIMEOUT_S = 300
START_TIMEOUT_S = 300
MODES = ("blocking", "async")


class Worker:
    """A process that checks pairs in one mode."""

    def __init__(self, mode: str, max_samples: int) -> None:
        read_end, write_end = os.pipe()
        environment = {
            **os.environ,
            "NEURON_LAUNCH_BLOCKING": "1" if mode == "blocking" else "0",
            "OMP_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.worker", str(write_end), str(max_samples)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[write_end],
            env=environment,
        )
        os.close(write_end)
        self._results = os.fdopen(read_end, "r")
        self._stderr: list[bytes] = []
        self._at = ""  # the check that the worker announced last
        self._drainer = threading.Thread(target=self._drain_stderr, daemon=True)
        self._drainer.start()
        if self._read(START_TIMEOUT_S) is None:
            self.close()
            raise RuntimeError(f"a worker did not start: {self.last_words()}")

    def check(self, unit: tuple[int, str]) -> dict[str, Any] | None:
        """The result of a unit, or None when the worker died or hung."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write((json.dumps(unit) + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        return self._read(UNIT_TIMEOUT_S)

    def last_words(self) -> str:
        self.process.wait()
        self._drainer.join(timeout=10)
        code = self.process.returncode
        text = b"".join(self._stderr).decode(errors="replace")
        fault = text.rfind("Fatal Python error")
        tail = text[fault:][:600] if fault >= 0 else text[-300:]
        return f"exit status {code} at [{self._at}] {tail.strip()}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._results.close()

    def _read(self, timeout: float) -> dict[str, Any] | None:
        timer = threading.Timer(timeout, self._kill_hung, [timeout])
        timer.start()
        try:
            for line in self._results:
                message = json.loads(line)
                if "at" not in message:
                    return message
                self._at = message["at"]
            return None
        finally:
            timer.cancel()

    def _kill_hung(self, timeout: float) -> None:
        self._stderr.append(f"no answer within {timeout} s".encode())
        self.process.kill()

    def _drain_stderr(self) -> None:
        assert self.process.stderr is not None
        for chunk in iter(lambda: self.process.stderr.read1(4096), b""):
            self._stderr.append(chunk)
            del self._stderr[:-64]


class Sweep:
    """Shares the units of both modes out among `jobs` workers."""

    def __init__(self, units: list[tuple[int, str, str]], modes: list[str], jobs: int, max_samples: int) -> None:
        self.units = {unit[:2]: unit[2] for unit in units}
        self.max_samples = max_samples
        self.jobs = jobs
        self.queues: dict[str, queue.SimpleQueue[tuple[int, str]]] = {}
        for mode in modes:
            self.queues[mode] = queue.SimpleQueue()
            for unit in self.units:
                self.queues[mode].put(unit)
        self.results: list[dict[str, Any]] = []
        self.total = len(units) * len(modes)
        self._lock = threading.Lock()

    def run(self) -> list[dict[str, Any]]:
        modes = list(self.queues)
        threads = [
            threading.Thread(target=self._work, args=(modes[job % len(modes) :] + modes[: job % len(modes)],))
            for job in range(self.jobs)
        ]
        for thread in threads:
            thread.start()
        start = time.monotonic()
        interactive = sys.stderr.isatty()
        told = start
        while any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(timeout=2 / len(threads))
            now = time.monotonic()
            if interactive or now - told >= 60:
                told = now
                failed = sum(bool(result["failures"]) for result in self.results)
                text = f"{len(self.results)}/{self.total} pairs, {failed} failed, {now - start:.0f} s"
                print(
                    f"\r{text}" if interactive else text, end="" if interactive else "\n", file=sys.stderr, flush=True
                )
        if interactive:
            print(file=sys.stderr)
        return self.results

    def _work(self, modes: list[str]) -> None:
        for mode in modes:
            worker: Worker | None = None
            while True:
                try:
                    unit = self.queues[mode].get_nowait()
                except queue.Empty:
                    break
                worker = worker or Worker(mode, self.max_samples)
                result = worker.check(unit)
                if result is None:
                    result = self._crashed(unit, mode, worker.last_words())
                    worker.close()
                    worker = None
                with self._lock:
                    self.results.append(result)
                    if result["failures"]:
                        print(failure_line(result), file=sys.stderr, flush=True)
            if worker is not None:
                worker.close()

    def _crashed(self, unit: tuple[int, str], mode: str, words: str) -> dict[str, Any]:
        failure = {"kind": "crash", "sample": "", "run": "", "detail": words}
        return {
            "op": self.units[unit],
            "dtype": unit[1],
            "blocking": mode == "blocking",
            "checks": 0,
            "not_on_cpu": 0,
            "skipped": [],
            "failures": [failure],
            "seconds": 0.0,
        }


def all_units(pattern: str, dtypes: list[str]) -> list[tuple[int, str, str]]:
    from torch.testing._internal.common_methods_invocations import op_db

    from .checks import dtype_name, pairs

    found = [(index, dtype_name(dtype), op_db[index].formatted_name) for index, dtype in pairs(op_db)]
    return [unit for unit in found if re.search(pattern, unit[2]) and (not dtypes or unit[1] in dtypes)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare every operator on neuron with the CPU, bit by bit.")
    parser.add_argument("--ops", default="", help="only operators whose name matches this regular expression")
    parser.add_argument("--dtypes", default="", help="only these, separated by commas (float32,int64,...)")
    parser.add_argument("--modes", default="blocking,async", help="launch modes, separated by commas")
    parser.add_argument("--samples", type=int, default=8, help="samples of each pair at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--report", type=Path, default=Path("build/conformance.json"), help="where the report goes")
    arguments = parser.parse_args()
    units = all_units(arguments.ops, [dtype for dtype in arguments.dtypes.split(",") if dtype])
    start = time.monotonic()
    results = Sweep(units, arguments.modes.split(","), arguments.jobs, arguments.samples).run()
    seconds = time.monotonic() - start
    write_report(results, arguments.report, seconds)
    print_report(results, seconds)
    print(f"report: {arguments.report}")
    return int(any(result["failures"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
