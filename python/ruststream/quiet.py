"""Pacing: how often to say what may come again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_FIRST: Final = 10
"""Lines of a burst that are said at once."""
_SECOND: Final = 1.0


class Quiet:
    """Lets the first lines of a burst through, then one line per second, and counts the rest.

    A burst is over once nothing came for a second.
    """

    __slots__ = ("_came", "_clock", "_first", "_said", "_unsaid")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing said.

        Args:
            clock: seconds, from anywhere, that never go back.
        """
        self._clock = clock
        self._first = _FIRST
        self._came = self._said = float("-inf")
        self._unsaid = 0

    def allow(self) -> int | None:
        """Return None to say nothing; else say it, and how many were left unsaid before."""
        now = self._clock()
        if now - self._came >= _SECOND:
            self._first = _FIRST
        self._came = now
        if not self._first and now - self._said < _SECOND:
            self._unsaid += 1
            return None
        self._first = max(0, self._first - 1)
        self._said = now
        unsaid, self._unsaid = self._unsaid, 0
        return unsaid
