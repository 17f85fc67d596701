"""The artifact cache of torch.compile: kept for the next process, private, checked before use."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_neuronx.compiler import backend, cache_directory
from torch_neuronx.compiler.cache_directory import UnsafeDirectoryError, check_private

SCRIPT = """
import json, signal, sys, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell runs in the background ignores it
from torch_neuronx.compiler import rebuilt_artifacts
x = torch.full((8, 8), 0.5, device="neuron", requires_grad=True)
y = torch.compile(lambda x: (x.exp() @ x).sin(), backend="neuron")(x)
y.sum().backward()
graphs = torch.neuron.get_dynamo_metrics()
print(json.dumps({
    "caches": [graph["cache"] for graph in graphs],
    "seconds": sum(graph["compile_seconds"] for graph in graphs),
    "sums": [y.sum().item(), x.grad.sum().item()],
    "rebuilt": rebuilt_artifacts(),
}))
"""


def start(cache: Path, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "TORCH_NEURONX_NEFF_CACHE_DIR": str(cache), **variables}
    return subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return json.loads(output)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A cache that one process has filled, and what it printed."""
    cache = tmp_path_factory.mktemp("cache")
    cache.chmod(0o700)
    return cache, finish(start(cache))


def test_the_next_process_finds_the_artifacts(filled: tuple[Path, dict[str, Any]]) -> None:
    cache, first = filled
    assert first["caches"] == ["miss", "miss"]
    second = finish(start(cache))
    assert second["caches"] == ["hit", "hit"]
    assert second["sums"] == first["sums"]
    assert second["rebuilt"] == first["rebuilt"] == 0
    assert second["seconds"] < first["seconds"] / 5


def test_everything_written_is_private(filled: tuple[Path, dict[str, Any]]) -> None:
    cache, _ = filled
    assert any(cache.rglob("*.so"))
    assert (cache / "compiled").stat().st_mode & 0o077 == 0


KINDS = ["*.main.so", "fxgraph/*/*/*", "aotautograd/*/*", "*.py", "*.main.cpp"]


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("*.main.so", "truncated"),
        ("fxgraph/*/*/*", "foreign"),
        *(pytest.param(kind, damage, marks=pytest.mark.slow) for kind in KINDS for damage in ("truncated", "foreign")),
    ],
)
def test_damaged_files_are_made_again(filled: tuple[Path, dict[str, Any]], kind: str, damage: str) -> None:
    cache, first = filled
    files = [path for path in cache.rglob(kind) if path.is_file() and not path.name.startswith(".")]
    assert files
    for path in files:
        content = path.read_bytes()
        path.unlink()  # a library that another process has mapped must not change under it
        path.write_bytes(content[: len(content) // 2] if damage == "truncated" else b"# not ours\n" + content)
    again = finish(start(cache))
    assert again["sums"] == first["sums"]
    assert again["rebuilt"] > 0 or kind == "*.main.cpp"  # a source is read only when its library is missing


@pytest.mark.slow  # compiles with nothing cached
def test_a_library_without_its_hash_is_not_loaded(filled: tuple[Path, dict[str, Any]]) -> None:
    cache, first = filled
    hashes = list(cache.rglob("*.so.sha256"))
    assert hashes
    for path in hashes:
        path.unlink()
        os.utime(path.with_suffix(""), (1, 1))  # long ago: nobody is about to note it
    again = finish(start(cache))
    assert again["sums"] == first["sums"]
    assert again["rebuilt"] == len(hashes)


@pytest.mark.slow  # compiles with nothing cached
def test_two_processes_at_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    results = [finish(process) for process in [start(tmp_path), start(tmp_path)]]
    assert results[0]["sums"] == results[1]["sums"]
    assert [result["rebuilt"] for result in results] == [0, 0]


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(UnsafeDirectoryError, match="others can write to the cache directory"):
        check_private(tmp_path)
    monkeypatch.setenv(cache_directory.DIRECTORY_VARIABLE, str(tmp_path))
    with pytest.raises(UnsafeDirectoryError, match="others can write"):
        cache_directory.cache_directory()
    inner = tmp_path / "inner"
    inner.mkdir(mode=0o700)
    with pytest.raises(UnsafeDirectoryError, match="others can replace the cache directory"):
        check_private(inner)


@pytest.mark.slow  # compiles with nothing cached
def test_nothing_is_kept_when_the_variable_says_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    result = finish(start(tmp_path, TORCH_NEURONX_DISABLE_NEFF_CACHE="1"))
    assert result["caches"] == ["miss", "miss"]
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_run_uncached(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = backend.compile_fx_inner
    tries: list[str] = []

    def fails_first(*args: Any, **kwargs: Any) -> Any:
        tries.append(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        if len(tries) == 1:
            raise RuntimeError("can't write") from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return inner(*args, **kwargs)

    monkeypatch.setattr(backend, "compile_fx_inner", fails_first)
    monkeypatch.setenv(cache_directory.DIRECTORY_VARIABLE, "")  # whatever it was, it comes back after the test
    cache_directory._warn_once.cache_clear()
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="compiled graphs are not kept for the next process: the disk is full"):
        result = torch.compile(lambda x: x * 11, backend="neuron")(torch.ones(3, device=device))
    assert result.tolist() == [11.0] * 3
    assert len(tries) == 2
    assert tries[0] != tries[1]
    cache_directory.use_cache_directory()


@pytest.mark.slow  # compiles with nothing cached
def test_interrupted_while_it_compiles(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    process = start(tmp_path)
    deadline = time.monotonic() + 240
    while not any(tmp_path.rglob("*.main.cpp")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) != 0
    again = finish(start(tmp_path))
    assert again["caches"] == ["miss", "miss"]
    assert finish(start(tmp_path))["sums"] == again["sums"]
