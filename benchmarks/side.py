"""One side of a comparison, in a process of its own.

The two sides disturb each other in one process: each thread that runs kernels has a pool of OpenMP threads, and when
all pools together have more threads than there are cores, OpenMP's threads stop waiting actively, which makes the
kernels of both sides slower than either side has them alone.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

SETTLE_SECONDS = 0.01  # in which threads that wait actively go to sleep

Timer = Callable[[int], float]  # runs a unit of work that many times, and returns seconds per unit


class Side:
    """`make(device, *arguments)`, a function of a module, gives the Timer; it is called in a new process.

    The process for "cpu" is one that knows no neuron device. A side that fails ends the benchmark, with its traceback.
    """

    def __init__(self, make: Callable[..., Timer], device: str, *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, make, device, arguments), daemon=True)
        before = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0" if device == "cpu" else "1"
        try:
            self._process.start()
        finally:
            if before is None:
                del os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]
            else:
                os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = before
        other.close()

    def __call__(self, count: int = 1, warm_up: int = 0) -> float:
        """Seconds per unit of work, over `count` of them, after `warm_up` ones that do not count.

        While a side waits for its turn its data leaves the caches and its threads go to sleep. A training loop has no
        such pauses.
        """
        self._connection.send((count, warm_up))
        try:
            return self._connection.recv()
        except EOFError:
            self._process.join()
            raise SystemExit("a side of the comparison failed") from None

    def close(self) -> None:
        self._connection.close()
        self._process.join()


def _serve(connection: Connection, make: Callable[..., Timer], device: str, arguments: tuple[object, ...]) -> None:
    timer = make(device, *arguments)
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection would hit one of two neighbouring blocks only
    while True:
        try:
            count, warm_up = connection.recv()
        except EOFError:
            return
        if warm_up > 0:
            timer(warm_up)
        seconds = timer(count)
        gc.collect()  # before the answer: the other side's turn begins with it
        time.sleep(SETTLE_SECONDS)
        connection.send(seconds)
