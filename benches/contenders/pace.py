"""A steady pace: publishing at it, and what the receiver notes.

`python -m benches.contenders.pace URL STREAM MESSAGES PER_SECOND` publishes from a process of its own. Each entry is
stamped just before it is sent. One that is late is sent at once, so that the pace holds on the whole.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import redis

from benches.measure import Job
from benches.payments import KEY, KEYS, PAYLOAD, Probe

WARM = 0.1  # this share of the messages comes before what is measured
END_TIMEOUT = 10.0


def send(url: str, stream: str, messages: int, per_second: float) -> None:
    """Publish them all."""
    encode = msgspec.json.Encoder().encode
    with redis.Redis.from_url(url) as client:
        client.ping()
        begun = time.monotonic()
        for number in range(messages):
            early = begun + number / per_second - time.monotonic()
            if early > 0:
                time.sleep(early)
            account = f"acct-{number % KEYS}"
            client.xadd(stream, {PAYLOAD: encode(Probe(number, account, time.monotonic_ns())), KEY: account})


class Latencies:
    """What the consumer's side notes: how old each message is when its handler begins, and the CPU it all took."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._warm = int(job.messages * WARM)
        self._ages: list[int] = []
        self.full = asyncio.Event()

    def note(self, probe: Probe) -> None:
        """Note one message. To be called first thing in the handler."""
        now = time.monotonic_ns()
        self._ages.append(now - probe.sent_ns)
        handled = len(self._ages)
        if handled == self._warm:
            self._begun = now, time.thread_time(), time.process_time()
        elif handled == self._job.messages:
            self._ended = now, time.thread_time(), time.process_time()
            self.full.set()

    def figures(self) -> dict[str, Any]:
        """Return what was measured, in microseconds."""
        measured = len(self._ages) - self._warm
        wall, thread, process = (end - begin for begin, end in zip(self._begun, self._ended, strict=True))
        ages = sorted(self._ages[self._warm :])
        return {
            "messages": self._job.messages,
            "handled": len(self._ages),
            "rate": measured / wall * 1e9,
            "median_us": ages[measured // 2] / 1e3,
            "p99_us": ages[measured * 99 // 100] / 1e3,
            "worst_us": ages[-1] / 1e3,
            "loop_us": thread / measured * 1e6,
            "process_us": process / measured * 1e6,
        }


@contextmanager
def paced(job: Job) -> Iterator[None]:
    """Run the publisher beside the body, and see it end."""
    arguments = (job.url, job.stream, str(job.messages), str(job.options["per_second"]))
    publisher = subprocess.Popen([sys.executable, "-m", "benches.contenders.pace", *arguments])
    try:
        yield
        if publisher.wait(END_TIMEOUT):
            raise RuntimeError(f"the publisher ended with {publisher.returncode}")
    finally:
        publisher.kill()
        publisher.wait()


if __name__ == "__main__":
    send(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
