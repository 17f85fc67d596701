"""Builds the C++ core, torch_neuronx._C, from csrc/**/*.cpp with ninja: in parallel, and only what changed.

    python build_core.py                  build next to the Python sources, for an editable install
    python build_core.py --package DIR    copy the Python package to DIR/torch_neuronx and build the core in it

Variables: CXX (default g++), MAX_JOBS (default: the number of cores),
NEURON_BUILD_SANITIZE (address: ASan and UBSan; thread: TSan).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "csrc"
PACKAGE = ROOT / "src" / "torch_neuronx"
TORCH_DEFAULT = "torch==2.13.0"
TORCH_RANGE = "torch>=2.13,<2.15"
TORCH_SUPPORTED = ((2, 13), (2, 14))

OPTIMIZED = ["-O2", "-g0"]
SANITIZERS = {
    "": OPTIMIZED,
    "address": ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize=vptr"],
    "thread": ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=thread"],
}

# Runs in the interpreter that owns the torch. Backends are not loaded: an older build of ours may be installed there.
QUERY = """
import json, os
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch
print(json.dumps([torch.__version__, os.path.dirname(torch.__file__), torch.compiled_with_cxx11_abi()]))
"""


@dataclass(frozen=True)
class Torch:
    """The torch that the core is compiled and linked against."""

    version: str
    root: Path
    cxx11_abi: bool

    @property
    def minor(self) -> tuple[int, int]:
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


def _query_torch(environment: dict[str, str]) -> Torch | None:
    # -P: a directory named torch in the working directory is not the torch we look for.
    command = [sys.executable, "-P", "-c", QUERY]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        if "No module named 'torch'" not in result.stderr:
            print(f"build_core: the installed torch cannot be imported:\n{result.stderr}", file=sys.stderr)
        return None
    version, root, cxx11_abi = json.loads(result.stdout.splitlines()[-1])
    torch = Torch(version, Path(root), cxx11_abi)
    return torch if torch.minor in TORCH_SUPPORTED else None


@functools.cache
def find_torch() -> Torch | None:
    """The supported torch of the environment that asked for the build, or else the one that this process sees.

    pip builds in an overlay that hides the environment's packages (PYTHONPATH with a sitecustomize of pip's). An
    interpreter started without that overlay sees the torch that the extension will run with.
    """
    outer = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONNOUSERSITE")}
    return _query_torch(outer) or _query_torch(dict(os.environ))


def torch_requirement() -> str:
    """What the built package requires: torch's C++ interface is kept within a minor version only."""
    torch = find_torch()
    return TORCH_RANGE if torch is None else "torch=={}.{}.*".format(*torch.minor)


def _require_torch() -> Torch:
    torch = find_torch()
    if torch is None:
        raise SystemExit(
            f"build_core: no supported torch ({TORCH_RANGE}) in this environment. Install it first: "
            f"{sys.executable} -m pip install {TORCH_DEFAULT}"
        )
    return torch


def _find_ninja() -> str:
    try:
        import ninja  # the package from pip brings the program along
    except ImportError:
        program = shutil.which("ninja")
    else:
        program = str(Path(ninja.BIN_DIR) / "ninja")
    if program is None:
        raise SystemExit(f"build_core: ninja is missing. Install it: {sys.executable} -m pip install ninja")
    return program


def _escape(path: str | Path) -> str:
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def _ninja_file(torch: Torch, build_dir: Path, sanitizer: str) -> str:
    include, lib = torch.root / "include", torch.root / "lib"
    mode = SANITIZERS[sanitizer]
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which("ccache") and "ccache" not in compiler:
        compiler = f"ccache {compiler}"
    system_includes = [include, include / "torch/csrc/api/include", sysconfig.get_path("include")]
    cxxflags = [
        *mode,
        "-std=c++20 -fPIC -fvisibility=hidden -fvisibility-inlines-hidden -DNDEBUG",
        "-Wall -Wextra -Wno-unused-parameter" if sanitizer else "-Wall -Wextra",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.cxx11_abi)} -DTORCH_EXTENSION_NAME=_C",
        "-Icsrc",
        *(f"-isystem '{path}'" for path in system_includes),
    ]
    # Next to torch in site-packages the libraries are found by $ORIGIN; an editable install needs the absolute path.
    ldflags = [
        *mode,
        "-shared",
        f"-L'{lib}' -Wl,-rpath,'$$ORIGIN/../torch/lib' -Wl,-rpath,'{lib}'",
        "-ltorch_python -ltorch -ltorch_cpu -lc10",
    ]
    lines = [
        "ninja_required_version = 1.5",
        f"builddir = {_escape(build_dir)}",
        f"cxx = {compiler}",
        f"cxxflags = {' '.join(cxxflags)}",
        f"ldflags = {' '.join(ldflags)}",
        "rule compile",
        "  command = $cxx -MD -MF $out.d $cxxflags -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = compile $in",
        "rule link",
        "  command = $cxx $in $ldflags -o $out",
        "  description = link $out",
    ]
    objects = []
    for source in sorted(SOURCES.rglob("*.cpp")):
        relative = source.relative_to(ROOT)
        objects.append(_escape(build_dir / relative.with_suffix(".o")))
        lines.append(f"build {objects[-1]}: compile {_escape(relative)}")
    lines.append(f"build {_escape(build_dir / '_C.so')}: link {' '.join(objects)}")
    return "\n".join(lines) + "\n"


def _write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def build(output: Path) -> None:
    """Brings `output`, the extension module's file, up to date, and notes beside it which torch it was built for."""
    torch = _require_torch()
    sanitizer = os.environ.get("NEURON_BUILD_SANITIZE", "")
    if sanitizer not in SANITIZERS:
        raise SystemExit(f"build_core: NEURON_BUILD_SANITIZE={sanitizer!r} is not one of {sorted(SANITIZERS)}")
    variant = f"-{sanitizer}" if sanitizer else ""
    build_dir = Path("build") / f"core-{sys.implementation.cache_tag}-torch{torch.version}{variant}"
    ninja_file = build_dir / "build.ninja"
    _write_if_changed(ROOT / ninja_file, _ninja_file(torch, build_dir, sanitizer))

    # Paths relative to the project keep the compiler's output, and so ccache's keys, the same in every checkout.
    environment = {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1", **os.environ}
    jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
    command = [_find_ninja(), "-f", str(ninja_file), "-j", jobs]
    if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode != 0:
        raise SystemExit("build_core: the C++ core failed to build; the first error above says why")

    output.parent.mkdir(parents=True, exist_ok=True)
    built = ROOT / build_dir / "_C.so"
    if not output.exists() or output.stat().st_mtime_ns != built.stat().st_mtime_ns:
        # Replaced, not overwritten: a running process may have the old file mapped.
        partial = output.with_suffix(".partial")
        shutil.copy2(built, partial)
        partial.replace(output)
    _write_if_changed(
        output.parent / "_built_for.py",
        f'"""Written by the build: what the core beside this file was compiled for."""\n\nTORCH = "{torch.version}"\n',
    )


def core_path(package: Path) -> Path:
    """Where the extension module lies in a directory with the Python package."""
    return package / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the C++ core torch_neuronx._C.")
    parser.add_argument("--package", type=Path, help="copy the Python package into this directory, build the core there")
    package = parser.parse_args().package
    target = PACKAGE
    if package is not None:
        target = package.resolve() / PACKAGE.name
        ignored = shutil.ignore_patterns("*.so", "__pycache__", "_built_for.py")
        shutil.copytree(PACKAGE, target, ignore=ignored, dirs_exist_ok=True)
    build(core_path(target))


if __name__ == "__main__":
    main()
