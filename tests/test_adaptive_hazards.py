"""What goes wrong where execution is deferred and joined: each hazard in adaptive, verify and strict mode, and on the CPU.

The fast tests run them one after the other in this process, the slow ones each in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Hazard = Callable[[str], list[object]]  # gets the device; returns values and messages
HAZARDS: dict[str, Hazard] = {}
ROUNDS = 5  # the first teach signatures, and are computed at the call
RANDOM: set[str] = set()  # a device has random numbers of its own: strict mode is what these are compared with


def hazard(function: Hazard) -> Hazard:
    HAZARDS[function.__name__] = function
    return function


def random_hazard(function: Hazard) -> Hazard:
    RANDOM.add(function.__name__)
    return hazard(function)


def numbers(device: str, *shape: int, seed: int = 0) -> Tensor:
    """Then the device is busy for some time, so that what follows is queued."""
    result = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)
    occupy(device)
    return result


def occupy(device: str) -> None:
    if device == "neuron":
        busy = torch.ones(600, 600, device=device)
        busy @ busy


def small_model(device: str, width: int = 16) -> nn.Module:
    torch.manual_seed(1)
    layers = (nn.Linear(8, width), nn.ReLU(), nn.BatchNorm1d(width), nn.Linear(width, 4))
    return nn.Sequential(*layers).to(device)


def train(
    model: nn.Module, device: str, batches: list[int], rate: Callable[[int], float] = lambda i: 0.01
) -> list[Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    losses = []
    for i, batch in enumerate(batches):
        optimizer.param_groups[0]["lr"] = rate(i)
        loss = model(numbers(device, batch, 8, seed=i)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters())]


@hazard
def in_place_on_the_base_and_on_sibling_views(device: str) -> list[object]:
    base = numbers(device, 6, 50)
    low, high, all_of_it = base[:3], base[3:], base.view(-1)
    before = base * 2 + 1
    low.mul_(3).add_(1)
    between = high * 2 - low
    base.sub_(1).mul_(0.5)
    all_of_it[10:20].add_(7)
    high.add_(low).relu_()
    return [before, between, base, low, high]


@hazard
def a_view_of_a_pending_value(device: str) -> list[object]:
    x = numbers(device, 40, 30)
    y = x * 2
    part = y[5:]
    z = y + 1
    y.mul_(3).add_(2)
    return [part, z, y.t() * 2, part.sub(1) * y[5:]]


@hazard
def strided_writes(device: str) -> list[object]:
    x = numbers(device, 20, 30)
    x[::2].mul_(2).add_(1)
    x.t()[3].sub_(4)
    x.mul_(0.5).neg_()
    x[:, 1::3].add_(x[:, 0::3]).mul_(2)
    return [x]


@hazard
def data_swaps(device: str) -> list[object]:
    x, other = numbers(device, 33), numbers(device, 33, seed=1)
    y = x * 2 + 1
    x.data = other * 3
    z = x.add_(1) * y
    y.data = x.data.mul_(2)
    return [x, y, z, other]


@hazard
def set_and_resize(device: str) -> list[object]:
    x, other = numbers(device, 64), numbers(device, 8, seed=1)
    y = x * 2 + 1
    x.set_(other)
    x.mul_(2).add_(1)
    y.resize_(16)
    y.mul_(3).sub_(1)
    y.resize_(4, 4)
    return [x, other, y]


@hazard
def storages_and_addresses(device: str) -> list[object]:
    x = numbers(device, 64)
    y = x * 2 + 1
    same = y.untyped_storage().data_ptr() == y.view(8, 8).untyped_storage().data_ptr()
    again = torch.empty(0, device=device).set_(y.untyped_storage(), 3, (20,), (2,))
    y.mul_(2).add_(1)
    again.sub_(5).mul_(2)
    return [same, y, again]


@hazard
def reads_by_the_host(device: str) -> list[object]:
    x = numbers(device, 10)
    read: list[object] = []
    for i in range(4):
        x = x * 1.5 + 0.1
        read += [x[i].item(), x.tolist(), str((x * 2).cpu()), bool((x > 0).any()), x.add_(1).cpu().numpy().copy()[2]]
    return read


@hazard
def round_trips(device: str) -> list[object]:
    x = numbers(device, 100)
    y = (x * 2 + 1).cpu() * 3
    x.add_(1).mul_(2)
    z = y.to(device) - x
    x.copy_(y)
    x.mul_(2).add_(z)
    return [x, z, y]


@random_hazard
def random_numbers_between(device: str) -> list[object]:
    torch.manual_seed(3)
    x = numbers(device, 50)
    y = x * 2 + 1
    y = torch.nn.functional.dropout(y, 0.5) * 2 + x
    noise = torch.rand_like(y)
    y.mul_(noise).add_(1)
    torch.rand(7, device=device)  # dropped
    return [
        y,
        torch.randn(9, device=device) * 2 + 1,
        y.bernoulli(0.5) if y.numel() == 0 else torch.randperm(9, device=device),
    ]


@hazard
def dropped_results(device: str) -> list[object]:
    x = numbers(device, 5000)
    for _ in range(20):
        x * 2 + 1
        (x - 1).mul_(3)
    kept = x * 2
    for _ in range(20):
        kept.add_(1).mul_(0.9)
        del_me = kept * 3 + 1
        del del_me
    return [x, kept]


@hazard
def version_counters(device: str) -> list[object]:
    x = numbers(device, 20).requires_grad_()
    y = (x * 2 + 1).relu()
    z = y * y
    y.add_(1)
    versions = (x._version, y._version, z._version)
    try:
        z.sum().backward()
    except RuntimeError as error:
        return [versions, "modified by an inplace operation" in str(error), y, z]
    return ["no error"]


@hazard
def an_error_at_the_call(device: str) -> list[object]:
    x = numbers(device, 20)
    y = x * 2
    try:
        y.add_(torch.ones(21, device=device))
    except RuntimeError as error:
        message = str(error).splitlines()[0]
    occupy(device)
    return [message, y.add_(1).mul_(2), x]


@hazard
def an_error_amid_a_run(device: str) -> list[object]:
    """On the device it is raised later, once, and what was queued around it is computed all the same."""
    x, wrong = numbers(device, 20), torch.tensor([99], device=device)
    y = x * 2 + 1
    try:
        x[wrong]
        z = y * 3 - 1
        torch.accelerator.synchronize() if device == "neuron" else None
    except IndexError:
        z = y * 3 - 1
    return [y, z, z.add_(1) * 2]


@hazard
def hooks_that_look_at_values(device: str) -> list[object]:
    seen: list[object] = []
    model = small_model(device)
    for layer in model:
        layer.register_forward_hook(lambda module, inputs, output: seen.append(output.sum().item()))
        layer.register_full_backward_hook(lambda module, given, result: seen.append(result[0].abs().max().item()))
    x = numbers(device, 5, 8).requires_grad_()
    y = x * 2 + 1
    y.register_hook(lambda gradient: seen.append(gradient.tolist()) or gradient * 2 + 1)
    model(y).square().sum().backward()
    return [*seen, x.grad]


@hazard
def a_graph_used_twice(device: str) -> list[object]:
    x = numbers(device, 30).requires_grad_()
    y = ((x * 2 + 1) * x).relu().sum()
    (first,) = torch.autograd.grad(y, x, retain_graph=True)
    (second,) = torch.autograd.grad(y, x, retain_graph=True)
    y.backward()
    return [first, second, x.grad]


@hazard
def double_backward(device: str) -> list[object]:
    x = numbers(device, 30).requires_grad_()
    y = (x * x * 2 + x / 3).mul(x).sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    (first * first + 1).sum().backward()
    return [first.detach(), x.grad]


@hazard
def checkpoints(device: str) -> list[object]:
    model = small_model(device)
    x = numbers(device, 6, 8).requires_grad_()
    y = checkpoint(lambda x: model(x * 2 + 1).relu() * 3, x, use_reentrant=False)
    (y * y).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


@hazard
def another_batch_size_each_step(device: str) -> list[object]:
    return list(train(small_model(device), device, [3, 5, 2, 9, 4, 7, 3]))


@hazard
def alternating_models(device: str) -> list[object]:
    first, second = small_model(device), small_model(device, 24)
    results: list[object] = []
    for _ in range(3):
        results += train(first, device, [4, 4]) + train(second, device, [4, 6])
    return results


@hazard
def numbers_that_change(device: str) -> list[object]:
    model = small_model(device)
    return list(train(model, device, [4] * 8, rate=lambda i: 0.01 * (i + 1) if i % 2 else i * 1e-4))


@hazard
def thousands_of_shapes(device: str) -> list[object]:
    memory, total = numbers(device, 3000), torch.zeros(1, device=device)
    for n in range(1, 3000):
        x = memory[:n] * 2
        x = x + n
        total.add_(x[-1])
    return [total]


@hazard
def a_loop_without_a_read(device: str) -> list[object]:
    x, step = numbers(device, 1000), numbers(device, 1000, seed=1)
    for i in range(3000):
        x.mul_(0.99).add_(step, alpha=0.01)
        x = x - i * 1e-5
    return [x]


@hazard
def threads(device: str) -> list[object]:
    results: list[Tensor | None] = [None] * 4

    def work(index: int) -> None:
        x = numbers(device, 1000, seed=index)
        for i in range(50):
            x = (x * 0.9 + index).relu() - i
            x.div_(2).add_(1)
        results[index] = x

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return list(results)


@hazard
def streams_and_events(device: str) -> list[object]:
    x = numbers(device, 5000)
    if device == "cpu":
        y = x * 2 + 1
        z = y * 3 - 1
        return [z.add_(1) * x, y]
    side, done = torch.Stream(device), torch.Event(device)
    y = x * 2 + 1
    done.record()
    with side:
        side.wait_event(done)
        z = y * 3 - 1
        z.record_stream(side)
        done = side.record_event()
    torch.accelerator.current_stream().wait_event(done)
    return [z.add_(1) * x, y]


@hazard
def shapes_that_values_decide(device: str) -> list[object]:
    x = numbers(device, 200)
    y = x * 2 + 1
    positive = y[y > 0] * 2 + 1
    where = (y * 3 - 1).nonzero()
    y.masked_fill_(y < 0, 0).add_(1).mul_(2)
    return [positive, where, y, torch.unique((y * 2).round())]


@hazard
def results_given(device: str) -> list[object]:
    x, out = numbers(device, 50), numbers(device, 50, seed=1)
    torch.mul(x, 2, out=out)
    torch.add(out, 1, out=out)
    y = out * x
    y = y * 2 + 1
    torch.sub(y, out, out=x)
    return [x, y, out]


@hazard
def training_in_low_precision(device: str) -> list[object]:
    x = numbers(device, 300).bfloat16()
    y = (x * 0.3 + 0.7).relu() / 1.3 - 0.1
    half = (x.half() * 0.3 + 0.7).relu() / 1.3 - 0.1
    y.mul_(y).add_(x, alpha=0.3)
    return [y, half, (y + half) * 2]


def run(name: str, device: str) -> list[object]:
    return [value.detach().cpu() if isinstance(value, Tensor) else value for value in HAZARDS[name](device)]


def assert_same(actual: list[object], expected: list[object]) -> None:
    assert len(actual) == len(expected)
    for mine, theirs in zip(actual, expected, strict=True):
        if isinstance(theirs, Tensor):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
        else:
            assert mine == theirs


def check(name: str, mode: str) -> None:
    assert torch.neuron.get_eager_mode() == mode
    torch.neuron.reset_adaptive_stats()
    for _ in range(ROUNDS):
        actual = run(name, "neuron")
    statistics = torch.neuron.adaptive_stats()
    assert statistics["mismatches"] == 0
    assert statistics["launches_saved"] > 0 or name == "thousands_of_shapes"  # where each call is a signature's first
    with torch.neuron.eager_mode("strict"):
        assert_same(actual, run(name, "neuron"))
    if name not in RANDOM:
        assert_same(actual, run(name, "cpu"))


@pytest.fixture(params=["adaptive", "verify"])
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


@pytest.mark.parametrize("name", HAZARDS)
def test_hazard(name: str, mode: str) -> None:
    with torch.neuron.eager_mode(mode):
        check(name, mode)


def in_own_process(code: str, mode: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],  # Python 3.12 warns of fork beside threads
        check=False,
        env={**os.environ, "TORCH_NEURONX_EAGER_MODE": mode},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", HAZARDS)
def test_hazard_in_a_process_of_its_own(name: str, mode: str) -> None:
    ended = in_own_process(f"from tests.test_adaptive_hazards import check; check({name!r}, {mode!r})", mode)
    assert ended.returncode == 0, ended.stderr


FULL_QUEUE = """
import os, torch
busy, x = torch.ones(900, 900, device="neuron"), torch.ones(5000, device="neuron")
for _ in range(3):
    busy @ busy
    for i in range(200):
        x = x * 0.5 + i
"""


@pytest.mark.parametrize(
    ("then", "code"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("os._exit(0) if os.fork() == 0 else os.wait(); x = x * 2; assert x.cpu().isfinite().all()", 0),
    ],
    ids=["end", "exit", "fork"],
)
def test_the_end_of_a_process_with_launches_queued(then: str, code: int) -> None:
    ended = in_own_process(FULL_QUEUE + then, "adaptive")
    assert (ended.returncode, ended.stderr) == (code, "")
