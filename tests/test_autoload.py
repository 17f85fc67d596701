"""How the package is loaded: by `import torch`, by itself, in threads, without its core, and how long that takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest
import torch

import torch_neuronx

PACKAGE = Path(torch_neuronx.__file__).parent
CORE = f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
MAX_ADDED_IMPORT_MS = 50

USE = "assert torch.ones(2, device='neuron').sum().item() == 2"


def run(code: str, **environment: str) -> str:
    """Runs `code` in a new interpreter; returns what it printed. Fails with what it wrote when it fails."""
    inherited = {k: v for k, v in os.environ.items() if k != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    result = subprocess.run(
        command, env={**inherited, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import torch", id="torch alone"),
        pytest.param(
            "import torch_neuronx, torch, importlib; importlib.reload(torch_neuronx)", id="package first, twice"
        ),
        pytest.param("import torch_neuronx.streams, torch", id="a submodule first"),
    ],
)
def test_import(code: str) -> None:
    run(f"{code}\nassert torch.neuron.is_available()\n{USE}")


def test_without_autoload() -> None:
    code = f"""
        import torch
        assert not hasattr(torch, "neuron")
        import torch_neuronx
        assert torch.neuron.is_available()
        {USE}
    """
    run(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


@pytest.mark.parametrize("autoload", ["0", "1"])
def test_import_in_a_thread(autoload: str) -> None:
    code = f"""
        import threading
        thread = threading.Thread(target=__import__, args=("torch_neuronx",))
        thread.start()
        thread.join()
        import torch
        {USE}
    """
    run(code, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)


def test_two_threads_import_at_once() -> None:
    # Each thread holds the import lock that the other one needs: torch imports us and we import torch.
    code = f"""
        import sys, threading
        sys.setswitchinterval(1e-5)
        errors = []
        barrier = threading.Barrier(2)

        def load(name):
            barrier.wait()
            try:
                __import__(name)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=load, args=(name,)) for name in ("torch", "torch_neuronx")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        import torch
        {USE}
    """
    run(code)


def test_names_are_mirrored() -> None:
    assert torch_neuronx.Stream is torch.neuron.Stream
    assert torch_neuronx.device is torch.neuron.device
    missing = [name for name in torch.neuron.__all__ if getattr(torch_neuronx, name) is not getattr(torch.neuron, name)]
    assert not missing
    assert set(torch.neuron.__all__) <= set(dir(torch_neuronx))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = torch_neuronx.nonsense


# ---- when the core cannot be loaded ----------------------------------------------------------------------------------


@pytest.fixture
def copied_package(tmp_path: Path) -> Path:
    """A copy of the package, without the core, that is found before the installed one when PYTHONPATH is its parent."""
    target = tmp_path / "torch_neuronx"
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return target


BROKEN_CORES = {
    "missing": "core is not built",
    "not a library": "core does not load",
    "built for another torch": "built for torch 2.99.0, but torch",
}


def break_core(package: Path, how: str) -> None:
    if how == "not a library":
        (package / CORE).write_bytes(b"this is no shared library")
    elif how == "built for another torch":
        shutil.copy2(PACKAGE / CORE, package / CORE)
        (package / "_built_for.py").write_text('TORCH = "2.99.0"\n')


@pytest.mark.parametrize("how", BROKEN_CORES)
def test_broken_core_leaves_torch_working(copied_package: Path, how: str) -> None:
    break_core(copied_package, how)
    code = f"""
        import torch
        import torch_neuronx

        assert torch_neuronx.__file__.startswith({str(copied_package)!r})
        assert torch.neuron.is_available() is False
        assert torch.neuron.device_count() == 0
        assert torch.accelerator.is_available() is False
        torch.manual_seed(1)
        model = torch.nn.Linear(2, 2)
        model(torch.ones(1, 2)).sum().backward()
        with torch.random.fork_rng():
            torch.rand(1)

        uses = [
            lambda: torch.neuron.init(),
            lambda: torch.neuron.synchronize(),
            lambda: torch.ones(2, device="neuron"),
            lambda: torch.tensor([1.0], device="neuron:0"),
            lambda: torch.ones(2).to("neuron"),
            lambda: model.to(torch.device("neuron")),
            lambda: torch_neuronx.Stream(),
            lambda: exec("from torch_neuronx import Event"),
        ]
        for use in uses:
            try:
                use()
            except RuntimeError as error:
                assert {BROKEN_CORES[how]!r} in str(error), error
                assert isinstance(error.__cause__, ImportError), error.__cause__
            else:
                raise AssertionError("no error")
        try:
            torch.neuron.Stream
        except AttributeError as error:
            assert {BROKEN_CORES[how]!r} in str(error), error
        else:
            raise AssertionError("no error")
        assert not hasattr(torch.neuron, "Stream")
        import torch_neuronx.chip
    """
    run(code, PYTHONPATH=str(copied_package.parent))


def test_another_backend_has_the_device_type() -> None:
    code = """
        import torch
        torch.utils.rename_privateuse1_backend("other")
        import torch_neuronx
        assert torch.neuron.is_available() is False
        assert "other" in torch_neuronx._load.reason(), torch_neuronx._load.reason()
        assert torch.device("other").type == "other"
    """
    run(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


# ---- how long it takes -----------------------------------------------------------------------------------------------


def added_import_ms() -> float:
    """Milliseconds of processor time that loading the device adds to `import torch`.

    Processor time, because other work on the machine makes it wait; its own work is what we answer for.
    """
    code = """
        import time, torch
        start = time.process_time()
        import torch_neuronx
        print((time.process_time() - start) * 1000)
        assert torch.neuron.is_available()
    """
    # With compiled modules kept, as for any user; the first run writes them.
    return float(run(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTHONDONTWRITEBYTECODE=""))


def test_import_time() -> None:
    assert min(added_import_ms() for _ in range(3)) <= MAX_ADDED_IMPORT_MS
