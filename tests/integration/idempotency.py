"""Idempotent subscriptions under test: their source, their marks, and a user's store that fails when told to."""

# ruff: noqa: ARG002 - stores have the arguments that they are called with
import itertools
from collections import Counter

from eventually import eventually_async
from ruststream import MarkState
from ruststream.redis import RedisStream

MIN_IDLE = 0.4
numbers = itertools.count()


def source(mode="claiming", **options):
    return getattr(RedisStream, mode)("s", group="g", min_idle=MIN_IDLE, start_id="0", **options)


def counts(app):
    total = Counter()
    for one in app.health().subscriptions:
        total.update(one.counts)
    return total


def mark_of(stream, key):
    return stream.client.get(f"{{s}}:g:idempotency:post:{key}")


async def settled(app, acked):
    await eventually_async(lambda: counts(app)["acked"] >= acked and counts(app)["in_flight"] == 0, timeout=30)


class Flaky:
    """A user's store, in memory, that fails as often as it is told to."""

    def __init__(self):
        self.marks, self.failures, self.calls = {}, Counter(), Counter()

    def _called(self, name):
        self.calls[name] += 1
        if self.failures[name] > 0:
            self.failures[name] -= 1
            raise ConnectionError(f"no {name}")

    async def begin(self, key, owner, lease):
        self._called("begin")
        mark = self.marks.setdefault(key, owner)
        return MarkState.DONE if mark == "done" else MarkState.STARTED if mark == owner else MarkState.WORKING

    async def finish(self, key, owner, ttl):
        self._called("finish")
        if self.marks.get(key, owner) == owner:
            self.marks[key] = "done"

    async def release(self, key, owner):
        self._called("release")
        if self.marks.get(key) == owner:
            del self.marks[key]

    async def renew(self, keys, owner, lease):
        self._called("renew")
