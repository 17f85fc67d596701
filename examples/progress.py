"""A progress bar on one line, or a plain line now and then where the output is not a terminal."""

from __future__ import annotations

import sys
import time


class Progress:
    def __init__(self, total: int, width: int = 30, plain_lines: int = 10) -> None:
        self.total = total
        self.width = width
        self.every = max(1, total // plain_lines)
        self.start = time.perf_counter()
        self.terminal = sys.stdout.isatty()
        self.printed = 0

    def update(self, done: int, text: str) -> None:
        """Shows `done` of the total and a line of text such as the loss. Call it as often as you like."""
        elapsed = time.perf_counter() - self.start
        left = elapsed / max(done, 1) * (self.total - done)
        times = f"{_clock(elapsed)}<{_clock(left)}"
        if self.terminal:
            bar = "█" * (self.width * done // self.total)
            print(f"\r{done:5d}/{self.total} |{bar:<{self.width}}| {times}  {text}\033[K", end="", flush=True)
            if done == self.total:
                print()
        elif done >= self.printed + self.every or done == self.total:
            self.printed = done
            print(f"{done:5d}/{self.total}  {times}  {text}", flush=True)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
