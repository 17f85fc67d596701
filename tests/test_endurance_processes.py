"""Random lives of processes: threads, streams, forks, loaders and errors, then some way to end. None may hang.

A situation is made from a seed, which a failure names. The default run takes a few, the slow one fifty.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from tests.test_device_processes import _PRELUDE as IMPORTS
from tests.test_device_processes import TIMEOUT, run, server  # noqa: F401 - server is a fixture

# What a process does before it ends. Each leaves work pending, or comes back to a working device.
BEGINNINGS = {
    "pending work": "keep = [x + i for i in range(200)]",
    "sleeping stream": "torch.neuron._sleep(60_000_000)",
    "several streams": """
        for i in range(3):
            with torch.neuron.stream(torch.neuron.Stream(device=i)):
                torch.neuron._sleep(30_000_000)
                torch.ones(5, device=f"neuron:{i}").mul_(2)
    """,
    "failed kernel": """
        numbers = torch.arange(4, device="neuron")
        good, bad = (torch.tensor([i], device="neuron") for i in (1, 9))
        numbers[good]
        torch.neuron._sleep(5_000_000)
        numbers[bad]  # known by now, so it is queued and fails later
    """,
    "thread exits with pending work": """
        def work():
            torch.neuron._sleep(20_000_000)
            globals()["from_thread"] = torch.ones(10, device="neuron") * 2
        t = threading.Thread(target=work); t.start(); t.join()
    """,
    "daemon thread": """
        def spin():
            y = torch.ones(8, 8, device="neuron")
            while True:
                y = (y @ y).clamp_(0, 1)
        threading.Thread(target=spin, daemon=True).start()
    """,
    "daemon thread that synchronizes": """
        def wait():
            while True:
                torch.neuron._sleep(1_000_000)
                torch.neuron.synchronize()
        threading.Thread(target=wait, daemon=True).start()
    """,
    "daemon thread in backward": """
        def train():
            while True:
                w = torch.ones(16, 16, device="neuron", requires_grad=True)
                (w @ w).relu().sum().backward()
        threading.Thread(target=train, daemon=True).start()
    """,
    "forked children that leave at once": """
        for _ in range(3):
            y = x @ x
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
    """,
    "forked child that ends as Python does": """
        torch.neuron._sleep(20_000_000)
        pid = os.fork()
        if pid == 0:
            assert "forked subprocess" in error_of(lambda: x + 1)
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    """,
    "forked child that dies of an exception": """
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            x + 1
        assert os.waitpid(pid, 0)[1] != 0
    """,
    "fork from a thread": """
        def fork():
            y = x * 3
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            codes.append(os.waitpid(pid, 0)[1])
        codes = []
        t = threading.Thread(target=fork); t.start(); t.join()
        assert codes == [0]
    """,
    "grandchildren": """
        pid = os.fork()
        if pid == 0:
            inner = os.fork()
            if inner == 0:
                del x
                os._exit(0)
            os._exit(os.waitpid(inner, 0)[1])
        assert os.waitpid(pid, 0)[1] == 0
    """,
    "loader with forked workers": """
        from torch.utils.data import DataLoader, TensorDataset
        loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=2, pin_memory=True,
                            multiprocessing_context="fork", persistent_workers=True)
        batches = iter(loader)
        x[0, 0] += next(batches)[0].to("neuron", non_blocking=True).sum()
    """,
    "backward with a hook that raises": """
        w = torch.ones(4, device="neuron", requires_grad=True)
        y = w * 2
        y.register_hook(lambda grad: 1 / 0)
        assert "ZeroDivisionError" in error_of(y.sum().backward)
    """,
    "interrupted wait": """
        signal.signal(signal.SIGINT, signal.default_int_handler)
        torch.neuron._sleep(120_000_000)
        threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            torch.neuron.synchronize()
            time.sleep(0.2)
        except KeyboardInterrupt:
            send("interrupted")
    """,
    "signals while launches run": """
        count = []
        signal.signal(signal.SIGALRM, lambda *_: count.append((x[:2] + 1).sum().item()))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        y = x
        for _ in range(300):
            y = (y @ x).clamp_(0, 1)
        torch.neuron.synchronize()
        signal.setitimer(signal.ITIMER_REAL, 0)
    """,
    "atexit hook that uses the device": "atexit.register(lambda: send((x[:2, :2] * 2).sum().item()))",
    "atexit hook that synchronizes": "atexit.register(torch.neuron.synchronize)",
    "atexit hook that raises": "atexit.register(lambda: 1 / 0)",
    "object that waits when it dies": """
        class Late:
            def __del__(self, synchronize=torch.neuron.synchronize, tensor=x[:2]):
                (tensor + 1).sum()
                synchronize()
        late = Late(); late.itself = late
    """,
    "full ring": """
        torch.neuron._sleep(60_000_000)
        for _ in range(1500):
            x.add_(1)
    """,
    "pinned copies pending": """
        torch.neuron._sleep(30_000_000)
        pinned = torch.ones(1000).pin_memory()
        there = pinned.to("neuron", non_blocking=True)
        back = torch.empty(1000).pin_memory()
        back.copy_(there, non_blocking=True)
    """,
    "copies between devices pending": """
        torch.neuron._sleep(30_000_000)
        ring = x
        for i in (1, 2, 3, 0):
            ring = ring.to(f"neuron:{i}", non_blocking=True)
    """,
    "profiler running": """
        from torch.profiler import ProfilerActivity, profile
        p = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]); p.__enter__()
        y = x @ x
    """,
    "waiting event": """
        event = torch.neuron.Event()
        other = torch.neuron.Stream()
        torch.neuron._sleep(30_000_000)
        event.record()
        other.wait_event(event)
        with torch.neuron.stream(other):
            y = x + 1
    """,
}
# PyTorch itself aborts when the interpreter is taken apart in the middle of these, on the CPU, too.
NOT_AT_INTERPRETER_EXIT = (
    "daemon thread",
    "daemon thread that synchronizes",
    "daemon thread in backward",
    "profiler running",
)
# Exit code of a process that ends in each way.
ENDINGS = {
    "pass": 0,
    "sys.exit(3)": 3,
    "os._exit(4)": 4,
    "raise SystemExit(5)": 5,
    "1 / 0": 1,
    "x.sum().item(); sys.exit(6)": 6,
    "del x; gc.collect(); sys.exit(7)": 7,
    "os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)": -15,
    "threading.Thread(target=os._exit, args=(8,)).start(); time.sleep(30)": 8,
    "threading.Thread(target=lambda: (time.sleep(0.02), x.sum().item()) and None).start()": 0,
}

_PRELUDE = """
import atexit, gc, signal, threading, time
x = torch.ones(32, 32, device="neuron")
"""


def situation(seed: int) -> tuple[str, int, dict[str, str], list[str]]:
    """A script, the exit code it ends with, its environment variables, and what it consists of."""
    choose = random.Random(seed)
    names = choose.sample(list(BEGINNINGS), choose.randint(1, 3))
    ending, exitcode = choose.choice(list(ENDINGS.items()))
    if "failed kernel" in names and "item()" in ending:
        ending, exitcode = "pass", 0  # the item would raise
    parts = [_PRELUDE, *(textwrap.dedent(BEGINNINGS[name]) for name in names), "send('ready')", ending]
    blocking = choose.random() < 0.2 and "failed kernel" not in names
    variables = {"NEURON_LAUNCH_BLOCKING": "1"} if blocking else {}
    return "\n".join(parts), exitcode, variables, [*names, ending]


def run_interpreter(script: str, exitcode: int = 0, **environ: str) -> list[str]:
    """The same as `run` in a Python of its own, whose end takes the interpreter apart; costs an import of torch."""
    say = "class connection:\n    send = staticmethod(lambda value: print(value, flush=True))\n"
    code = f"environ = {{}}\n{say}{IMPORTS}{script}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
    )
    assert done.returncode == exitcode, done.stderr
    return done.stdout.splitlines()


def _live(server: Any, seed: int, *, interpreter: bool = False) -> None:  # noqa: F811
    script, exitcode, variables, about = situation(seed)
    print(f"seed {seed}: {about} {variables}")
    if interpreter and not set(about) & set(NOT_AT_INTERPRETER_EXIT):
        received: list[Any] = run_interpreter(script, exitcode, **variables)
    else:
        received = run(server, script, exitcode=exitcode, **variables)
    assert "ready" in received


@pytest.mark.parametrize("seed", range(6))
def test_processes(server: Any, seed: int) -> None:  # noqa: F811
    _live(server, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 150))
def test_fifty_processes(server: Any, seed: int) -> None:  # noqa: F811
    _live(server, seed, interpreter=seed % 3 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(BEGINNINGS))
def test_every_beginning_ends(server: Any, name: str) -> None:  # noqa: F811
    script = "\n".join((_PRELUDE, textwrap.dedent(BEGINNINGS[name]), "send('ready')"))
    assert "ready" in run(server, script)
    if name not in NOT_AT_INTERPRETER_EXIT:
        assert "ready" in run_interpreter(script)


def test_situations_are_made_from_their_seed() -> None:
    assert situation(5) == situation(5)
    used = {name for seed in range(100, 150) for name in situation(seed)[3]}
    assert len(used & set(BEGINNINGS)) > 0.8 * len(BEGINNINGS)
    assert len(used & set(ENDINGS)) > 0.8 * len(ENDINGS)
