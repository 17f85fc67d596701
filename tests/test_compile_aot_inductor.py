"""torch.export and AOTInductor on neuron: an exported program becomes a package that neuron tensors are given to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

MILLISECOND = 1_200_000  # cycles of torch.neuron._sleep at 1.2 GHz


def package(program: torch.export.ExportedProgram, path: Path) -> str:
    return torch._inductor.aoti_compile_and_package(program, package_path=str(path / "model.pt2"))


def load(path: str, **arguments: Any) -> Any:
    return torch._inductor.aoti_load_package(path, **arguments)


def exported(module: nn.Module, *inputs: Any, **arguments: Any) -> torch.export.ExportedProgram:
    return torch.export.export(module.to("neuron"), inputs, **arguments)


class Tied(nn.Module):
    """Two layers, large enough to be no constants in the code, with one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.second = nn.Linear(12, 12)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.second(self.first(x).relu()), self.first.bias


class Case(NamedTuple):
    path: str
    x: Tensor  # (3, 12), on the host, as the results
    results: tuple[Tensor, Tensor]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A package of `Tied`, and what uncompiled code gives."""
    model, x = Tied(), torch.randn(3, 12)
    logits, bias = model(x)
    program = exported(model, x.to("neuron"))
    return Case(package(program, tmp_path_factory.mktemp("package")), x, (logits.detach(), bias.detach().cpu()))


def check(results: Any, expected: tuple[Tensor, ...], device: str = "neuron:0") -> None:
    for result, wanted in zip(results, expected, strict=True):
        assert str(result.device) == device
        torch.testing.assert_close(result.cpu(), wanted, rtol=2e-5, atol=2e-5)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 4))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor, *, scale: Tensor) -> dict[str, Tensor]:
        self.seen += x.shape[0]
        logits = self.layers(x) * scale
        return {"logits": logits, "best": logits.argmax(-1), "seen": self.seen.clone()}


@pytest.mark.slow
def test_batches_of_any_size_and_a_buffer_that_changes(tmp_path: Path) -> None:
    model = Classifier().eval()
    x, scale = torch.randn(5, 8), torch.tensor(2.0)
    parts = (x, x[:3], x[1:])
    expected = [model(part, scale=scale) for part in parts]
    model.seen.zero_()
    program = torch.export.export(
        model.to("neuron"),
        (x.to("neuron"),),
        {"scale": scale.to("neuron")},
        dynamic_shapes={"x": {0: torch.export.Dim("batch", max=64)}, "scale": None},
    )
    loaded = load(package(program, tmp_path))
    assert loaded.get_metadata()["AOTI_DEVICE_KEY"] == "neuron"
    torch.neuron.clear_op_tracking()
    for part, wanted in zip(parts, expected, strict=True):
        results = loaded(part.to("neuron"), scale=scale.to("neuron"))
        assert results.keys() == wanted.keys()
        check(results.values(), tuple(wanted.values()))
    graphs = [name for name in torch.neuron.get_executed_ops() if name.startswith("neuron::graph.")]
    assert graphs == ["neuron::graph.aot_inductor_model"] * 3


@pytest.mark.slow
def test_another_process_loads_it(case: Case, tmp_path: Path) -> None:
    torch.save((case.x, case.results), tmp_path / "case.pt")
    code = f"""
import torch
x, expected = torch.load({str(tmp_path / "case.pt")!r})
model = torch._inductor.aoti_load_package({case.path!r})
for _ in range(2):
    for result, wanted in zip(model(x.to("neuron")), expected, strict=True):
        assert result.device.type == "neuron"
        torch.testing.assert_close(result.cpu(), wanted, rtol=2e-5, atol=2e-5)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "mismatch" not in run.stderr
    assert "outdated" not in run.stderr


class Changes(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y.add_(x)
        return x.t(), y.sin()


@pytest.mark.slow
def test_order_streams_and_changed_inputs(tmp_path: Path) -> None:
    """Calls are launches: in order with what is pending on the stream, also when nobody waits."""
    x, y = torch.ones(300, 200, device="neuron"), torch.zeros(300, 200, device="neuron")
    loaded = load(package(exported(Changes(), x, y), tmp_path))
    stream = torch.neuron.Stream()
    with torch.neuron.stream(stream):
        x, y = torch.ones(300, 200, device="neuron"), torch.zeros(300, 200, device="neuron")
        for _ in range(5):
            x = x * 2
            turned, sine = loaded(x, y)
        total = turned.sum() + sine.sum()
    stream.synchronize()
    expected = torch.full((300, 200), 2.0 + 4 + 8 + 16 + 32)
    assert torch.equal(y.cpu(), expected)
    torch.testing.assert_close(total.cpu(), torch.tensor(32.0 * 60000) + expected.sin().sum())


@pytest.mark.slow
def test_a_call_does_not_wait(case: Case) -> None:
    """It reads its inputs when its turn comes: after what is pending before it, and before what follows."""
    loaded = load(case.path)
    for _ in range(3):  # the first rounds learn the shapes of results, and wait
        x = torch.zeros(3, 12, device="neuron")
        on_device = case.x.to("neuron")
        torch.neuron.synchronize()
        torch.neuron._sleep(200 * MILLISECOND)
        x.add_(on_device)
        results = loaded(x)
        x.zero_()
        finished = torch.neuron.current_stream().query()
        check(results, case.results)
    assert not finished


class Positive(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x > 0] * 2


@pytest.mark.slow
def test_shapes_that_depend_on_data(tmp_path: Path) -> None:
    values = [torch.tensor([1.0, -1, 2, -2]), torch.tensor([-1.0, -1, -2, 5]), torch.tensor([1.0, 1, 2, 2])]
    loaded = load(package(exported(Positive(), values[0].to("neuron")), tmp_path))
    for value in values:
        assert torch.equal(loaded(value.to("neuron")).cpu(), value[value > 0] * 2)


@pytest.mark.slow
def test_other_weights(case: Case) -> None:
    loaded = load(case.path)
    assert len(loaded.get_constant_fqns()) == 3  # the matrix is there once
    other = Tied()
    logits, bias = other(case.x)
    state = other.state_dict()
    weights = {name: state[name].to("neuron") for name in loaded.get_constant_fqns()}
    loaded.load_constants(weights, check_full_update=True)
    check(loaded(case.x.to("neuron")), (logits.detach(), bias.detach()))
    with pytest.raises(NotImplementedError, match="user_managed"):
        loaded.load_constants(weights, check_full_update=True, user_managed=True)


@pytest.mark.slow
def test_a_package_ends_while_its_launches_are_pending(case: Case) -> None:
    x = case.x.to("neuron")
    results = []
    for _ in range(3):
        loaded = load(case.path)
        results.append(loaded(x))
        torch.neuron._sleep(20 * MILLISECOND)
        results.extend(loaded(x) for _ in range(3))
        del loaded
    for result in results:
        check(result, case.results)


@pytest.mark.slow
def test_the_second_device(case: Case, second_device: torch.device) -> None:
    x = case.x.to(second_device)
    check(load(case.path, device_index=1)(x), case.results, "neuron:1")
    with torch.neuron.device(1):
        check(load(case.path)(x), case.results, "neuron:1")


@pytest.mark.slow
def test_wrong_inputs_are_refused(case: Case, second_device: torch.device) -> None:
    loaded = load(case.path)
    with pytest.raises(RuntimeError, match="takes 1 tensors"):
        loaded.loader.boxed_run([case.x.to("neuron")] * 2)
    for device in ("cpu", "neuron:1"):
        with pytest.raises(RuntimeError, match=f"input 0 is on {device}, the package was loaded for neuron:0"):
            loaded(case.x.to(device))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        loaded(case.x[:, 1:].to("neuron"))
    check(loaded(case.x.to("neuron")), case.results)


def test_random_operators_are_refused(tmp_path: Path) -> None:
    program = exported(nn.Dropout(0.5).train(), torch.ones(3, device="neuron"))
    with pytest.raises(RuntimeError, match="would draw from the host's generator"):
        package(program, tmp_path)


def test_a_plain_library_is_refused() -> None:
    program = exported(nn.Tanh(), torch.ones(3, device="neuron"))
    with pytest.raises(NotImplementedError, match="aoti_compile_and_package"):
        torch._inductor.aot_compile(program.module(), (torch.ones(3, device="neuron"),))


@pytest.mark.slow
def test_packages_for_the_cpu_stay_what_they_are(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    model = nn.Linear(4, 4)
    loaded = load(package(torch.export.export(model, (x,)), tmp_path))
    assert loaded.get_metadata()["AOTI_DEVICE_KEY"] == "cpu"
    assert "neuron_graph" not in loaded.get_metadata()
    torch.testing.assert_close(loaded(x), model(x).detach())


@pytest.mark.slow
def test_the_example_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    guide = (Path(__file__).parent.parent / "docs/compile.md").read_text(encoding="utf-8")
    section = guide.split("\n## Ahead of time\n")[1]
    exec(section.split("```python\n")[1].split("```")[0], {})
    assert capsys.readouterr().out == "torch.Size([5, 4])\n"
