"""Several processes of one app: started together, stopped together."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

_log: Final = logging.getLogger("ruststream.app")

_POLL: Final = 0.1
"""Seconds between looks at the processes."""
_WELL: Final = (0, -signal.SIGTERM, -signal.SIGINT)
"""Good ends. A process that died of a signal got it before it could handle one, and has done nothing yet."""


def supervise(arguments: Sequence[str], workers: int) -> int:
    """Run so many processes of `python -m ruststream` until a signal comes or one of them ends.

    Args:
        arguments: those of each process.
        workers: how many.

    Returns:
        0 if all of them ended well, else 1.
    """
    # Nobody ever writes to it: that its other end was closed tells the processes that this one is gone.
    reads, writes = os.pipe()
    command = [sys.executable, "-m", "ruststream", *arguments, "--follow", str(reads)]
    processes: list[subprocess.Popen[bytes]] = []
    signals: list[int] = []
    passed_on = 0
    previous = {
        number: signal.signal(number, lambda number, _frame: signals.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        while len(processes) < workers and not signals:
            processes.append(_start(command, reads))
        while None in [process.poll() for process in processes]:
            ended = next((process for process in processes if process.returncode is not None), None)
            if ended is not None and not signals:
                _log.error("process %d ended with code %d; stopping the others", ended.pid, ended.returncode)
                signals.append(signal.SIGTERM)
            fresh = signals[passed_on:]
            passed_on += len(fresh)
            for process in processes:
                for number in fresh:
                    process.send_signal(number)
            time.sleep(_POLL)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        os.close(reads)
        os.close(writes)
    return 0 if all(process.returncode in _WELL for process in processes) else 1


def follow(descriptor: int) -> None:
    """Stop this process as SIGTERM does once its supervisor is gone, however that came to its end.

    Args:
        descriptor: the end to read of a pipe whose other end the supervisor alone holds.
    """

    def wait() -> None:
        os.read(descriptor, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="ruststream-follow", daemon=True).start()


def _start(command: Sequence[str], inherited: int) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C reaches the supervisor alone, which passes it on once; twice would mean "at once".
    return subprocess.Popen(command, start_new_session=True, pass_fds=(inherited,))  # noqa: S603 - our own command
