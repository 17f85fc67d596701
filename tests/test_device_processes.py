"""The device over the life of a process: environment variables, first use, fork, spawn, exit.

Each test runs a script in a process forked from a server that has only imported torch, so it costs no import.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import textwrap
from typing import Any

import pytest

GIB = 2**30
TIMEOUT = 60

_PRELUDE = """
import os, sys, warnings
import torch
os.environ.update(environ)
send = connection.send

def error_of(use):
    try:
        use()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
"""


@pytest.fixture(scope="module")
def server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    return context


def run(server: Any, code: str, exitcode: int = 0, **environ: str) -> list[Any]:
    """Runs `code` in a new process and returns what it gave to send()."""
    receiver, sender = server.Pipe(duplex=False)
    script = _PRELUDE + textwrap.dedent(code)
    process = server.Process(target=exec, args=(script, {"connection": sender, "environ": environ}))
    process.start()
    sender.close()
    received = []
    try:
        while receiver.poll(TIMEOUT):
            received.append(receiver.recv())
    except EOFError:
        pass
    process.join(TIMEOUT)
    hung = process.is_alive()
    if hung:
        process.kill()
        process.join()
    assert not hung, "the process did not end"
    assert process.exitcode == exitcode
    return received


def test_environment_variables(server: Any) -> None:
    code = """
    p = torch.neuron.get_device_properties(1)
    send((torch.neuron.device_count(), torch.accelerator.device_count(), p.total_memory, p.core_id, p.name))
    send(torch.ones(2, device="neuron:2").sum().item())
    """
    variables = {
        "NEURON_PLATFORM_TARGET_OVERRIDE": "trn3",
        "NEURON_RT_VISIBLE_CORES": "8,10-11",
        "NEURON_LOGICAL_NC_CONFIG": "1",
    }
    assert run(server, code, **variables) == [
        (3, 3, 18 * GIB, 10, "AWS Trainium3 NeuronCore-v4 (virtual, neuron)"),
        2.0,
    ]


def test_many_devices(server: Any) -> None:
    code = """
    send(sum(torch.full((1,), float(i), device=f"neuron:{i}").item() for i in range(64)))
    send(error_of(lambda: torch.ones(1, device="neuron:64")))
    """
    total, error = run(server, code, NEURON_RT_NUM_CORES="64")
    assert total == sum(range(64))
    assert "invalid neuron device index 64: this process sees 64 neuron device(s)" in error


def test_nothing_is_fixed_before_the_first_use(server: Any) -> None:
    code = """
    send(torch.neuron.device_count())
    os.environ["NEURON_RT_NUM_CORES"] = "7"
    send((torch.neuron.device_count(), torch.neuron.is_initialized(), torch.neuron._initialized))
    torch.ones(1, device="neuron")
    os.environ["NEURON_RT_NUM_CORES"] = "2"
    send((torch.neuron.device_count(), torch.neuron.is_initialized(), torch.neuron._initialized))
    """
    assert run(server, code) == [4, (7, False, False), (7, True, True)]


def test_seeding_does_not_start_the_device(server: Any) -> None:
    code = """
    torch.manual_seed(5)
    torch.neuron.manual_seed(6)
    os.environ["NEURON_RT_NUM_CORES"] = "2"
    send((torch.neuron.is_initialized(), [g.initial_seed() for g in torch.neuron.default_generators]))
    """
    assert run(server, code) == [(False, [6, 5])]


def test_backward_on_the_cpu_before_the_first_use(server: Any) -> None:
    # The autograd engine sizes its thread pool once, by the devices that there are at the first backward.
    code = """
    x = torch.ones(2, requires_grad=True)
    (x * 2).sum().backward()
    y = torch.ones(2, device="neuron:3", requires_grad=True)
    (y * 3).sum().backward()
    send(y.grad.tolist())
    """
    assert run(server, code) == [[3.0, 3.0]]


def test_bad_variable(server: Any) -> None:
    code = """
    send((torch.ones(2) + 1).tolist())
    torch.manual_seed(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        send((torch.neuron.is_available(), torch.neuron.device_count(), torch.accelerator.is_available()))
    send([str(w.message) for w in caught])
    send(error_of(lambda: torch.ones(1, device="neuron")))
    send(error_of(torch.neuron.current_device))
    send(error_of(torch.neuron.synchronize))
    """
    values, available, caught, *errors = run(server, code, NEURON_RT_NUM_CORES="many")
    reason = "NEURON_RT_NUM_CORES='many': expected a whole number"
    assert values == [2.0, 2.0]
    assert available == (False, 0, False)
    assert caught
    assert all(reason in text for text in caught)
    assert len(errors) == 3
    assert all(reason in error for error in errors)


def test_use_after_fork(server: Any) -> None:
    code = """
    x = torch.ones(3, device="neuron")
    y = x + 1
    pid = os.fork()
    if pid == 0:
        send(torch.neuron._is_in_bad_fork())
        send((torch.neuron.is_available(), torch.neuron.device_count()))
        torch.manual_seed(1)  # what DataLoader workers do
        send(error_of(lambda: x + 1))
        send(error_of(lambda: torch.ones(1, device="neuron")))
        send(error_of(torch.neuron.init))
        send(error_of(torch.neuron.synchronize))
        send(error_of(lambda: y.cpu()))
        send((torch.ones(2) * 3).tolist())
        del x, y  # freeing what the parent owns must neither hang nor crash
        sys.exit(0)
    _, status = os.waitpid(pid, 0)
    send(("exit", os.waitstatus_to_exitcode(status)))
    send((y * 2).tolist())
    """
    *child, exited, parent = run(server, code)
    bad_fork, available, *errors, cpu = child
    assert bad_fork is True
    assert available == (True, 4)
    assert len(errors) == 5
    for error in errors:
        assert error == (
            "RuntimeError: Cannot re-initialize NEURON in forked subprocess. To use NEURON with multiprocessing, "
            "you must use the 'spawn' start method"
        )
    assert cpu == [3.0, 3.0]
    assert exited == ("exit", 0)
    assert parent == [4.0, 4.0, 4.0]


def test_first_use_after_fork(server: Any) -> None:
    code = """
    torch.neuron.device_count()
    pid = os.fork()
    if pid == 0:
        send((torch.neuron._is_in_bad_fork(), (torch.ones(2, device="neuron:1") + 1).tolist()))
        sys.exit(0)
    _, status = os.waitpid(pid, 0)
    send(("exit", os.waitstatus_to_exitcode(status)))
    send(torch.ones(1, device="neuron").item())
    """
    assert run(server, code) == [(False, [2.0, 2.0]), ("exit", 0), 1.0]


def test_fork_while_the_device_is_busy(server: Any) -> None:
    code = """
    a = torch.ones(64, 64, device="neuron")
    for i in range(20):
        for _ in range(50):
            a = a @ a / 64
        pid = os.fork()
        if pid == 0:
            torch.set_num_threads(1)
            assert torch.nn.functional.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 2, 2)).sum() == 36
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert status == 0
    send(a.sum().item())
    """
    assert run(server, code) == [64.0 * 64.0]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_with_workers(server: Any, method: str) -> None:
    code = f"""
    from torch.utils.data import DataLoader, TensorDataset
    x = torch.ones(1, device="neuron")
    data = TensorDataset(torch.arange(12.0))
    workers = 2 if {method!r} == "fork" else 1  # a spawned one imports torch again
    loader = DataLoader(data, batch_size=4, num_workers=workers, pin_memory=True, multiprocessing_context={method!r})
    batches = [batch for (batch,) in loader]
    send([batch.is_pinned() for batch in batches])
    send(sum(batch.to("neuron", non_blocking=True).sum().item() for batch in batches))
    """
    assert run(server, code) == [[True, True, True], 66.0]


@pytest.mark.parametrize("ending", ["pass", "sys.exit(3)", "raise SystemExit(3)", "os._exit(3)"])
def test_exit_with_pending_work(server: Any, ending: str) -> None:
    code = f"""
    x = torch.ones(4, device="neuron")
    torch.neuron._sleep(50_000_000)
    keep = [x + i for i in range(100)]
    send("ready")
    {ending}
    """
    assert run(server, code, exitcode=0 if ending == "pass" else 3) == ["ready"]


# A thread of autograd that is only just starting when Python ends would bring the process down. Here every new thread is
# late, since the main thread runs before all others on the only core; for that it needs the right to real-time priority.
STARVED = """
import os, sys, torch
x = torch.ones(3, device=sys.argv[1], requires_grad=True)
loss = x.sum()
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
try:
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
except PermissionError:
    print("no priority")
loss.backward()
"""


@pytest.mark.parametrize("device", ["neuron", "cpu"])
def test_exit_right_after_the_first_backward_pass(device: str) -> None:
    for _ in range(3):
        result = subprocess.run(
            [sys.executable, "-c", STARVED, device], capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
        assert result.returncode == 0, result.stderr
        if "no priority" in result.stdout:
            pytest.skip("real-time priority is not permitted here")


def test_exit_of_a_forked_child_after_a_backward_pass(server: Any) -> None:
    code = """
    x = torch.ones(3, device="neuron", requires_grad=True)
    x.sum().backward()
    child = os.fork()
    if child == 0:
        sys.exit(3)
    send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run(server, "import os, sys\n" + textwrap.dedent(code)) == [3]


@pytest.mark.parametrize(("value", "on"), [("1", True), ("True", True), ("on", True), ("0", False), ("off", False)])
def test_switches_are_spelled_alike(server: Any, value: str, on: bool) -> None:
    code = """
    from torch_neuronx import _C
    torch.ones(1, device="neuron")
    send((torch.neuron.is_host_rng_enabled(), _C._fallbacks_forbidden(), _C.launch_blocking(), _C.memory_guard_enabled()))
    """
    switches = ("TORCH_NEURONX_HOST_RNG", "TORCH_NEURONX_FORBID_FALLBACK", "NEURON_LAUNCH_BLOCKING")
    assert run(server, code, **dict.fromkeys((*switches, "TORCH_NEURONX_GUARD_MEMORY"), value)) == [(on,) * 4]


def test_a_bad_switch_is_refused_at_the_first_use(server: Any) -> None:
    code = """
    send(error_of(lambda: torch.ones(1, device="neuron")))
    """
    [message] = run(server, code, TORCH_NEURONX_FORBID_FALLBACK="please")
    assert "TORCH_NEURONX_FORBID_FALLBACK='please': expected 1 or 0" in message


def test_sharing_memory_is_refused(server: Any) -> None:
    code = """
    import torch.multiprocessing as mp
    from multiprocessing.reduction import ForkingPickler
    x = torch.ones(2, device="neuron")
    send(x.share_memory_() is x)  # as on cuda: nothing to do
    send(error_of(lambda: ForkingPickler.dumps(x)))
    send(error_of(lambda: ForkingPickler.dumps(torch.nn.Parameter(x))))
    send(error_of(lambda: ForkingPickler.dumps(torch.ones(2))))
    """
    same, *errors = run(server, code)
    assert same is True
    message = (
        "RuntimeError: the memory of neuron:0 cannot be shared with another process: "
        "send tensor.cpu() and move it to the device there"
    )
    assert errors == [message, message, None]


def test_blocking_mode(server: Any) -> None:
    code = """
    import time
    torch.neuron.init()
    start = time.perf_counter()
    torch.neuron._sleep(360_000_000)  # 0.3 s at 1.2 GHz
    send((torch.neuron.current_stream().query(), time.perf_counter() - start >= 0.3))
    """
    assert run(server, code, NEURON_LAUNCH_BLOCKING="1") == [(True, True)]
    assert run(server, code, NEURON_LAUNCH_BLOCKING="0") == [(False, False)]


def test_use_from_many_threads_at_once(server: Any) -> None:
    code = """
    import threading
    barrier = threading.Barrier(8)
    results = [None] * 8
    def work(i):
        barrier.wait()
        device = f"neuron:{i % 4}"
        torch.neuron.set_device(i % 4)
        results[i] = ((torch.full((8,), float(i), device="neuron") * 2).sum().item(), torch.neuron.current_device())
    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    send(results)
    send(torch.neuron.current_device())
    """
    assert run(server, code) == [[(16.0 * i, i % 4) for i in range(8)], 0]
