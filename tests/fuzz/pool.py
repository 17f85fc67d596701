"""Runs programs in child processes, which may crash or hang."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from . import worker
from .program import Program

PATIENCE = 60.0
CHUNK = 25


@dataclass
class Result:
    """What came of a seed: `difference` is None when cpu and neuron agree."""

    seed: int
    difference: str | None
    first_of_process: int


def context() -> Any:
    """Children fork from a server that has imported torch but never used a device."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["torch", "tests.fuzz.worker"])
    return server


def stop(process: BaseProcess) -> None:
    """Ends a process that hangs, after it has written every thread's stack."""
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, signal.SIGABRT)
        process.join(5)
    if process.is_alive():
        process.kill()
        process.join()


def how_it_ended(process: BaseProcess, errors: Path) -> str:
    process.join(10)
    tail = "\n".join(errors.read_text(errors="replace").splitlines()[-60:])
    return f"the process ended with exit code {process.exitcode}\n{tail}"


class Worker:
    """A child process that is given ranges of seeds."""

    def __init__(self, steps: int, folder: Path, number: int) -> None:
        self.errors = folder / f"{number}.txt"
        self.errors.touch()
        self.connection, child = context().Pipe()
        self.process = context().Process(target=worker.run_seeds, args=(child, steps, str(self.errors)), daemon=True)
        self.process.start()
        child.close()
        self.first = -1
        self.left: list[int] = []
        self.now: int | None = None
        self.last_sign = time.monotonic()

    def give(self, first: int, count: int) -> None:
        if self.first < 0:
            self.first = first
        self.left = list(range(first, first + count))
        self.last_sign = time.monotonic()
        self.connection.send((first, count))

    def messages(self) -> Iterator[tuple[Any, ...]]:
        while self.connection.poll():
            self.last_sign = time.monotonic()
            message = self.connection.recv()
            if message[0] == "begin":
                self.now = message[1]
            elif message[0] == "end":
                self.now = None
                self.left.remove(message[1])
            yield message

    def hangs(self) -> bool:
        return bool(self.left) and time.monotonic() - self.last_sign > PATIENCE


class Pool:
    """Runs the seeds from `first` on in `processes` workers and calls `report` with each result."""

    def __init__(self, first: int, count: int, steps: int, processes: int, report: Callable[[Result], None]) -> None:
        self.todo = [(start, min(CHUNK, first + count - start)) for start in range(first, first + count, CHUNK)]
        self.todo.reverse()
        self.steps = steps
        self.processes = min(processes, len(self.todo))
        self.report = report
        self.started = 0

    def run(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            workers = [self._start(Path(folder)) for _ in range(self.processes)]
            while workers:
                by_connection = {w.connection: w for w in workers}
                ready = wait(list(by_connection), timeout=1.0)
                for connection in ready:
                    assert isinstance(connection, Connection)
                    self._listen(by_connection[connection], workers, Path(folder))
                for one in [w for w in workers if w.hangs()]:
                    stop(one.process)
                    self._lost(one, workers, Path(folder), f"no answer for {PATIENCE:.0f} s; ")

    def _start(self, folder: Path) -> Worker:
        self.started += 1
        started = Worker(self.steps, folder, self.started)
        started.give(*self.todo.pop())
        return started

    def _listen(self, one: Worker, workers: list[Worker], folder: Path) -> None:
        try:
            for message in one.messages():
                if message[0] == "end":
                    self.report(Result(message[1], message[2], one.first))
                elif message[0] == "idle":
                    if not self.todo:
                        one.connection.close()
                        one.process.join(10)
                        stop(one.process)
                        workers.remove(one)
                        return
                    one.give(*self.todo.pop())
        except (EOFError, ConnectionResetError):
            self._lost(one, workers, folder, "")

    def _lost(self, one: Worker, workers: list[Worker], folder: Path, why: str) -> None:
        """A worker is gone: its seed failed, and the rest of its range goes to another."""
        workers.remove(one)
        seed = one.now if one.now is not None else (one.left or [one.first])[0]
        self.report(Result(seed, why + how_it_ended(one.process, one.errors), one.first))
        rest = [left for left in one.left if left > seed]
        if rest:
            self.todo.append((rest[0], len(rest)))
        if self.todo:
            workers.append(self._start(folder))


def difference_in_new_process(program: Program, patience: float = PATIENCE) -> str | None:
    """The first difference of a program that runs alone in a new process; a crash or a hang is one."""
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "errors.txt"
        errors.touch()
        receiver, sender = context().Pipe(duplex=False)
        process = context().Process(target=worker.run_program, args=(sender, program, str(errors)), daemon=True)
        process.start()
        sender.close()
        try:
            if not receiver.poll(patience):
                stop(process)
                return f"no answer for {patience:.0f} s; {how_it_ended(process, errors)}"
            found: str | None = receiver.recv()
        except EOFError:
            return how_it_ended(process, errors)
        process.join(patience)
        if process.exitcode != 0:
            stop(process)
            return how_it_ended(process, errors)
        return found
