"""The process that an app owns while it runs: its signals, its logging, its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Final, NoReturn, Self

from ruststream.errors import ConfigError

_log: Final = logging.getLogger("ruststream.app")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """SIGTERM and SIGINT while the current task serves: the first asks it to stop, the second cancels it."""

    def __init__(self, stop: asyncio.Event, starting: Callable[[], bool]) -> None:
        """Handle nothing yet.

        Args:
            stop: set at the first signal.
            starting: whether there is nothing to stop yet; then the first signal cancels.
        """
        self._stop, self._starting = stop, starting
        self._task = asyncio.current_task()
        self._cancels = 0
        self.count = 0
        """Signals seen."""

    def __enter__(self) -> Self:
        """Handle signals.

        Raises:
            ConfigError: not in the main thread.
        """
        loop = asyncio.get_running_loop()
        try:
            for number in _SIGNALS:
                loop.add_signal_handler(number, self._take, number)
        except (ValueError, RuntimeError) as error:
            raise ConfigError("signals reach the main thread alone: elsewhere use `await app.serve()`") from error
        return self

    def __exit__(self, *_: object) -> None:
        """Leave signals to whoever comes after."""
        for number in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def cancelled(self) -> bool:
        """Whether signals, and nobody else, cancelled the task. The task then counts as not cancelled."""
        if self._task is None or not self._cancels:
            return False
        left = 0
        for _ in range(self._cancels):
            left = self._task.uncancel()
        return left == 0

    def _take(self, number: signal.Signals) -> None:
        self.count += 1
        if self.count == 1 and not self._starting():
            _log.info("%s: stopping", number.name)
            self._stop.set()
        elif self.count <= 2 and self._task is not None:
            _log.warning("%s: stopping at once", number.name)
            self._cancels += 1
            self._task.cancel()


def plain_logging(level: str) -> None:
    """Send logs to stderr, unless the program has set up logging itself.

    Raises:
        ConfigError: no such level.
    """
    if level.upper() not in logging.getLevelNamesMapping():
        raise ConfigError(f"there is no log level {level!r}; take DEBUG, INFO, WARNING or ERROR")
    if not logging.getLogger().handlers:
        logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def leave_now(code: int) -> NoReturn:
    """End the process without waiting for its tasks and threads, as `sys.exit` would."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
