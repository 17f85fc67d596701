"""`python -m torch_neuronx.parity` on whole scripts: what it finds, what it says, how it exits."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from torch_neuronx.parity import command


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def all(self) -> str:
        return self.out + self.err


class Parity:
    """The command, called in a folder of its own. The runs of the script are processes of their own."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capture = capture

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def __call__(self, *arguments: str) -> Result:
        code = command.main(["--threads", "1", *arguments])
        return Result(code, *self.capture.readouterr())


@pytest.fixture
def parity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Parity:
    monkeypatch.chdir(tmp_path)
    return Parity(tmp_path, capsys)


TRAINING = """
    import argparse, logging, sys, time
    import torch
    from torch import nn

    def main():
        parser = argparse.ArgumentParser()
        parser.add_argument("--steps", type=int, default=3)
        steps = parser.parse_args().steps
        logging.basicConfig(level=logging.INFO)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        x = torch.randn(32, 8)
        start = time.time()
        for step in range(steps):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"\\rstep {step} of {steps}, {time.time() - start:.4f} s", end="")
            logging.info("step %d loss %.4f", step, loss.item())
        print()
        print(x, model[0].weight.device.type)
        sys.exit()

    if __name__ == "__main__":
        main()
"""


def test_a_script_that_knows_no_device_is_the_same_on_both(parity: Parity) -> None:
    # Initialisation, data and dropout are drawn on the device, and must be what the CPU draws.
    parity.write("train.py", TRAINING)
    result = parity("--json", "result.json", "train.py", "--steps", "4")
    assert result.code == 0, result.all
    assert "largest absolute difference: 0" in result.out
    report = json.loads((parity.folder / "result.json").read_text())
    assert report["equal"]
    assert report["comparison"]["compared"]["loss"] == 4
    assert report["comparison"]["compared"]["parameter"] == 8 * 16 + 16 + 16 + 1
    assert report["comparison"]["compared"]["message"] == 8
    assert [run["bytes_allocated"] > 0 for run in report["runs"]] == [False, True]


def test_a_difference_is_found_and_placed(parity: Parity) -> None:
    parity.write(
        "differs.py",
        """
        import torch
        x = torch.ones(3, requires_grad=True, device=torch.get_default_device())
        factor = 1.5 if x.device.type == "cpu" else 1.5000001
        (x.sum() * factor).backward()
        print("ends with", 1.0)
        """,
    )
    result = parity("--default-device", "always", "differs.py")
    assert result.code == 1, result.all
    assert "the first of them: loss at differs.py:5, 1st time: 4.5 and 4.500000" in result.out
    within = parity("--default-device", "always", "--tolerance", "1e-6", "differs.py")
    assert within.code == 0, within.all


def test_the_device_is_shown_through_torch_accelerator(parity: Parity) -> None:
    # torch_neuronx is imported on the CPU, too, as a script with parity.log() does: the device stays hidden there.
    parity.write(
        "agnostic.py",
        """
        import sys
        import torch
        from torch_neuronx import parity
        found = torch.accelerator.current_accelerator(check_available=True)
        assert (found is not None) == torch.accelerator.is_available() == (torch.accelerator.device_count() > 0)
        device = found or torch.device("cpu")
        parity.log("ones", torch.ones(2).to(device))
        print("chosen:", device, "default:", torch.get_default_device(), "argument:", sys.argv[1])
        """,
    )
    result = parity("--show-output", "agnostic.py", "{device}")
    assert result.code == 0, result.all
    assert "chosen: cpu default: cpu argument: cpu" in result.out
    assert "chosen: neuron default: cpu argument: neuron" in result.out


def test_a_script_in_a_package_and_the_processes_it_spawns(parity: Parity) -> None:
    parity.write("package/__init__.py", "")
    parity.write("package/helper.py", "def square(x): return x * x")
    parity.write(
        "package/train.py",
        """
        import multiprocessing
        import helper
        from package import helper as absolute
        if __package__:  # a process that Python itself spawns knows the script by its path only
            from .helper import square

        def twice(x):
            return 2 * helper.square(x)

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(sum(pool.map(twice, range(4))), square(2), absolute.square(3), __package__)
        """,
    )
    result = parity("--devices", "cpu", "cpu", "--show-output", "package/train.py")
    assert result.code == 0, result.all
    assert "28 4 9 package" in result.out


def test_a_module_can_be_run(parity: Parity) -> None:
    parity.write("package/__init__.py", "")
    parity.write("package/train.py", "import sys; print(__spec__.name, len(sys.argv))")
    result = parity("--devices", "cpu", "cpu", "--show-output", "-m", "package.train", "x")
    assert result.code == 0, result.all
    assert "package.train 2" in result.out


def test_a_script_that_fails_is_told_apart_from_one_that_differs(parity: Parity) -> None:
    parity.write("fails.py", "print(1)\nraise ValueError('no luck')")
    result = parity("--devices", "cpu", "cpu", "fails.py")
    assert result.code == 2
    assert "exit code 1 on cpu, 1 on cpu" in result.err
    assert 'fails.py", line 2' in result.err
    assert "no luck" in result.err
    assert "child.py" not in result.err


@pytest.mark.parametrize(
    ("script", "options", "reason"),
    [
        ("device = 'cpu'\nprint(1)", (), "made no tensor on neuron"),
        ("print('nothing to see')", ("--devices", "cpu", "cpu"), "nothing to compare"),
        ("import time; time.sleep(60)", ("--devices", "cpu", "cpu", "--timeout", "0.1"), "did not end within 0.1"),
        ("print(1)", ("--ignore", "("), "not a regular expression"),
    ],
)
def test_what_cannot_be_compared_is_said(parity: Parity, script: str, options: tuple[str, ...], reason: str) -> None:
    parity.write("script.py", script)
    result = parity(*options, "script.py")
    assert result.code == 2, result.all
    assert reason in result.err


def test_a_missing_script_is_named(parity: Parity) -> None:
    result = parity("nowhere.py")
    assert (result.code, "no such script: nowhere.py" in result.err) == (2, True)
