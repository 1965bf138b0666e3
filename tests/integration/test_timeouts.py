"""`timeout`: a handler that takes too long is ended, its lane goes on, and its entry is not lost."""

import asyncio
import contextlib
import itertools
import logging
import threading

import pytest

from eventually import eventually_async
from ruststream import Context, RustStream, Settle, dead_letter, drop, leave, retry
from ruststream.errors import HandlerTimeoutError
from ruststream.redis import RedisBroker, RedisStream, StreamStart

TIMEOUT = 0.1


def recovering(**options: object) -> RedisStream:
    return RedisStream.recovering("s", group="g", min_idle=30, start_id=StreamStart.BEGINNING, **options)


async def handled(broker, stream, handler, bodies, **options):
    """Run an app over these bodies until each has ended; return its counts."""
    broker.add_subscriber(recovering(), handler, **{"timeout": TIMEOUT, **options})
    for body in bodies:
        stream.add(body)
    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: app.health().subscriptions[0].counts["read"] >= len(bodies))
        await eventually_async(lambda: app.health().subscriptions[0].counts["in_flight"] == 0, timeout=15)
        return app.health().subscriptions[0].counts


def errors(caplog):
    return [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("workers", [1, 4])
async def test_a_handler_that_takes_too_long_is_cancelled_and_the_next_one_comes(
    any_server, broker, stream, caplog, workers
):
    """B015, B071: every lane is hit and goes on; nothing of the timeout reaches the next message; entries pending."""
    cancelled, done = [], []

    async def handle(body: bytes):
        if body != b"ok":
            try:
                await asyncio.sleep(60)
            finally:
                cancelled.append(body)
        await asyncio.sleep(0.001)
        done.append(asyncio.current_task().cancelling())

    counts = await handled(broker, stream, handle, ["slow", "ok"] * 6, workers=workers)

    assert (cancelled, done) == ([b"slow"] * 6, [0] * 6)
    assert (counts["left"], counts["acked"]) == (6, 6)
    assert len(stream.pending_ids()) == 6
    assert len(errors(caplog)) == 6
    assert all("took longer than its timeout of 0.1 s" in str(record.exc_info[1]) for record in errors(caplog))


@pytest.mark.parametrize(
    ("rules", "ours", "own"),
    [
        ({TimeoutError: drop()}, "dropped", "dropped"),
        ({HandlerTimeoutError: drop(), TimeoutError: retry()}, "dropped", "retried"),
        ({HandlerTimeoutError: drop()}, "dropped", "left"),
        ({OSError: drop()}, "dropped", "dropped"),
        (None, "left", "left"),
    ],
)
async def test_it_goes_through_on_error_and_is_told_apart_from_the_handlers_own(broker, stream, rules, ours, own):
    """Both are TimeoutErrors; a rule for HandlerTimeoutError is for the subscription's timeout alone."""

    async def handle(body: bytes):
        async with asyncio.timeout(60 if body == b"ours" else 0.01):
            await asyncio.sleep(60)

    counts = await handled(broker, stream, handle, ["ours", "own", "ours"], on_error=rules)

    expected = dict.fromkeys(("dropped", "retried", "left"), 0)
    for outcome, times in ((ours, 2), (own, 1)):
        expected[outcome] += times
    assert {name: counts[name] for name in expected} == expected


async def test_what_a_cancelled_handler_says_of_itself_counts(broker, stream):
    """An outcome, a Settle or an error of its clean-up is its own word; a bare return after the timeout never acks."""

    async def handle(body: bytes):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            match body:
                case b"outcome":
                    return drop()
                case b"settle":
                    raise Settle(retry()) from None
                case b"fails":
                    raise LookupError from None
        await asyncio.sleep(0)
        return None

    bodies = ["outcome", "settle", "fails", "swallows"]
    rules = {LookupError: leave(), TimeoutError: retry()}
    counts = await handled(broker, stream, handle, bodies, on_error=rules)

    assert [counts[name] for name in ("acked", "dropped", "retried", "left")] == [0, 1, 2, 1]


async def test_a_cancellation_of_its_own_after_a_timeout_is_no_timeout(broker, stream):
    """One lane: what follows a handler that was ended, and fails before it waits, fails by its own error."""

    async def handle(body: bytes):
        if body == b"own":
            raise asyncio.CancelledError
        await asyncio.sleep(60)

    bodies = ["slow", "own", "slow", "own"]
    counts = await handled(broker, stream, handle, bodies, on_error={HandlerTimeoutError: drop()})

    assert (counts["dropped"], counts["left"]) == (2, 2)


async def test_a_handler_that_goes_on_is_named_and_its_lane_comes_back_when_it_ends(broker, stream, caplog):
    """Deaf to its cancellation, it holds one lane until it ends; that is in the log, and the others go on."""
    release, seen = asyncio.Event(), []

    async def handle(body: bytes):
        while body == b"deaf" and not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()
        seen.append(body)

    broker.add_subscriber(recovering(), handle, workers=2, timeout=TIMEOUT)
    app = RustStream("test", broker)
    async with app:
        deaf = stream.add("deaf")
        await eventually_async(lambda: [r for r in errors(caplog) if deaf in r.getMessage()], timeout=15)
        for _ in range(10):
            stream.add("ok")
        await eventually_async(lambda: len(seen) == 10)
        [record] = errors(caplog)
        assert "goes on all the same" in record.getMessage()
        release.set()
        await eventually_async(lambda: app.health().subscriptions[0].counts["left"] == 1)
        stream.add("ok")
        await eventually_async(lambda: len(seen) == 12)

    assert stream.pending_ids() == [deaf]


async def test_a_def_handler_keeps_its_entry_until_it_returns(any_server, broker, stream, caplog):
    """B108: no cancellation, no second delivery while it runs (it is renewed), one line, and its outcome is its own."""
    go, seen = threading.Event(), []

    def handle(body: bytes, ctx: Context):
        seen.append((body, ctx.delivery_count))
        if body == b"slow":
            assert go.wait(30)

    source = RedisStream.recovering("s", group="g", min_idle=0.3, start_id=StreamStart.BEGINNING)
    broker.add_subscriber(source, handle, workers=2, timeout=TIMEOUT)
    slow = stream.add("slow")
    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: [record for record in caplog.records if "can't be cancelled" in record.message])
        idle = []

        def renewed():
            idle.append(stream.pending()[0]["time_since_delivered"])
            return sum(later < earlier for earlier, later in itertools.pairwise(idle))

        await eventually_async(lambda: renewed() >= 4)
        stream.add("ok")
        await eventually_async(lambda: stream.pending_ids() == [slow])
        go.set()
        await eventually_async(lambda: stream.pending_ids() == [])

    assert sorted(seen) == [(b"ok", 1), (b"slow", 1)]
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


async def test_a_task_group_inside_is_ended_whole(broker, stream):
    """The children of a handler that is cancelled are cancelled, and a Settle in one of them is an outcome."""
    ended = []

    async def child(name):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(name)

    async def say(outcome):
        raise Settle(outcome)

    async def handle(body: bytes):
        async with asyncio.TaskGroup() as group:
            group.create_task(child(body))
            if body == b"says":
                group.create_task(say(drop()))

    counts = await handled(broker, stream, handle, ["slow", "says"], on_error={TimeoutError: retry()})

    assert ended == [b"slow", b"says"]
    assert (counts["retried"], counts["dropped"]) == (1, 1)


async def test_a_stop_before_the_timeout_is_a_stop(broker, stream):
    """At the end of the drain timeout the handler is cancelled as ever: nothing is settled, also with a timeout due."""

    async def handle(body: bytes):
        await asyncio.sleep(60)

    broker.add_subscriber(recovering(), handle, timeout=0.5, on_error=drop())
    entry = stream.add("x")
    app = RustStream("test", broker, drain_timeout=0.1)
    async with app:
        await eventually_async(lambda: app.health().subscriptions[0].counts["running"] == 1)

    assert stream.pending_ids() == [entry]


async def test_a_dead_letter_says_that_it_was_the_timeout(any_server, broker, stream):
    """on_error={TimeoutError: dead_letter()}: the letter names HandlerTimeoutError, in one step with the ack."""

    async def handle(body: bytes):
        await asyncio.sleep(60)

    await handled(broker, stream, handle, ["slow"], dead_letter="s.dlq", on_error={TimeoutError: dead_letter()})

    [(_, letter)] = stream.client.xrange("s.dlq")
    assert b"HandlerTimeoutError" in letter[b"h:x-dead-letter-error"]
    assert (letter[b"_payload"], stream.pending_ids()) == (b"slow", [])


async def test_in_memory_too():
    """The in-process model has the same timeouts."""
    broker, ended = RedisBroker("memory://timeouts"), []

    @broker.subscriber(recovering(), timeout=TIMEOUT, on_error={TimeoutError: drop()})
    async def handle(body: bytes):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(body)

    app = RustStream("memory", broker)
    async with app:
        await broker.publish(b"slow", "s")
        await eventually_async(lambda: app.health().subscriptions[0].counts["dropped"] == 1)

    assert ended == [b"slow"]
