"""One process of `service.py`, as its test sees it: what it announced, what it logged, what it did, how it ended."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from chaos.service import Config
from eventually import eventually

TESTS = str(Path(__file__).parents[1])
TICKS = os.sysconf("SC_CLK_TCK")


class Effect(NamedTuple):
    """One line that a handler wrote: it did its work."""

    payment: int
    account: str
    entry: str
    delivery: int
    consumer: str


class Worker:
    """A worker process. Start it, wait for points, end it."""

    def __init__(self, name: str, folder: Path, config: Config) -> None:
        """Start the process; it ends with this one, since its stdin does."""
        self.name = name
        self.config = config
        self.log_path = folder / f"{name}.log"
        self.said: list[dict[str, Any]] = []
        self._partial = b""
        argument = msgspec.json.encode(config).decode()
        paths = filter(None, [os.environ.get("PYTHONPATH")])
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-W", "error", "-m", "chaos.service", argument],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([TESTS, *paths])},
                bufsize=0,
            )

    @property
    def pid(self) -> int:
        """The process's id."""
        return self.process.pid

    @property
    def log(self) -> str:
        """All it has logged so far."""
        return self.log_path.read_text(errors="replace")

    @property
    def effects(self) -> list[Effect]:
        """What its handlers have done, in the order they did it."""
        path = Path(self.config.effects)
        if not path.exists():
            return []
        lines = (line.split() for line in path.read_text().splitlines())
        return [Effect(int(line[0]), line[1], line[2], int(line[3]), line[4]) for line in lines]

    def hear(self, timeout: float = 0.0) -> bool:
        """Take in what it said, for so long at most. False once its stdout has ended."""
        stdout = self.process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], timeout)[0]:
            return True
        data = os.read(stdout.fileno(), 65536)
        *lines, self._partial = (self._partial + data).split(b"\n")
        self.said += [json.loads(line) for line in lines]
        return bool(data)

    def wait_for(self, timeout: float = 20.0, **what: Any) -> dict[str, Any]:
        """Return the first thing it said that has all of these; the value `...` takes any."""
        deadline = time.monotonic() + timeout
        seen = 0
        while True:
            for thing in self.said[seen:]:
                if all(key in thing and value in (..., thing[key]) for key, value in what.items()):
                    return thing
            seen = len(self.said)
            left = deadline - time.monotonic()
            if left <= 0 or not (self.hear(left) or len(self.said) > seen):
                raise AssertionError(f"{self.name} never said {what}; code {self.process.poll()}\n{self.log[-3000:]}")

    def started(self) -> "Worker":
        """Wait until it reads."""
        self.wait_for(started=...)
        return self

    def at(self, point: str, timeout: float = 20.0) -> dict[str, Any]:
        """Wait until it stands at this point."""
        return self.wait_for(timeout, at=point)

    def send(self, command: str) -> None:
        """Give it a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(command.encode() + b"\n")

    def go(self, point: str = "") -> None:
        """Let it leave this point, or all of them."""
        self.send(f"go {point}")

    def health(self) -> dict[str, Any]:
        """Ask it how it is."""
        self.hear()
        self.said = [thing for thing in self.said if "health" not in thing]
        self.send("health")
        answer: dict[str, Any] = self.wait_for(health=...)["health"]
        return answer

    def state(self) -> str:
        """Return the state of its first subscription."""
        return str(self.health()["subscriptions"][0]["state"])

    def cpu(self) -> float:
        """Return the seconds of CPU it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it by SIGKILL, and return once it is gone."""
        self.process.kill()
        self.process.wait(10)

    def logged(self, text: str, timeout: float = 10.0) -> str:
        """Return the first line of its log with this text, waiting for it."""
        lines: list[str] = eventually(
            lambda: [line for line in self.log.splitlines() if text in line], timeout, every=0.02
        )
        return lines[0]

    def ended(self, timeout: float = 20.0) -> tuple[int, float]:
        """Return its exit code, and the seconds it took from now to end."""
        begun = time.monotonic()
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end in {timeout} s\n{self.log[-3000:]}") from None
        while self.hear():
            pass
        return code, time.monotonic() - begun

    def close(self) -> None:
        """End it if it runs, paused or not."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
