"""The processes of the service that the demonstration starts, kills and stops."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from servers import LEASHED


class Worker:
    """One process of `service.py`, its log in a file. It ends with the process that started it, whatever happens."""

    def __init__(self, number: int, url: str, min_idle: float, folder: Path) -> None:
        """Start it."""
        self.number = number
        self._log = folder / f"worker-{number}.log"
        leash = [sys.executable, "-I", "-S", "-c", LEASHED, str(os.getpid())]
        service = [sys.executable, "-m", "ruststream", "run", "service:app"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                leash + service,
                cwd=Path(__file__).parent,
                env={**os.environ, "REDIS_URL": url, "MIN_IDLE": str(min_idle)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the demonstration alone
            )

    @property
    def pid(self) -> int:
        """Its process id, which its consumers carry in their names."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """What it ended with; None while it runs."""
        return self._process.poll()

    def said(self, words: str) -> list[str]:
        """Return the lines of its log with these words in them."""
        return [line for line in self._log.read_text(errors="replace").splitlines() if words in line]

    def is_running(self) -> bool:
        """Tell whether its app runs.

        Raises:
            RuntimeError: it ended instead.
        """
        if self.exit_code is not None:
            raise RuntimeError(f"worker {self.number} ended with {self.exit_code}:\n{self._log.read_text()}")
        return bool(self.said(" is running: "))

    def stop(self) -> None:
        """Send SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def freeze(self) -> None:
        """Send SIGSTOP: it does nothing until `thaw`."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL, and return once it has ended."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def started_workers(count: int, url: str, min_idle: float) -> Iterator[list[Worker]]:
    """Start workers. At the end none is left."""
    workers: list[Worker] = []
    with tempfile.TemporaryDirectory(prefix="payments-") as folder:
        try:
            for number in range(1, count + 1):
                workers.append(Worker(number, url, min_idle, Path(folder)))  # noqa: PERF401 - each is noted at once
            yield workers
        finally:
            for worker in workers:
                worker.kill()
