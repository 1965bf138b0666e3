"""Idempotency where keys, stores or single marks fail: what is not concerned goes on, and is counted right."""

# ruff: noqa: ARG002 - stores have the arguments that they are called with
import asyncio

import pytest

from eventually import eventually_async
from ruststream import Context, Idempotent, MarkState, RustStream, Settle, drop, leave, retry
from ruststream.redis import RedisStream


def source(mode="claiming", **options):
    given = {"min_idle": 0.4} | options
    return getattr(RedisStream, mode)("s", group="g", start_id="0", block=0.1, **given)


def counts(app):
    [one] = app.health().subscriptions
    return one.counts


def mark_name(message):
    return f"{{s}}:g:idempotency:post:message:{message}"


class Plain:
    """A store in memory."""

    def __init__(self):
        self.marks = {}

    async def begin(self, key, owner, lease):
        mark = self.marks.setdefault(key, owner)
        return MarkState.DONE if mark == "done" else MarkState.STARTED if mark == owner else MarkState.WORKING

    async def finish(self, key, owner, ttl):
        self.marks[key] = "done"

    async def release(self, key, owner):
        self.marks.pop(key, None)

    async def renew(self, keys, owner, lease):
        """All of them last for ever."""


class Ended(BaseException):
    """Not an `Exception`."""


@pytest.mark.parametrize("error", [Settle(drop()), Ended("no key")], ids=["settle", "base"])
async def test_a_key_function_that_raises_what_is_no_exception_stops_nothing(stream, broker, error):
    calls = []

    def key(body):
        if body == b"bad":
            raise error
        return body

    @broker.subscriber(source(), name="post", idempotency=Idempotent(ttl=60, key=key), on_error=leave())
    async def handle(body: bytes):
        calls.append(body)

    app = RustStream("test", broker)
    async with app:
        for body in ("a", "bad", "b"):
            stream.add(body)
            await eventually_async(lambda body=body: body == "bad" or body.encode() in calls, timeout=20)
        await eventually_async(lambda: counts(app)["acked"] == 2, timeout=20)
        if isinstance(error, Settle):
            await eventually_async(lambda: counts(app)["dropped"] == 1, timeout=20)
        else:
            await eventually_async(lambda: counts(app)["left"] >= 1, timeout=20)
        assert app.health().state == "running"
    assert calls == [b"a", b"b"]


async def test_a_key_function_that_raises_is_ended_by_max_attempts(stream, broker):
    """The failure is one attempt like a handler's, so that the cap ends it."""
    asked = []

    def key(body):
        asked.append(body)
        raise KeyError("no id")

    @broker.subscriber(
        source(),
        name="post",
        dead_letter="dlq",
        max_attempts=3,
        on_error=retry(after=0.1),
        idempotency=Idempotent(ttl=60, key=key),
    )
    async def handle(body: bytes):
        raise AssertionError("handled without a mark")

    app = RustStream("test", broker)
    async with app:
        stream.add("x")
        await eventually_async(lambda: counts(app)["dead_lettered"] == 1, timeout=30)
    [(_, letter)] = stream.client.xrange("dlq")
    assert letter[b"h:x-dead-letter-reason"] == b"max-attempts"
    assert (len(asked), stream.pending_ids()) == (3, [])


@pytest.mark.parametrize("most", [1, 3])
async def test_waiting_for_a_mark_is_no_attempt(stream, broker, most):
    """More wait than may, so that some are left to recovery, again and again: the cap counts none of it."""
    calls = []

    @broker.subscriber(
        source(count=8),
        name="post",
        max_in_flight=8,
        workers=4,
        dead_letter="dlq",
        max_attempts=most,
        idempotency=Idempotent(ttl=60, lease=5),
    )
    async def handle(body: bytes):
        calls.append(body)

    for number in range(8):
        stream.client.set(mark_name(number), "working other", px=60_000)
        stream.add(str(number), message_id=str(number))
    app = RustStream("test", broker)
    async with app:
        # So often they were left and have come back.
        await eventually_async(lambda: counts(app)["left"] >= 20, timeout=60)
        assert stream.client.hgetall("{s}:g:attempts") == {}
        stream.client.delete(*[mark_name(number) for number in range(8)])
        await eventually_async(lambda: counts(app)["acked"] == 8, timeout=60)
    assert sorted(calls) == [str(number).encode() for number in range(8)]
    assert (stream.client.exists("dlq"), stream.pending_ids()) == (0, [])


async def test_a_mark_that_the_server_refuses_holds_up_its_own_entry_alone(any_server, stream, broker):
    """A key of another type stands in its place: that entry stays pending, health says why, others are acked."""
    go, calls = asyncio.Event(), []

    @broker.subscriber(source("recovering"), name="post", workers=8, idempotency=Idempotent(ttl=60, lease=1.0))
    async def handle(body: bytes):
        calls.append(body)
        if body == b"bad":
            await go.wait()

    app = RustStream("test", broker)
    async with app:
        bad = stream.add("bad", message_id="bad")
        await eventually_async(lambda: calls == [b"bad"], timeout=20)
        stream.client.delete(mark_name("bad"))
        stream.client.lpush(mark_name("bad"), "x")
        go.set()
        await eventually_async(lambda: app.health().subscriptions[0].state == "retrying", timeout=20)
        for number in range(20):
            stream.add(str(number), message_id=str(number))
        await eventually_async(lambda: counts(app)["acked"] == 20, timeout=30)
        assert stream.pending_ids() == [bad]
        stream.client.delete(mark_name("bad"))
        await eventually_async(lambda: counts(app)["acked"] == 21, timeout=30)
        await eventually_async(lambda: app.health().subscriptions[0].state == "reading", timeout=20)
    assert (len(calls), stream.client.get(mark_name("bad"))) == (21, b"done")


async def test_one_whose_mark_is_asked_for_at_a_stop_is_worked_off(stream, broker):
    """Nobody recovers: an entry that waits for its mark while the app stops is handled before the lanes end."""
    calls, running = [], asyncio.Event()

    class Slow(Plain):
        async def begin(self, key, owner, lease):
            await asyncio.sleep(0.3)
            return await super().begin(key, owner, lease)

    @broker.subscriber(
        RedisStream.new("s", group="g", start_id="0", block=0.1),
        name="post",
        workers=2,
        idempotency=Idempotent(ttl=60, store=Slow()),
    )
    async def handle(body: bytes):
        calls.append(body)
        if body == b"1":
            running.set()
            await asyncio.sleep(2.0)
            return leave()
        return None

    app = RustStream("test", broker, drain_timeout=30)
    async with app:
        first = stream.add("1", message_id="m")
        stream.add("2", message_id="m")
        await asyncio.wait_for(running.wait(), 20)
        await eventually_async(lambda: counts(app)["in_flight"] == 2, timeout=1.5)
    assert (calls, stream.pending_ids()) == ([b"1", b"2"], [first])


class Hanging(Plain):
    """It never answers a release."""

    async def release(self, key, owner):
        await asyncio.Event().wait()


async def test_a_store_that_hangs_in_release_holds_up_no_hand_back(stream, broker):
    running = asyncio.Event()

    @broker.subscriber(source(min_idle=30), name="post", idempotency=Idempotent(ttl=60, store=Hanging()))
    async def handle(body: bytes):
        running.set()
        await asyncio.sleep(0.5)

    app = RustStream("test", broker, drain_timeout=15)
    async with app:
        for number in range(5):
            stream.add(str(number))
        await asyncio.wait_for(running.wait(), 20)
        await eventually_async(lambda: counts(app)["in_flight"] == 5, timeout=20)
    pending = stream.client.xpending_range("s", "g", "-", "+", 9)
    assert [entry["times_delivered"] for entry in pending] == [0] * len(pending)
    assert len(pending) >= 3


async def test_a_store_that_hangs_in_release_holds_up_no_outcome(stream, broker):
    """The lease is long, and others are acked while the store does not answer."""

    @broker.subscriber(
        source(min_idle=300),
        name="post",
        max_attempts=5,
        on_exhausted=drop(),
        idempotency=Idempotent(ttl=600, store=Hanging()),
    )
    async def handle(body: bytes, ctx: Context):
        return retry(after=200) if body == b"0" else None

    app = RustStream("test", broker)
    async with app:
        for number in range(6):
            stream.add(str(number))
        await eventually_async(lambda: counts(app)["acked"] == 5, timeout=30)
        assert len(stream.pending_ids()) == 1
