"""Builds the C++ core, torch_neuronx._C, from csrc/**/*.cpp with ninja: in parallel, and only what changed.

    python build_core.py                  build next to the Python sources, for an editable install
    python build_core.py --package DIR    copy the Python package to DIR/torch_neuronx and build the core in it

Variables: CXX (default g++), MAX_JOBS (default: the number of cores),
NEURON_BUILD_SANITIZE (address: ASan and UBSan; thread: TSan).
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "csrc"
STRESS = ROOT / "tests" / "sanitize"
PACKAGE = ROOT / "src" / "torch_neuronx"
TORCH_DEFAULT = "torch==2.13.0"
TORCH_RANGE = "torch>=2.13,<2.15"
TORCH_SUPPORTED = ((2, 13), (2, 14))

OPTIMIZED = ["-O2", "-g0"]
SANITIZERS = {
    "": OPTIMIZED,
    "address": ["-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize=vptr"],
    "thread": ["-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=thread"],
}
# Reading torch's headers and instantiating what they hold takes most of the time of a compilation, and twice as long
# with a sanitizer. So a sanitizer's build compiles each of these folders as one file; file-local names must differ.
JOINED = ("bindings", "device", "eager", "graph", "memory", "trace")

# Finds torch without importing it, which takes seconds and would load the device backends installed beside it.
LOCATE_TORCH = """
import importlib.util
spec = importlib.util.find_spec("torch")
print(spec.origin if spec is not None and spec.origin else "")
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


def _locate_torch(environment: dict[str, str]) -> Torch | None:
    # -P: a directory named torch in the working directory is not the torch we look for.
    command = [sys.executable, "-P", "-c", LOCATE_TORCH]
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    origin = result.stdout.strip()
    if not origin:
        return None
    root = Path(origin).parent
    version = re.search(r"^__version__ = '(.+)'$", (root / "version.py").read_text(), re.MULTILINE)
    if version is None:
        return None
    # The names of libstdc++'s new string and list carry the mark __cxx11.
    torch = Torch(version[1], root, cxx11_abi=b"__cxx11" in (root / "lib" / "libc10.so").read_bytes())
    return torch if torch.minor in TORCH_SUPPORTED else None


@functools.cache
def find_torch() -> Torch | None:
    """The supported torch of the environment that asked for the build, or else the one that this process sees.

    pip builds in an overlay that hides the environment's packages (PYTHONPATH with a sitecustomize of pip's). An
    interpreter started without that overlay sees the torch that the extension will run with.
    """
    outer = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONNOUSERSITE")}
    return _locate_torch(outer) or _locate_torch(dict(os.environ))


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


def _python_include() -> str:
    include = sysconfig.get_path("include")
    if not (Path(include) / "Python.h").exists():
        raise SystemExit(f"build_core: {include}/Python.h is missing. Install Python's headers (Debian: python3-dev)")
    return include


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
    system_includes = [include, include / "torch/csrc/api/include", _python_include()]
    cxxflags = [
        *mode,
        "-std=c++20 -fPIC -fvisibility=hidden -fvisibility-inlines-hidden -DNDEBUG",
        "-Wall -Wextra" if not sanitizer else "-w",  # warnings are for the usual build; these have false ones
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.cxx11_abi)} -DTORCH_EXTENSION_NAME=_C",
        "-Icsrc",
        *(f"-isystem '{path}'" for path in system_includes),
    ]
    # Installed, the libraries lie beside us. Elsewhere they need no finding: torch is imported before the core.
    ldflags = [
        *mode,
        "-shared",
        f"-L'{lib}' -Wl,-rpath,'$$ORIGIN/../torch/lib'",
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
        "rule program",
        f"  command = $cxx $in {' '.join(mode)} -L'{lib}' -Wl,-rpath,'{lib}' -ltorch -ltorch_cpu -lc10 -o $out",
        "  description = link $out",
        "rule link",
        "  command = $cxx $in $ldflags -o $out",
        "  description = link $out",
    ]

    def compiled(source: Path, output: Path) -> str:
        lines.append(f"build {_escape(build_dir / output)}: compile {_escape(source)}")
        return _escape(build_dir / output)

    bindings: list[str] = []  # objects that know Python
    core: list[str] = []  # all others
    for folder in sorted(path for path in SOURCES.iterdir() if path.is_dir()):
        objects = bindings if folder.name == "bindings" else core
        sources = [source.relative_to(ROOT) for source in sorted(folder.rglob("*.cpp"))]
        if sanitizer and folder.name in JOINED:
            joined = build_dir / f"{folder.name}.cpp"
            includes = [f'#include "{source.relative_to(SOURCES.name)}"\n' for source in sources]
            _write_if_changed(ROOT / joined, "".join(includes))
            objects.append(compiled(joined, Path(f"{folder.name}.o")))
        else:
            objects.extend(compiled(source, source.with_suffix(".o")) for source in sources)
    lines.append(f"build {_escape(build_dir / '_C.so')}: link {' '.join(bindings + core)}")
    if sanitizer:
        for source in sorted(STRESS.glob("*.cpp")):
            main = compiled(source.relative_to(ROOT), Path(f"{source.stem}.o"))
            lines.append(f"build {_escape(build_dir / source.stem)}: program {main} {' '.join(core)}")
    return "\n".join(lines) + "\n"


def _write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@dataclass(frozen=True)
class Variant:
    """One way of building the core: for which torch, with which sanitizer ("" for none)."""

    torch: Torch
    sanitizer: str

    @staticmethod
    def wanted() -> Variant:
        sanitizer = os.environ.get("NEURON_BUILD_SANITIZE", "")
        if sanitizer not in SANITIZERS:
            raise SystemExit(f"build_core: NEURON_BUILD_SANITIZE={sanitizer!r} is not one of {sorted(SANITIZERS)}")
        return Variant(_require_torch(), sanitizer)

    @property
    def build_dir(self) -> Path:
        """Relative to the project."""
        suffix = f"-{self.sanitizer}" if self.sanitizer else ""
        return Path("build") / f"core-{sys.implementation.cache_tag}-torch{self.torch.version}{suffix}"


def build() -> None:
    """Compiles and links what is out of date."""
    variant = Variant.wanted()
    ninja_file = variant.build_dir / "build.ninja"
    _write_if_changed(ROOT / ninja_file, _ninja_file(variant.torch, variant.build_dir, variant.sanitizer))

    # Paths relative to the project keep the compiler's output, and so ccache's keys, the same in every checkout.
    environment = {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1", **os.environ}
    jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
    command = [_find_ninja(), "-f", str(ninja_file), "-j", jobs]
    with open(ROOT / variant.build_dir / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two builds at once would write the same files
        status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    if status != 0:
        raise SystemExit("build_core: the C++ core failed to build; the first error above says why")


def _copy(built: Path, target: Path) -> None:
    if not target.exists() or target.stat().st_mtime_ns != built.stat().st_mtime_ns:
        # Replaced, not overwritten: a running process may have the old file mapped.
        partial = target.with_suffix(".partial")
        shutil.copy2(built, partial)
        partial.replace(target)


def deliver(package: Path) -> None:
    """Puts what `build` built into a directory with the Python package, with a note for which torch it was built.

    The stress programs of a sanitizer's build go beside that directory.
    """
    variant = Variant.wanted()
    package.mkdir(parents=True, exist_ok=True)
    _copy(ROOT / variant.build_dir / "_C.so", package / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}")
    for source in STRESS.glob("*.cpp") if variant.sanitizer else ():
        _copy(ROOT / variant.build_dir / source.stem, package.parent / source.stem)
    note = '"""Written by the build: what the core beside this file was compiled for."""\n\nTORCH = "{}"\n'
    _write_if_changed(package / "_built_for.py", note.format(variant.torch.version))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the C++ core torch_neuronx._C.")
    parser.add_argument("--package", type=Path, metavar="DIR", help="copy the package to DIR and build there")
    package = parser.parse_args().package
    target = PACKAGE
    if package is not None:
        target = package.resolve() / PACKAGE.name
        ignored = shutil.ignore_patterns("*.so", "__pycache__", "_built_for.py")
        shutil.copytree(PACKAGE, target, ignore=ignored, dirs_exist_ok=True)
    build()
    deliver(target)


if __name__ == "__main__":
    main()
