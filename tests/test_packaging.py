"""The package as pip sees it: metadata, entry points, what torch it is built for, and what is in the wheel."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import torch_neuronx
from torch_neuronx import _load

ROOT = Path(__file__).resolve().parents[1]
MINOR = ".".join(torch.__version__.split(".")[:2])


@pytest.fixture(scope="module")
def installed() -> importlib.metadata.Distribution:
    return importlib.metadata.distribution("torchneuron")


def test_metadata(installed: importlib.metadata.Distribution) -> None:
    assert installed.version == torch_neuronx.__version__
    assert installed.metadata["License-Expression"] == "Apache-2.0"
    assert {str(part) for part in installed.metadata["Requires-Python"].split(",")} == {">=3.11", "<3.15"}


def test_requires_the_torch_it_is_built_for(installed: importlib.metadata.Distribution) -> None:
    assert installed.requires is not None
    assert sorted(installed.requires) == ["numpy", f"torch=={MINOR}.*"]


def test_entry_point(installed: importlib.metadata.Distribution) -> None:
    (entry,) = (e for e in installed.entry_points if e.group == "torch.backends")
    assert entry.name == "torch_neuronx"
    assert entry.load() is _load.load


def run(*arguments: str | Path, cwd: Path = ROOT) -> str:
    result = subprocess.run([str(a) for a in arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """An interpreter whose environment has nothing installed, not even pip."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare")
    return tmp_path / "bare" / "bin" / "python"


ASK_FOR_TORCH = """
import sys
sys.path.insert(0, sys.argv[1])
import build_core
torch = build_core.find_torch()
print(torch.version if torch else None, build_core.torch_requirement())
"""


def test_build_takes_the_torch_of_the_environment() -> None:
    assert run(sys.executable, "-c", ASK_FOR_TORCH, ROOT).split() == [torch.__version__, f"torch=={MINOR}.*"]


def test_build_sees_past_pips_isolation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # pip hides the environment's packages with a sitecustomize in PYTHONPATH.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run(sys.executable, "-c", ASK_FOR_TORCH, ROOT).split() == [torch.__version__, f"torch=={MINOR}.*"]


def test_build_without_torch(bare_python: Path) -> None:
    assert run(bare_python, "-c", ASK_FOR_TORCH, ROOT).split() == ["None", "torch>=2.13,<2.15"]


def test_build_does_not_take_an_unsupported_torch(bare_python: Path) -> None:
    site = next((bare_python.parents[1] / "lib").glob("python*/site-packages"))
    (site / "torch" / "lib").mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text("raise AssertionError('torch is not imported to ask for its version')")
    (site / "torch" / "lib" / "libc10.so").write_bytes(b"__cxx11")
    version_file = site / "torch" / "version.py"
    version_file.write_text("__version__ = '2.9.1+cpu'\n")
    assert run(bare_python, "-c", ASK_FOR_TORCH, ROOT).split() == ["None", "torch>=2.13,<2.15"]
    version_file.write_text("__version__ = '2.14.0'\n")
    assert run(bare_python, "-c", ASK_FOR_TORCH, ROOT).split() == ["2.14.0", "torch==2.14.*"]


@pytest.mark.slow
def test_wheel(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("torchneuron-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = Path(torch_neuronx.__file__).parent
    sources = {
        f"torch_neuronx/{path.relative_to(package).as_posix()}"
        for pattern in ("*.py", "*.json", "py.typed")
        for path in package.rglob(pattern)
    }
    packed = {name for name in names if name.startswith("torch_neuronx/")}
    cores = {name for name in packed if name.endswith(".so")}
    assert packed - cores == sources | {"torch_neuronx/_built_for.py"}
    assert len(cores) == 1

    # Installed next to torch, without the source tree.
    target = tmp_path / "site"
    run(*pip, "install", "--no-deps", "--target", target, wheel)
    code = f"""
import sys
sys.path.insert(0, {str(target)!r})
import torch, torch_neuronx
assert torch_neuronx.__file__.startswith({str(target)!r}), torch_neuronx.__file__
assert torch.ones(3, device="neuron").sum().item() == 3
"""
    run(sys.executable, "-c", code, cwd=tmp_path)
