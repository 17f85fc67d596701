"""The documents say what is there: names, variables, files and links exist, and the code in them runs."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch

import torch_neuronx
from torch_neuronx import _load, chip, parity, profiler

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
ALL_PAGES = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
TEXT = {page: page.read_text(encoding="utf-8") for page in ALL_PAGES}
TIMEOUT = 120  # seconds; a generous bound for a busy machine


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


# ---- public names ----------------------------------------------------------------------------------------------------


def test_every_name_of_the_device_is_in_the_device_guide() -> None:
    text = TEXT[ROOT / "docs/device.md"]
    assert [name for name in torch.neuron.__all__ if not mentions(text, name)] == []


@pytest.mark.parametrize("module", [torch_neuronx, profiler, parity, chip], ids=lambda module: module.__name__)
def test_every_public_name_is_in_some_page(module: ModuleType) -> None:
    names = _load.public_names() if module is torch_neuronx else module.__all__
    text = "\n".join(TEXT[page] for page in DOCS)
    assert [name for name in names if not mentions(text, name)] == []


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_names_in_the_text_exist(page: Path) -> None:
    missing = []
    for path in re.findall(r"\b(?:torch\.neuron|torch_neuronx)(?:\.\w+)+", TEXT[page]):
        first, *parts = path.removeprefix("torch.neuron.").removeprefix("torch_neuronx.").split(".")
        found: Any = torch.neuron if path.startswith("torch.neuron") else torch_neuronx
        for part in (first, *parts):
            if isinstance(found, ModuleType) and not hasattr(found, part):
                try:  # a submodule that nothing has imported yet
                    importlib.import_module(f"{found.__name__}.{part}")
                except ImportError:
                    missing.append(path)
                    break
            found = getattr(found, part, None)
            if found is None:
                missing.append(path)
                break
    assert missing == []


class Documented(NamedTuple):
    name: str
    thing: Any


def public_things() -> Iterator[Documented]:
    """Functions and classes that users call, and the methods and properties that we define on the latter."""
    seen = set()
    for module in (
        torch.neuron,
        torch.neuron.memory,
        torch.neuron.random,
        torch.neuron.streams,
        profiler,
        parity,
        chip,
    ):
        for name in getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]:
            thing = getattr(module, name)
            ours = getattr(thing, "__module__", "").startswith("torch_neuronx")
            if not ours or not callable(thing) or thing in seen:
                continue
            seen.add(thing)
            yield Documented(name, thing)
            if inspect.isclass(thing):
                for member, value in vars(thing).items():
                    function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                    if not member.startswith("_") and inspect.isfunction(function):
                        yield Documented(f"{name}.{member}", function)


def test_every_public_function_has_a_docstring() -> None:
    things = list(public_things())
    assert len(things) > 80
    assert [name for name, thing in things if not (thing.__doc__ or "").strip()] == []


def raised_names(function: Any) -> set[str]:
    """The names of the exceptions in `raise` statements of the function itself."""
    tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(function)))
    calls = [node.exc.func for node in ast.walk(tree) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    return {call.id for call in calls if isinstance(call, ast.Name)}


def test_docstrings_name_the_errors_that_are_raised() -> None:
    missing = []
    for name, thing in public_things():
        if not inspect.isfunction(thing):
            continue
        missing += [(name, error) for error in raised_names(thing) if error not in (thing.__doc__ or "")]
    assert missing == []


# ---- environment variables -------------------------------------------------------------------------------------------

ENVIRONMENT = TEXT[ROOT / "docs/environment.md"]
OURS = re.compile(r"(?:NEURON|TORCH_NEURONX|NKI|XLA)_[A-Z0-9_]+")
# Named in environment.md and read by others than this code: PyTorch, and the libraries that compute.
READ_ELSEWHERE = {"TORCH_DEVICE_BACKEND_AUTOLOAD", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTORCH_ALLOC_CONF"}


def variables_in_python(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and OURS.fullmatch(node.value):
            found.add(node.value)
        is_get = isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.environ.get", "os.getenv")
        is_item = isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ"
        key = node.args[0] if is_get else node.slice if is_item else None
        if isinstance(key, ast.Constant):
            found.add(key.value)
    return found


def variables_in_core(path: Path) -> set[str]:
    source = path.read_text(encoding="utf-8")
    read = re.findall(r'(?:getenv|switch_is_on)\(\s*"(\w+)"', source)
    return {*read, *(text for text in re.findall(r'"(\w+)"', source) if OURS.fullmatch(text))}


def variables_in_code() -> set[str]:
    python = [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / name for name in ("build_core.py", "build_backend.py", "setup.py")),
    ]
    core = [path for pattern in ("*.h", "*.cpp") for path in (ROOT / "csrc").rglob(pattern)]
    return set().union(*map(variables_in_python, python), *map(variables_in_core, core))


def test_every_variable_that_is_read_is_documented() -> None:
    variables = variables_in_code()
    assert {"NEURON_LAUNCH_BLOCKING", "TORCH_NEURONX_GUARD_MEMORY", "MAX_JOBS"} <= variables
    assert sorted(variable for variable in variables if not mentions(ENVIRONMENT, variable)) == []


def test_documented_variables_do_what_their_section_says() -> None:
    effective, without_effect = ENVIRONMENT.split("\n## Variables of the real device that have no effect", 1)
    variable = re.compile(r"`([A-Z][A-Z0-9]*_[A-Z0-9_]+|CXX)(?:=[^`]*)?`")
    code = variables_in_code()
    assert sorted(set(variable.findall(effective)) - code - READ_ELSEWHERE) == []
    assert sorted(set(variable.findall(without_effect)) & code) == []


# ---- code in the text ------------------------------------------------------------------------------------------------

FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)


def runnable_source(page: Path) -> str:
    """The page's Python blocks, each on the lines that it has in the page, so that an error names them."""
    text = TEXT[page]
    lines: list[str] = []
    for block in FENCE.finditer(text):
        if block["language"] == "python" and block["reason"] is None:
            start = text.count("\n", 0, block.start("code"))
            lines += [""] * (start - len(lines)) + block["code"].splitlines()
    return "\n".join(lines) + "\n" if lines else ""


@pytest.mark.parametrize("page", [page for page in PAGES if runnable_source(page)], ids=name_of)
def test_code_runs(page: Path, tmp_path: Path) -> None:
    script = tmp_path / page.with_suffix(".py").name
    script.write_text(runnable_source(page), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, script.name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert result.returncode == 0, f"{name_of(page)}\n{result.stdout}\n{result.stderr}"


def test_most_code_is_run() -> None:
    blocks = [block for page in PAGES for block in FENCE.finditer(TEXT[page]) if block["language"] == "python"]
    skipped = [block["reason"] for block in blocks if block["reason"] is not None]
    assert len(blocks) > 12
    assert len(skipped) <= len(blocks) // 4
    assert all(len(reason) > 10 for reason in skipped)


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets |= {"sanitize-address", "sanitize-thread"}  # share a rule
    named = re.findall(r"(?:^|`)(?:\w+=\S+ )?make ([a-z][a-z-]+)", TEXT[page], re.MULTILINE)
    assert sorted(set(named) - targets) == []


# ---- links and files -------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """What a heading is called in a link, as GitHub makes it."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_links_resolve(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXT[page]):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    assert broken == []


# Files of a reader, in examples.
OF_THE_READER = {
    # written to TORCH_NEURONX_DEBUG_DIR
    "neuron_graph.py",
    "host_graph.py",
    "generated.py",
    "steps.txt",
    "train.py",
    "script.py",
    "memory.html",
    "trace.json",
    "snapshot.pickle",
    "out_of_memory.pickle",
    "bench.json",
}
IN_THE_REPOSITORY = re.compile(
    r"(?<![\w/.])(?:csrc|src|tests|docs|examples|benchmarks|requirements|\.ci)/[\w./*-]*[\w*/]"
)
FILE_NAME = re.compile(r"(?<![\w/.*:-])[\w/-]+\.(?:py|cpp|h|md|sh|supp|json|toml|txt|html|pickle)\b(?!\()")


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_files_exist(page: Path) -> None:
    tracked = {
        str(path.relative_to(ROOT))
        for folder in ("csrc", "src", "tests", "docs", "examples", "benchmarks", "requirements", ".")
        for path in ((ROOT / folder).glob("*") if folder == "." else (ROOT / folder).rglob("*"))
        if path.is_file()
    }
    missing = [path for path in IN_THE_REPOSITORY.findall(TEXT[page]) if not any(ROOT.glob(path.rstrip("/")))]
    for name in FILE_NAME.findall(TEXT[page]):
        if name.startswith("build/") or name in OF_THE_READER:
            continue
        if not any(path == name or path.endswith(f"/{name}") for path in tracked):
            missing.append(name)
    assert sorted(set(missing)) == []


def test_the_index_has_every_page() -> None:
    index = TEXT[ROOT / "docs/README.md"]
    assert [page.name for page in DOCS if page.name != "README.md" and f"]({page.name})" not in index] == []
