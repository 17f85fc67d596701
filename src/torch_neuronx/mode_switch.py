"""What the switches for modes of the core have in common."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import ClassVar, TypeVar

Switch = TypeVar("Switch", bound="ModeSwitch")


class ModeSwitch:
    """Sets a mode at once and for all threads; as a context manager it restores the mode before.

    Args:
        enabled: the new mode.
    """

    # Of the core; each mode has its own class.
    _is_on: ClassVar[Callable[[], bool]]
    _switch: ClassVar[Callable[[bool], None]]

    def __init__(self, enabled: bool) -> None:
        self._before = type(self)._is_on()
        type(self)._switch(bool(enabled))

    def __enter__(self: Switch) -> Switch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        type(self)._switch(self._before)
