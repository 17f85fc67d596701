"""The sweep's results: a table for people and a file for programs."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

STATES = ("passed", "failed", "skipped", "not on cpu")
FAILURES_SHOWN = 60


def state(result: dict[str, Any]) -> str:
    """A pair is skipped, or not on the CPU, when nothing else was compared."""
    if result["failures"]:
        return "failed"
    if result["checks"] == 0:
        return "skipped" if result["skipped"] else "not on cpu"
    return "passed"


def write_report(results: list[dict[str, Any]], path: Path, seconds: float) -> None:
    ordered = sorted(results, key=lambda r: (r["op"], r["dtype"], r["blocking"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"seconds": round(seconds, 1), "pairs": ordered}, indent=1))


def print_report(results: list[dict[str, Any]], seconds: float) -> None:
    table: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for result in results:
        mode = "blocking" if result["blocking"] else "async"
        for row in ((result["dtype"], mode), ("all", mode)):
            table[row][state(result)] += 1
            table[row]["checks"] += result["checks"]
    print(f"{'dtype':<10} {'mode':<9}" + "".join(f"{name:>12}" for name in (*STATES, "checks")))
    for (dtype, mode), counts in sorted(table.items(), key=lambda item: (item[0][0] == "all", item[0])):
        print(f"{dtype:<10} {mode:<9}" + "".join(f"{counts[name]:>12}" for name in (*STATES, "checks")))
    _print_failures(results)
    skips = Counter(f"{result['op']}: {reason}" for result in results for reason in result["skipped"])
    for text in sorted(skips):
        print(f"skipped  {text}")
    print(f"{len(results)} pairs in {seconds:.0f} s")


def failure_line(result: dict[str, Any]) -> str:
    """The first failure of a pair, in one line."""
    first = result["failures"][0]
    mode = "blocking" if result["blocking"] else "async"
    return (
        f"FAILED {result['op']} {result['dtype']} {mode}: {first['kind']}, sample {first['sample']}, "
        f"run {first['run']}: {first['detail'][:240]}"
    )


def _print_failures(results: list[dict[str, Any]]) -> None:
    failed = [result for result in results if result["failures"]]
    by_kind = Counter(failure["kind"] for result in failed for failure in result["failures"])
    if by_kind:
        print("failures by kind: " + ", ".join(f"{kind} {count}" for kind, count in by_kind.most_common()))
    for result in sorted(failed, key=lambda r: (r["op"], r["dtype"]))[:FAILURES_SHOWN]:
        print(failure_line(result))
    if len(failed) > FAILURES_SHOWN:
        print(f"... and {len(failed) - FAILURES_SHOWN} more; see the report")
