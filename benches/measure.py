"""Inside a process that is measured: its job, and a meter for rate, CPU and the server's share.

The meter's own connection is redis-py's, whoever is measured. It asks before the clock starts and after it stops.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import redis

from benches.payments import GROUP, LETTERS, REPLIES, beside, delay_key

SETTLE_TIMEOUT = 30.0
NOT_COUNTED = frozenset({"info"})  # the meter's own


class Job(msgspec.Struct):
    """What to do, from the command line."""

    url: str
    stream: str
    messages: int
    count: int = 500
    loop: str = "asyncio"
    options: dict[str, Any] = {}


class Meter:
    """Measures one stretch of work of this process and of its server."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._witness = redis.Redis.from_url(job.url)
        self._polls: Counter[str] = Counter()
        self._witness.ping()
        self.figures: dict[str, Any] = {}

    def start(self) -> None:
        """Start the clock. To be called on the loop's thread, when all is connected and nothing is read."""
        self._calls = self._command_calls()
        self._server = self._server_seconds()
        self._thread, self._process, self._wall = time.thread_time(), time.process_time(), time.perf_counter()

    async def drained(self) -> None:
        """Return once the server says that nothing of the group is pending. Once all is acked, one look is enough."""
        await settled(self._pending, 0, "pending")

    async def parked(self) -> None:
        """Return once the server says that all messages wait for their time."""
        await settled(self._parked, self._job.messages, "parked")

    def stop(self) -> None:
        """Stop the clock, on the same thread."""
        wall = time.perf_counter() - self._wall
        process, thread = time.process_time() - self._process, time.thread_time() - self._thread
        server = self._server_seconds() - self._server
        calls = self._command_calls() - self._calls
        calls.subtract(self._polls)
        messages = self._job.messages
        self.figures |= {
            "messages": messages,
            "seconds": wall,
            "rate": messages / wall,
            "loop_us": thread / messages * 1e6,
            "process_us": process / messages * 1e6,
            "server_busy": server / wall,
            "commands_per_message": calls.total() / messages,
            "commands": {name: number for name, number in sorted(calls.items()) if number > 0},
        }

    def witness_group(self, handled: int) -> None:
        """Note what became of the entries: as the handlers counted, and as the server says."""
        group = self._witness.xinfo_groups(self._job.stream)[0]
        self.figures |= {"handled": handled, "pending": group["pending"], "entries_read": group["entries-read"]}

    def witness_stream(self) -> None:
        """Note what was published: how many entries, and the fields of the first one."""
        (_, fields), *_ = self._witness.xrange(self._job.stream, count=1)
        self.figures["length"] = self._witness.xlen(self._job.stream)
        self.figures["fields"] = {name.decode(): value.decode() for name, value in fields.items()}

    def witness_keys(self) -> None:
        """Note how long the stream is, and what was written beside it."""
        stream = self._job.stream
        self.figures |= {"length": self._witness.xlen(stream), "parked": self._witness.zcard(delay_key(stream))}
        self.figures |= {what: self._witness.xlen(beside(stream, what)) for what in (LETTERS, REPLIES)}

    async def _pending(self) -> int:
        self._polls["xpending"] += 1
        return int(self._witness.xpending(self._job.stream, GROUP)["pending"])

    async def _parked(self) -> int:
        self._polls["zcard"] += 1
        return int(self._witness.zcard(delay_key(self._job.stream)))

    def _server_seconds(self) -> float:
        info = self._witness.info("cpu")
        thread = "_main_thread" if "used_cpu_user_main_thread" in info else ""  # not known on every system
        return float(info[f"used_cpu_user{thread}"] + info[f"used_cpu_sys{thread}"])

    def _command_calls(self) -> Counter[str]:
        stats = self._witness.info("commandstats")
        calls = Counter({name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()})
        for name in NOT_COUNTED:
            del calls[name]
        return calls


async def settled(count: Callable[[], Awaitable[int]], wanted: int, what: str) -> None:
    """Return once there are so many; look once a millisecond."""
    deadline = time.monotonic() + SETTLE_TIMEOUT
    while (found := await count()) != wanted:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{found} entries are {what} after {SETTLE_TIMEOUT:g} s, not {wanted}")
        await asyncio.sleep(0.001)


def main(work: Callable[[Job], Coroutine[Any, Any, dict[str, Any]]]) -> None:
    """Do the job of the command line on the loop it asks for, and print the figures as one line of JSON."""
    job = msgspec.json.decode(sys.argv[1], type=Job)
    if job.loop == "uvloop":
        import uvloop

        figures = uvloop.run(work(job))
    else:
        figures = asyncio.run(work(job))
    print(msgspec.json.encode(figures).decode(), flush=True)
