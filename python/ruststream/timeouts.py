"""The `timeout` of a subscription's handlers: one alarm of the core for all that run, and none while nothing runs."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Final, Protocol

from ruststream._core import Consumer
from ruststream.errors import HandlerTimeoutError

_log: Final = logging.getLogger("ruststream.subscription")

_SHORTEST_WAIT: Final = 0.001
"""Seconds between two alarms at least; beyond a timeout of 0.1 s it is a hundredth of that."""
_GRAIN: Final = 0.0005
"""Seconds that a clock of milliseconds may be off."""
_PATIENCE: Final = 1.0
"""Seconds that a cancelled handler has at least to clean up, before the log says that it goes on."""


class Run(Protocol):
    """A lane, as its timeout sees it."""

    due: float
    """When the handler it runs has run long enough, by the core's clock."""
    overran: int
    """How often that was told already."""

    @property
    def waits(self) -> bool:
        """Whether a handler runs, and waits for something."""

    def where(self) -> str:
        """Name its delivery, for the log."""

    def expire(self) -> None:
        """Cancel the handler."""


class Timeout:
    """Ends the handlers of one subscription that run too long. One in a thread can't be ended: that is said once."""

    __slots__ = ("_cancels", "_core", "_rings", "seconds")

    def __init__(self, core: Consumer, seconds: float, *, cancels: bool) -> None:
        """Ask for nothing yet.

        Args:
            core: whose clock counts.
            seconds: what a handler may take.
            cancels: whether the handlers run on the loop.
        """
        self.seconds: Final = seconds
        self._core = core
        self._cancels = cancels
        self._rings = math.inf

    def begin(self, run: Run) -> None:
        """A handler waits for something for the first time: from now on its time runs."""
        run.overran = 0
        run.due = self._core.now() + self.seconds
        if run.due < self._rings:
            self._ring_at(run.due, self.seconds)

    def rung(self, runs: Iterable[Run]) -> None:
        """The alarm has rung: end what is due, and ask for the next alarm if something runs."""
        now = self._core.now()
        if self._rings <= now + _GRAIN:
            self._rings = math.inf
        earliest = math.inf
        for run in runs:
            if not run.waits:
                continue
            if run.due <= now + _GRAIN:
                self._over(run)
                run.due = now + max(self.seconds, _PATIENCE)
            if run.overran < 2:
                earliest = min(earliest, run.due)
        if earliest < self._rings:
            after = max(earliest - now, self.seconds / 100, _SHORTEST_WAIT)
            self._ring_at(now + after, after)

    def ended(self, run: Run) -> bool:
        """Whether the handler of this run was cancelled for taking too long."""
        return self._cancels and run.overran > 0

    def error(self, cause: BaseException | None) -> HandlerTimeoutError:
        """Return the failure of a handler that was cancelled."""
        error = HandlerTimeoutError(f"the handler took longer than its timeout of {self.seconds:g} s", self.seconds)
        error.__cause__ = cause
        return error

    def _over(self, run: Run) -> None:
        run.overran += 1
        if not self._cancels:
            run.overran = 2
            _log.warning(
                "%s: the handler takes longer than its timeout of %g s. A def handler can't be cancelled: the entry is "
                "held until it returns, and its outcome is what it returns",
                run.where(),
                self.seconds,
            )
        elif run.overran == 1:
            run.expire()
        else:
            _log.error(
                "%s: the handler was cancelled after its timeout of %g s and goes on all the same; its worker takes "
                "nothing else until it ends. Let CancelledError pass",
                run.where(),
                self.seconds,
            )

    def _ring_at(self, when: float, after: float) -> None:
        """Ask for an alarm. One that was to ring later still does, and finds nothing to do."""
        self._rings = when
        self._core.alarm(after)
