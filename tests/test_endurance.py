"""Long runs: memory of host and device stays flat, the queue stays bounded, errors leave a working device behind.

The long version of each test is marked slow; the default one does the same for seconds.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

from torch_neuronx import _C

neuron = torch.neuron
PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 2**20
# Launches that a stream holds at most (csrc/stream/stream.h).
RING = 1024
MILLISECOND = 1_200_000  # cycles of torch.neuron._sleep at 1.2 GHz


def resident() -> int:
    """The host memory of this process in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def nothing_allocated() -> Iterator[None]:
    """Device memory that a test takes is given back when its objects are gone."""
    gc.collect()
    neuron.synchronize()
    before = neuron.memory_allocated()
    yield
    gc.collect()
    neuron.synchronize()
    assert neuron.memory_allocated() == before


def assert_flat(rounds: int, work: Callable[[], None], growth: int) -> None:
    """Repeats `work`; after the first third, neither the host's nor the device's memory may grow."""
    for _ in range(max(rounds // 3, 1)):
        work()
    gc.collect()
    neuron.synchronize()
    host, device, reserved = resident(), neuron.memory_allocated(), neuron.memory_reserved()
    for _ in range(rounds - rounds // 3):
        work()
        assert neuron.memory_allocated() <= device + 16 * MIB  # what is queued, at most
    gc.collect()
    neuron.synchronize()
    assert neuron.memory_allocated() == device
    assert neuron.memory_reserved() <= reserved + 2 * MIB
    if "NEURON_SANITIZER" not in os.environ:  # a sanitizer keeps freed memory for a while, and memory about memory
        assert resident() - host <= growth


# ---- many operators ------------------------------------------------------------------------------------------------------


def mixed_operators() -> None:
    """1,000 operator calls of many kinds, most of them small."""
    a = torch.ones(16, 16, device="neuron")
    b = torch.full((16,), 0.5, device="neuron")
    ids = torch.arange(8, device="neuron")
    total = torch.zeros((), device="neuron")
    for step in range(71):
        c = a @ a
        c = (c + b).relu_()
        d = torch.softmax(c, -1)
        d[2:5, ::2] += 1
        e = d.t().reshape(-1)[ids]
        f = torch.cat([e, e])
        total += f.sum() / (step + 1)
        a = a.clone().mul_(0.5)
        a.clamp_(0.25, 2)
    assert torch.isfinite(total).item()


@pytest.mark.parametrize("hand_off", ["measured", "always"])
def test_operators(nothing_allocated, hand_off: str) -> None:
    _many_operators(60, hand_off)


@pytest.mark.slow
@pytest.mark.parametrize("hand_off", ["measured", "always"])
def test_a_million_operators(nothing_allocated, hand_off: str) -> None:
    _many_operators(1000, hand_off)


def _many_operators(thousands: int, hand_off: str) -> None:
    _C._set_hand_off(hand_off)
    try:
        before = _C._launch_statistics()
        assert_flat(thousands, mixed_operators, growth=8 * MIB)
        after = _C._launch_statistics()
        calls = sum(after[key] - before[key] for key in ("inline", "enqueued"))
        assert calls >= thousands * 1000
    finally:
        _C._set_hand_off("measured")


@pytest.mark.parametrize("operators", [20_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_ever_new_shapes(nothing_allocated, operators: int) -> None:
    """Programs with ever new shapes fill the table of signatures; it must stay bounded, and so must memory."""
    numbers = iter(range(10**9))
    base = torch.ones(1200, device="neuron")

    def work() -> None:
        for _ in range(operators // 200):
            n = next(numbers)
            base[: n % 1009 + 1].as_strided((n % 7 + 1,), (n // 7 % 11 + 1,)).add(1)

    assert_flat(100, work, growth=160 * MIB)
    assert _C._launch_statistics()["signatures"] <= 65_536


def test_the_queue_is_bounded(nothing_allocated) -> None:
    """A caller that runs ahead waits when the ring is full, so what is queued holds a bounded amount of memory."""
    x = torch.ones(1000, device="neuron")
    neuron._sleep(MILLISECOND)
    x + 1  # learns the shape on a busy stream
    neuron.synchronize()
    before = neuron.memory_allocated()
    neuron._sleep(300 * MILLISECOND)
    start = time.perf_counter()
    done_in_time = 0
    for _ in range(3 * RING):
        x + 1
        done_in_time += time.perf_counter() - start < 0.25
        assert neuron.memory_allocated() - before <= (RING + 2) * 4096
    assert 0 < done_in_time <= RING
    assert time.perf_counter() - start >= 0.25


# ---- training ------------------------------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 32)
        self.attention = torch.nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)
        self.norm = torch.nn.LayerNorm(32)
        self.head = torch.nn.Linear(32, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(F.gelu(self.norm(x)))


@pytest.mark.parametrize("steps", [50, pytest.param(5000, marks=pytest.mark.slow)])
def test_training(nothing_allocated, steps: int) -> None:
    torch.manual_seed(0)
    model = Model().to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens = torch.randint(0, 50, (4, 17))
    losses: list[float] = []

    def work() -> None:
        for _ in range(max(steps // 50, 1)):
            batch = tokens.to("neuron", non_blocking=True)
            with torch.autocast("neuron", dtype=torch.bfloat16):
                logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        losses.append(loss.item())

    assert_flat(50, work, growth=16 * MIB)
    assert losses[-1] < 0.9 * losses[0]


# ---- errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [100, pytest.param(5000, marks=pytest.mark.slow)])
def test_exceptions_in_kernels(nothing_allocated, times: int) -> None:
    x = torch.arange(8.0, device="neuron")
    bad = torch.tensor([3, 99], device="neuron")
    good = torch.tensor([3, 1], device="neuron")
    held = neuron.memory_allocated()
    _C._set_hand_off("always")
    try:
        for _ in range(times):
            with pytest.raises(IndexError, match="index 99 is out of bounds"):
                x[bad]
                for _ in range(5):
                    x + 1
                neuron.synchronize()
            with pytest.raises(RuntimeError, match="positive-definite"):
                torch.linalg.cholesky(-torch.eye(3, device="neuron"))
                neuron.synchronize()
            assert x[good].tolist() == [3.0, 1.0]
            assert neuron.memory_allocated() <= held + MIB
    finally:
        _C._set_hand_off("measured")


class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        raise ArithmeticError("a user's mistake")


def _raise(*_: object) -> None:
    raise ArithmeticError("a user's mistake")


@pytest.mark.parametrize("where", ["tensor hook", "function", "saved tensor hook", "module hook", "accumulate hook"])
@pytest.mark.parametrize("times", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_exceptions_in_autograd(nothing_allocated, where: str, times: int) -> None:
    weight = torch.ones(8, 8, device="neuron", requires_grad=True)
    for _ in range(times):
        x = torch.ones(4, 8, device="neuron", requires_grad=True)
        with pytest.raises(ArithmeticError, match="a user's mistake"):
            if where == "saved tensor hook":
                with torch.autograd.graph.saved_tensors_hooks(_raise, lambda t: t):
                    y = (x @ weight).exp()
            else:
                y = (x @ weight).exp()
            if where == "tensor hook":
                y.register_hook(_raise)
            elif where == "function":
                y = FailsInBackward.apply(y)
            elif where == "accumulate hook":
                x.register_post_accumulate_grad_hook(_raise)
            elif where == "module hook":
                layer = torch.nn.Linear(8, 8, device="neuron")
                layer.register_full_backward_hook(_raise)
                y = layer(y)
            y.sum().backward()
        weight.grad = None
        (x * 3).detach().sum().item()
        weight.sum().backward()
        assert weight.grad.sum().item() == 64
        weight.grad = None


@pytest.mark.parametrize("rounds", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_exceptions_in_other_threads(nothing_allocated, rounds: int) -> None:
    """A thread that dies with work pending does not disturb the others, and its error reaches who synchronizes."""
    _C._set_hand_off("always")
    results: list[float] = []
    errors: list[str] = []

    def failing(stream: torch.Stream) -> None:
        with neuron.stream(stream):
            x = torch.arange(8.0, device="neuron")
            try:
                x[torch.tensor([50], device="neuron")]
                _raise()
            except (ArithmeticError, IndexError) as error:
                errors.append(type(error).__name__)

    def working(stream: torch.Stream) -> None:
        with neuron.stream(stream):
            x = torch.ones(100, device="neuron")
            for _ in range(200):
                x = x * 1.0 + 0.5
            stream.synchronize()
            results.append(x.sum().item())

    try:
        for _ in range(rounds):
            streams = [neuron.Stream() for _ in range(4)]
            threads = [
                threading.Thread(target=failing if i % 2 else working, args=(stream,))
                for i, stream in enumerate(streams)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for stream in streams:
                try:
                    stream.synchronize()
                except IndexError as error:
                    errors.append(str(error)[:28])
    finally:
        _C._set_hand_off("measured")
    assert results == [100 * 101.0] * (2 * rounds)
    assert len(errors) >= 2 * rounds
    neuron.synchronize()


def test_deleting_everything_brings_allocated_bytes_to_zero(nothing_allocated) -> None:
    """Models, optimizers, graphs with cycles, streams, views, pinned copies and failed launches."""
    device = 2
    with neuron.device(device):
        gc.collect()
        neuron.synchronize()
        assert neuron.memory_allocated(device) == 0
        model = Model().to("neuron")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        tokens = torch.randint(0, 50, (2, 9)).pin_memory().to("neuron", non_blocking=True)
        model(tokens).sum().backward()
        optimizer.step()
        cycle = [model(tokens)]
        cycle.append(cycle)
        side = neuron.Stream()
        with neuron.stream(side):
            other = cycle[0] * 2
            other.record_stream(side)
            views = [other[0], other.transpose(0, 1), other.detach()]
        copy = views[0].detach().to("neuron:1")
        assert neuron.memory_allocated(device) > 0
        failed = torch.ones(3, device="neuron")
        with pytest.raises(IndexError):
            failed[torch.tensor([7], device="neuron")]
            neuron.synchronize()
        del model, optimizer, tokens, cycle, other, views, copy, failed
        gc.collect()
        neuron.synchronize(device)
        neuron.synchronize(1)
        assert neuron.memory_allocated(device) == 0
        neuron.empty_cache()
        assert neuron.memory_reserved(device) == 0
