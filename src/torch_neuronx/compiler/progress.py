"""A line on the terminal while a graph compiles that takes long."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

# Shorter compilations say nothing.
QUIET_SECONDS = 3.0

_compiled = 0  # graphs of this process so far


@contextlib.contextmanager
def progress(kind: str, ops: int) -> Iterator[None]:
    """Shows "graph 3 (backward, 412 operators): 12 s" on stderr while open, when stderr is a terminal."""
    global _compiled
    _compiled += 1
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    line = f"neuron: compiling graph {_compiled} ({kind}, {ops} operators)"
    thread = threading.Thread(target=_show, args=(line, done), name="neuron-compile-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show(line: str, done: threading.Event) -> None:
    start = time.perf_counter()
    if done.wait(QUIET_SECONDS):
        return
    while True:
        print(f"\r{line}: {time.perf_counter() - start:.0f} s", end="", file=sys.stderr, flush=True)
        if done.wait(1.0):
            break
    print(f"\r{line}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
