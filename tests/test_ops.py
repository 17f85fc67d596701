"""Every operator of PyTorch's database in float32 on one sample, against the CPU: what `make conformance` does with all
dtypes and more samples. The sweep runs once, in processes of its own, and each operator is a test of its result."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.conformance.report import failure_line
from tests.conformance.sweep import Sweep, all_units

UNITS = all_units("", ["float32"])


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    swept = Sweep(UNITS, ["async"], jobs=min(2, os.cpu_count() or 1), max_samples=1).run()
    return {result["op"]: result for result in swept}


@pytest.mark.parametrize("name", [name for _, _, name in UNITS])
def test_same_as_on_the_cpu(results: dict[str, dict[str, Any]], name: str) -> None:
    result = results[name]
    assert not result["failures"], failure_line(result)
    assert result["checks"] or result["skipped"]
