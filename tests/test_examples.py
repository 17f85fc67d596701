"""Every example runs to its end on both devices; each checks its own result and says so by its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torch_neuronx.parity import command

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SCRIPTS = {
    "mlp_digits.py": ["--epochs", "6"],
    "cnn_digits.py": [],
    "lstm_text.py": [],
    "amp_training.py": [],
    "dataloader_workers.py": [],
    "streams_and_events.py": [],
    "checkpoint_resume.py": [],
    "multi_device.py": [],
}
SMALL_GPT = [
    *("--steps", "20", "--batch", "4", "--context", "32", "--width", "32", "--layers", "2", "--heads", "2"),
    *("--vocabulary", "200", "--compare-steps", "10"),
]
TIMEOUT = 180  # seconds; a generous bound for a machine that is busy with other things


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # these models are too small for more
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment, check=False)
    assert result.returncode == 0, f"{script} exited with {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def test_no_example_is_left_out() -> None:
    runnable = {path.name for path in EXAMPLES.glob("*.py") if '__name__ == "__main__"' in path.read_text()}
    assert runnable == {*SCRIPTS, "train_gpt.py"}


@pytest.mark.parametrize("script", SCRIPTS)
def test_example(script: str) -> None:
    assert run(script, "--device", "neuron", *SCRIPTS[script])


# The others speak of the device, or train under autocast, whose rules on the CPU are not those of accelerators.
@pytest.mark.slow
@pytest.mark.parametrize(
    "script", ["mlp_digits.py", "cnn_digits.py", "lstm_text.py", "checkpoint_resume.py", "dataloader_workers.py"]
)
def test_example_learns_what_it_learns_on_the_cpu(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["--threads", "1", str(EXAMPLES / script), "--device", "{device}", *SCRIPTS[script]]
    assert command.main(arguments) == command.EQUAL, "".join(capfd.readouterr())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_train_gpt(tmp_path: Path, dtype: str) -> None:
    output = run("train_gpt.py", *SMALL_GPT, "--dtype", dtype, "--out", str(tmp_path))
    assert "largest loss difference between cpu and neuron over 10 steps: 0\n" in output
    assert "MiB in use" in output
    results = json.loads((tmp_path / "losses.json").read_text())
    assert len(results["training"]) == 20
    assert results["training"][-1] < results["training"][0] - 0.1
    assert results["held_out"] < results["training"][0] - 0.1
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    checkpoint = torch.load(tmp_path / "checkpoint.pt", map_location="cpu", weights_only=True)
    assert checkpoint["config"]["vocabulary_size"] == 200
    assert all(weight.device.type == "cpu" for weight in checkpoint["model"].values())
