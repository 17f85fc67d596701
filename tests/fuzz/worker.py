"""What runs in the fuzzer's child processes: programs of a range of seeds, or one program given as data."""

from __future__ import annotations

import faulthandler
import os
import sys
from multiprocessing.connection import Connection

import torch

from .differential import find_difference
from .generate import generate
from .program import Program


def prepare(errors: str) -> None:
    """Sends what the process prints to a file, as warnings of kernels on executor threads cannot be caught."""
    descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stderr = os.fdopen(descriptor, "w", buffering=1)
    faulthandler.enable(file=sys.stderr)  # also prints every thread's stack on the SIGABRT that ends a hanging process
    torch.set_num_threads(1)


def run_seeds(connection: Connection, steps: int, errors: str) -> None:
    """Takes (first, count) and answers, for each seed, ("begin", seed) and ("end", seed, difference or None)."""
    prepare(errors)
    while True:
        try:
            first, count = connection.recv()
        except EOFError:
            return
        for seed in range(first, first + count):
            connection.send(("begin", seed))
            connection.send(("end", seed, find_difference(generate(seed, steps))))
        connection.send(("idle",))


def run_program(connection: Connection, program: Program, errors: str) -> None:
    """Answers with the first difference of one program."""
    prepare(errors)
    connection.send(find_difference(program))
