"""Who is measured, and how: fresh processes, in turn, several rounds; a b c, a b c, a b c."""

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
import redis

from benches.measure import Job

ROOT = Path(__file__).resolve().parent.parent
RUN_TIMEOUT = 300

Figures = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """How much work: the real size, or (`BENCH_QUICK=1`) just enough to see that everything runs."""

    quick: bool
    usual: bool
    """Whether nothing but the number of rounds was set by hand."""
    rounds: int
    counts: tuple[int, ...]
    messages: int
    """Of a drain, and of publishing in pipelines."""

    @property
    def few(self) -> int:
        """Messages for those that take a tenth of a millisecond or more for each."""
        return self.messages // 10

    @classmethod
    def from_env(cls) -> Self:
        """Read `BENCH_QUICK`, `BENCH_ROUNDS`, `BENCH_COUNTS` (as in `10,500`) and `BENCH_MESSAGES`."""
        env = os.environ
        quick = env.get("BENCH_QUICK", "") not in ("", "0")
        return cls(
            quick=quick,
            usual=not {"BENCH_COUNTS", "BENCH_MESSAGES"} & env.keys(),
            rounds=int(env.get("BENCH_ROUNDS", "1" if quick else "5")),
            counts=tuple(int(count) for count in env.get("BENCH_COUNTS", "10,20,50,200,500").split(",")),
            messages=int(env.get("BENCH_MESSAGES", "10000" if quick else "200000")),
        )


SCALE = Scale.from_env()


def untouched(client: redis.Redis, stream: str) -> None:
    """Prepare nothing."""


@dataclass(frozen=True)
class Contender:
    """One row of a table: a program and its job."""

    section: str
    group: str
    """Those of one section and group run in turn, and are compared with each other."""
    name: str
    module: str
    messages: int = 0
    stream: str = ""
    prepare: Callable[[redis.Redis, str], None] = untouched
    """Brings the stream to its beginning before each round."""
    baseline: str | None = None
    """The contender of the same group that its ratios are to."""
    count: int = 500
    loop: str = "asyncio"
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, client: redis.Redis, url: str) -> Figures:
        """Run it once, in a process of its own, and return what it says at its end."""
        self.prepare(client, self.stream)
        job = Job(url, self.stream, self.messages, self.count, self.loop, self.options)
        command = [sys.executable, "-m", f"benches.contenders.{self.module}", msgspec.json.encode(job).decode()]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_TIMEOUT, check=False)
        if done.returncode:
            raise RuntimeError(f"{self.name} ({self.group}) ended with {done.returncode}: {done.stderr[-2000:]}")
        return msgspec.json.decode(done.stdout)


class Rounds:
    """The rounds that were run. A group is run as a whole when the first of its contenders is asked for."""

    def __init__(self, client: redis.Redis, url: str, contenders: Iterable[Contender]) -> None:
        """Take the contenders that take part: those of the selected tests."""
        self._client, self._url = client, url
        self._contenders = list(contenders)
        self._done: dict[tuple[str, str, str], list[Figures]] = {}
        self._failed: dict[tuple[str, str, str], Exception] = {}

    def of(self, contender: Contender) -> list[Figures]:
        """Return the figures of a contender, one per round."""
        key = contender.section, contender.group, contender.name
        if key not in self._done:
            self._run(contender.section, contender.group)
        if key in self._failed:
            raise self._failed[key]
        return self._done[key]

    def _run(self, section: str, group: str) -> None:
        matching = {
            (section, group, each.name): each
            for each in self._contenders
            if (each.section, each.group) == (section, group)
        }
        self._done |= {key: [] for key in matching}
        for _ in range(SCALE.rounds):
            for key, each in matching.items():
                if key in self._failed:
                    continue
                try:
                    self._done[key].append(each.run(self._client, self._url))
                except (RuntimeError, subprocess.TimeoutExpired) as error:  # the others go on
                    self._failed[key] = error


def medians(rounds: list[Figures]) -> Figures:
    """Return the median of each number, and what is not a number as the first round has it."""
    return {
        name: statistics.median(figures[name] for figures in rounds) if isinstance(value, int | float) else value
        for name, value in rounds[0].items()
    }


class Replay:
    """A clock that stands still, and jumps by what was measured: so that pytest-benchmark tells what the child took."""

    def __init__(self) -> None:
        self._now = 0.0

    def time(self) -> float:
        """Return the time on this clock."""
        return self._now

    def play(self, seconds: Iterator[float]) -> None:
        """Let the next round pass."""
        self._now += next(seconds)


REPLAY = Replay()
