"""Training on neuron gives, bit by bit, the losses and parameters that training on the CPU gives.

The models are those of the examples: what a user runs is what is compared.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_neuronx

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))
from cnn_digits import ResNet
from digits import Digits, load_digits
from gpt import GPT, GPTConfig
from lstm_text import CharacterLSTM
from text import TextData, batch

FAST, SLOW = 20, 200  # training steps
Batch = tuple[Tensor, Tensor]


@dataclass
class Task:
    """A model and its data, made on the CPU."""

    model: nn.Module
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]
    batch: Callable[[torch.Generator], Batch]


def mlp(dropout: float) -> Task:
    layers = [nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Dropout(dropout), nn.Linear(96, 10)]
    return Task(nn.Sequential(*layers), classification_loss, digit_batch)


def cnn(dropout: float) -> Task:
    model = ResNet(width=8)
    model.head = nn.Sequential(nn.Dropout(dropout), model.head)
    return Task(model, classification_loss, digit_batch)


def lstm(dropout: float) -> Task:
    model = CharacterLSTM(vocabulary=128, width=32, layers=2, dropout=dropout)
    return Task(model, lambda model, x, y: cross_entropy(model(x)[0], y), text_batch)


def gpt(dropout: float) -> Task:
    model = GPT(GPTConfig(vocabulary_size=128, context=32, layers=2, heads=2, width=32, dropout=dropout))
    return Task(model, lambda model, x, y: cross_entropy(model(x), y), text_batch)


TASKS = {task.__name__: task for task in (mlp, cnn, lstm, gpt)}


def classification_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(model(images), labels)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


@functools.cache
def digits() -> Digits:
    return load_digits()[0]


@functools.cache
def text() -> Tensor:
    return TextData.load(vocabulary_size=128).train


def digit_batch(generator: torch.Generator) -> Batch:
    train = digits()
    picked = torch.randint(len(train), (16,), generator=generator)
    return train.images[picked], train.labels[picked]


def text_batch(generator: torch.Generator) -> Batch:
    return batch(text(), 4, 32, generator)


OPTIMIZERS = {
    "sgd": lambda parameters, **how: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, **how),
    "adam": lambda parameters, **how: torch.optim.Adam(parameters, lr=3e-3, **how),
    "adamw": lambda parameters, **how: torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.1, amsgrad=True, **how),
}
IMPLEMENTATIONS = {"single": {"foreach": False, "fused": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def train(
    task: str,
    optimizer: str,
    implementation: str,
    device: torch.device,
    steps: int,
    dropout: float = 0.0,
    autocast: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """The loss of each step and the parameters at the end, on the CPU."""
    torch.manual_seed(0)
    setting = TASKS[task](dropout)
    model = setting.model.to(device)
    step_taker = OPTIMIZERS[optimizer](model.parameters(), **IMPLEMENTATIONS[implementation])
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(steps):
        inputs, targets = (part.to(device) for part in setting.batch(generator))
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
            loss = setting.loss(model, inputs, targets)
        step_taker.zero_grad()
        loss.backward()
        step_taker.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu(), [parameter.detach().cpu() for parameter in model.parameters()]


def assert_same_training(device: torch.device, *arguments: str, steps: int, **options: float | bool) -> None:
    expected, expected_parameters = train(*arguments, device=torch.device("cpu"), steps=steps, **options)
    losses, parameters = train(*arguments, device=device, steps=steps, **options)
    assert losses.isfinite().all()
    assert losses[-5:].mean() < losses[:5].mean(), "it did not learn: equal losses would prove little"
    different = (losses != expected).nonzero().flatten().tolist()
    assert not different, (
        f"the loss of step {different[0]} is {losses[different[0]].item()!r} on {device} "
        f"and {expected[different[0]].item()!r} on the CPU; {len(different)} of {steps} differ"
    )
    assert all(torch.equal(a, b) for a, b in zip(parameters, expected_parameters, strict=True))


def some_fast(*covering: tuple[str, str, str]) -> list[object]:
    """All combinations: the covering ones for a few steps, and every one for many steps in the slow target."""
    every = [(t, o, i) for t in TASKS for o in OPTIMIZERS for i in IMPLEMENTATIONS]
    return [
        *(pytest.param(*case, FAST, id="-".join((*case, str(FAST)))) for case in covering),
        *(pytest.param(*case, SLOW, id="-".join((*case, str(SLOW))), marks=pytest.mark.slow) for case in every),
    ]


STEPS = [FAST, pytest.param(SLOW, marks=pytest.mark.slow)]


@pytest.mark.parametrize(
    ("task", "optimizer", "implementation", "steps"),
    some_fast(
        *(("mlp", optimizer, implementation) for optimizer in OPTIMIZERS for implementation in IMPLEMENTATIONS),
        ("cnn", "sgd", "foreach"),
        ("cnn", "adam", "fused"),
        ("lstm", "adam", "single"),
        ("lstm", "adamw", "foreach"),
        ("gpt", "sgd", "fused"),
        ("gpt", "adamw", "foreach"),
        ("gpt", "adamw", "fused"),
    ),
)
def test_every_loss_is_the_cpus(
    device: torch.device, task: str, optimizer: str, implementation: str, steps: int
) -> None:
    assert_same_training(device, task, optimizer, implementation, steps=steps)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("task", TASKS)
def test_with_autocast(device: torch.device, task: str, steps: int) -> None:
    with torch_neuronx.host_autocast(True):
        if task == "lstm" and (refusal := why_the_cpu_refuses_an_lstm_in_bfloat16()):
            with pytest.raises(RuntimeError, match=re.escape(refusal)):
                train(task, "adamw", "foreach", device, steps, autocast=True)
        else:
            assert_same_training(device, task, "adamw", "foreach", steps=steps, autocast=True)


def why_the_cpu_refuses_an_lstm_in_bfloat16() -> str | None:
    """oneDNN has LSTM layers in bfloat16 only for some processors; autocast on the CPU asks for them on every one."""
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            nn.LSTM(8, 8)(torch.ones(2, 2, 8))
    except RuntimeError as error:
        return str(error)
    return None


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("task", TASKS)
def test_with_dropout_in_host_rng_mode(device: torch.device, task: str, steps: int) -> None:
    with torch_neuronx.host_rng(True):
        assert_same_training(device, task, "adamw", "foreach", steps=steps, dropout=0.2)


@pytest.mark.parametrize("task", TASKS)
def test_initialised_on_the_device_in_host_rng_mode(device: torch.device, task: str) -> None:
    torch.manual_seed(0)
    expected = TASKS[task](0.0).model
    torch.manual_seed(0)
    with torch_neuronx.host_rng(True), device:
        model = TASKS[task](0.0).model
    assert {parameter.device.type for parameter in model.parameters()} == {"neuron"}
    for parameter, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(parameter.cpu(), other)


def wide_step(device: torch.device) -> list[Tensor]:
    """A loss and its gradients of layers so wide that kernels do split their work between threads."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU(), nn.Linear(512, 512)).to(device)
    inputs = torch.randn(256, 512).to(device)
    loss = model(inputs).square().sum()
    loss.backward()
    return [loss.detach().cpu(), *(parameter.grad.cpu() for parameter in model.parameters())]


@pytest.fixture
def thread_count() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("counts", [(1,), (2,), (2, 1), (1, 2)])
def test_with_any_number_of_threads(
    device: torch.device, thread_count: Callable[[int], None], counts: tuple[int, ...]
) -> None:
    # How the work is split changes the order of sums, forward and, on threads of autograd's own, backward.
    for count in counts:
        thread_count(count)
        results = [wide_step(torch.device("cpu")), wide_step(device)]
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_thread_count_set_in_another_thread_stays_there(
    device: torch.device, thread_count: Callable[[int], None]
) -> None:
    # The thread of a DataLoader that pins memory does this: its copies must not slow down everything else.
    thread_count(2)
    thread = threading.Thread(target=torch.set_num_threads, args=(1,))
    thread.start()
    thread.join()
    assert torch.get_num_threads() == 2
    results = [wide_step(torch.device("cpu")), wide_step(device)]
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
