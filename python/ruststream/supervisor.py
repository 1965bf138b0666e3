"""Several processes of one app: started together, stopped together."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Final

_log: Final = logging.getLogger("ruststream.app")

_POLL: Final = 0.1
"""Seconds between looks at the processes."""


def supervise(arguments: Sequence[str], workers: int) -> int:
    """Run so many processes of `python -m ruststream` until a signal comes or one of them ends.

    Args:
        arguments: those of each process.
        workers: how many.

    Returns:
        0 if all of them ended well, else 1.
    """
    # Sessions of their own: Ctrl-C reaches this process alone, which passes it on once; two would mean "at once".
    command = [sys.executable, "-m", "ruststream", *arguments]
    processes: list[subprocess.Popen[bytes]] = []
    stopping = False

    def pass_on(number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        _stop(processes, number)

    previous = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        while len(processes) < workers and not stopping:
            processes.append(subprocess.Popen(command, start_new_session=True))  # noqa: S603 - our own command
        while any(process.poll() is None for process in processes):
            ended = next((process for process in processes if process.returncode is not None), None)
            if ended is not None and not stopping:
                _log.error("process %d ended with code %d; stopping the others", ended.pid, ended.returncode)
                stopping = True
                _stop(processes, signal.SIGTERM)
            time.sleep(_POLL)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return 0 if all(process.returncode == 0 for process in processes) else 1


def _stop(processes: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    for process in processes:
        if process.returncode is None:
            process.send_signal(number)
