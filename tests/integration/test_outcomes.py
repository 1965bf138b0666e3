"""How a delivery ends: by return, by exception, by hand; and what the server and the log say of it."""

import asyncio
import logging

import pytest

from eventually import eventually_async
from ruststream import Context, RustStream, Settle, ack, drop, leave, retry
from ruststream.errors import AlreadySettledError
from ruststream.redis import RedisStream, StreamStart

MODES = ["new", "reclaim", "recovering"]


def source(mode: str, min_idle: float = 4, **options: object) -> RedisStream:
    options = {"group": "g", "start_id": StreamStart.BEGINNING} | options
    return getattr(RedisStream, mode)("s", **options if mode == "new" else {"min_idle": min_idle} | options)


def bring(stream, mode: str, body: str = "x") -> str:
    """Add an entry so that a subscription of this mode gets it: for a reclaim it has to be pending and old."""
    entry = stream.add(body)
    if mode == "reclaim":
        stream.deliver("dead", count=1)
        stream.client.xclaim("s", "g", "dead", 0, [entry], idle=60_000, justid=True)
    return entry


def errors(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


async def settled(app) -> bool:
    """Whether everything that was read has ended."""
    counts = app.health().subscriptions[0].counts
    return counts["read"] > 0 and counts["in_flight"] == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("outcome", [None, ack(), drop()])
async def test_none_ack_and_drop_take_the_entry_off_the_pending_list(any_server, broker, stream, mode, outcome):
    """Nothing is copied, nothing stays pending; acks and drops are counted apart."""
    stream.create_group()

    @broker.subscriber(source(mode))
    async def handle(body: bytes):
        return outcome

    app = RustStream("test", broker)
    async with app:
        bring(stream, mode)
        await eventually_async(lambda: settled(app))
        counts = app.health().subscriptions[0].counts

    assert stream.pending_ids() == []
    assert stream.length() == 1
    expected = (0, 1) if outcome is not None and outcome.kind == "drop" else (1, 0)
    assert (counts["acked"], counts["dropped"]) == expected


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["return", "raise", "by hand", "exception"])
async def test_what_is_left_stays_pending_and_lets_the_next_one_in(any_server, broker, stream, mode, how):
    """leave(), and every unhandled exception: still pending under our name, count unchanged, and its lane goes on."""
    stream.create_group()
    seen = []

    @broker.subscriber(source(mode))
    async def handle(body: bytes, ctx: Context):
        seen.append(body)
        if body == b"next":
            return None
        if how == "raise":
            raise Settle(leave())
        if how == "exception":
            raise LookupError("no such account")
        if how == "by hand":
            ctx.settle(leave())
            return None
        return leave()

    app = RustStream("test", broker)
    async with app:
        left = bring(stream, mode)
        await eventually_async(lambda: settled(app))
        bring(stream, mode, "next")
        await eventually_async(lambda: b"next" in seen)
        await eventually_async(lambda: len(stream.pending()) == 1)
        [row] = stream.pending()
        assert row["message_id"] == left
        assert row["consumer"] == app.health().subscriptions[0].consumer
        assert row["times_delivered"] == (2 if mode == "reclaim" else 1)
        assert app.health().subscriptions[0].counts["left"] == 1

    assert seen == [b"x", b"next"]
    assert stream.length() == 2
    assert stream.pending_ids() == [left]


@pytest.mark.parametrize("mode", MODES)
async def test_an_exception_is_logged_with_everything_needed_to_find_the_entry(
    any_server, broker, stream, caplog, mode
):
    """C6: subscription, stream, group, consumer, id and delivery count, and the traceback (upstream logs nothing)."""
    stream.create_group()

    @broker.subscriber(source(mode), name="post_payment")
    async def handle(body: bytes):
        raise LookupError("no such account")

    app = RustStream("test", broker)
    async with app:
        entry = bring(stream, mode)
        await eventually_async(lambda: settled(app))
        consumer = app.health().subscriptions[0].consumer

    [text] = errors(caplog)
    count = 2 if mode == "reclaim" else 1
    for part in ("post_payment", "stream s", "group g", f"consumer {consumer}", f"entry {entry}", f"delivery {count}"):
        assert part in text
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "no such account" in str(record.exc_info[1])


async def test_a_settle_from_deep_inside_passes_every_except_exception(any_server, broker, stream, caplog):
    """`raise Settle(drop())` ends the handler from within a library that catches everything it can."""

    def deepest():
        raise Settle(drop())

    def deep():
        try:
            deepest()
        except Exception:
            pytest.fail("it was swallowed")

    @broker.subscriber(source("recovering"))
    async def handle(body: bytes):
        deep()

    app = RustStream("test", broker)
    async with app:
        stream.add("x")
        await eventually_async(lambda: stream.pending_ids() == [] and settled(app))
        await eventually_async(lambda: app.health().subscriptions[0].counts["dropped"] == 1)

    assert errors(caplog) == []


@pytest.mark.parametrize("ending", ["returns None", "returns an outcome", "raises"])
async def test_settling_by_hand_counts_once_however_the_handler_ends(any_server, broker, stream, caplog, ending):
    """ctx.settle is final: what the handler then returns or raises is said in the log, and changes nothing."""
    at_the_server = asyncio.Event()

    @broker.subscriber(source("recovering"))
    async def handle(body: bytes, ctx: Context):
        ctx.settle(ack())
        await at_the_server.wait()
        if ending == "raises":
            raise LookupError("too late")
        return retry() if ending == "returns an outcome" else None

    app = RustStream("test", broker)
    async with app:
        stream.add("x")
        await eventually_async(lambda: stream.group()["entries-read"] == 1 and stream.pending_ids() == [])
        at_the_server.set()
        stream.add("next")
        await eventually_async(lambda: app.health().subscriptions[0].counts["acked"] == 2)
        counts = app.health().subscriptions[0].counts

    assert (counts["retried"], counts["left"], stream.length()) == (0, 0, 2)
    expected = {"returns None": 0, "returns an outcome": 2, "raises": 2}[ending]
    assert len(errors(caplog)) == expected


async def test_a_second_settle_is_refused(any_server, broker, stream):
    """AlreadySettledError names the entry; the first outcome stands."""
    refusals = []

    @broker.subscriber(source("recovering"))
    async def handle(body: bytes, ctx: Context):
        ctx.settle(drop())
        assert ctx.settled
        with pytest.raises(AlreadySettledError) as refusal:
            ctx.settle(retry())
        refusals.append((str(ctx.entry_id), str(refusal.value)))

    app = RustStream("test", broker)
    async with app:
        entry = stream.add("x")
        await eventually_async(lambda: app.health().subscriptions[0].counts["dropped"] == 1)

    [(entry_id, text)] = refusals
    assert entry_id == entry
    assert entry in text
    assert stream.pending_ids() == []


@pytest.mark.parametrize("value", [True, False, 0, "ack", {"id": 1}, retry, [ack()]])
async def test_a_return_value_that_means_nothing_is_no_ack(broker, stream, caplog, value):
    """`return True`, `return retry` without parentheses: the entry stays pending and the log says what to return."""

    @broker.subscriber(source("claiming"), name="post_payment")
    async def handle(body: bytes):
        return value

    app = RustStream("test", broker)
    async with app:
        entry = stream.add("x")
        await eventually_async(lambda: settled(app))

    assert stream.pending_ids() == [entry]
    [text] = errors(caplog)
    for part in ("post_payment", entry, "return None to ack", "retry()"):
        assert part in text


async def test_the_first_return_value_and_the_log_stay_short(broker, stream, caplog):
    """A huge return value does not become a huge log line."""

    @broker.subscriber(source("claiming"))
    async def handle(body: bytes):
        return "x" * 1_000_000

    app = RustStream("test", broker)
    async with app:
        stream.add("x")
        await eventually_async(lambda: settled(app))

    [text] = errors(caplog)
    assert len(text) < 1000


async def test_exceptions_have_the_outcome_of_their_class(any_server, broker, stream):
    """on_error: looked up along the ancestors; a class that is not named leaves the entry pending."""
    kinds = {b"timeout": TimeoutError, b"value": ValueError, b"key": KeyError}

    @broker.subscriber(source("recovering"), on_error={OSError: drop(), ValueError: ack()})
    async def handle(body: bytes):
        raise kinds[body]

    app = RustStream("test", broker)
    async with app:
        entries = {body: stream.add(body) for body in kinds}
        await eventually_async(lambda: app.health().subscriptions[0].counts["left"] == 1)
        await eventually_async(lambda: len(stream.pending()) == 1)
        counts = app.health().subscriptions[0].counts

    assert stream.pending_ids() == [entries[b"key"]]
    assert (counts["dropped"], counts["acked"]) == (1, 1)


async def test_after_ack_runs_once_the_server_has_answered(any_server, broker, stream):
    """The callback sees the entry gone from the pending list, and runs on the loop, once."""
    seen = []

    @broker.subscriber(source("recovering"))
    async def handle(body: bytes, ctx: Context):
        ctx.after_ack(lambda: seen.append((body, stream.pending_ids())))

    async with RustStream("test", broker):
        stream.add("x")
        await eventually_async(lambda: seen)
        stream.add("y")
        await eventually_async(lambda: len(seen) == 2)

    assert seen == [(b"x", []), (b"y", [])]


@pytest.mark.parametrize("mode", ["recovering", "new"])
@pytest.mark.parametrize("outcome", [retry(), leave()])
async def test_after_ack_does_not_run_for_what_was_not_acked(broker, stream, mode, outcome):
    """A delivery that was retried or left was not acked; nor does its callback run when a later one of the entry is."""
    seen, calls = [], []

    @broker.subscriber(source(mode, min_idle=0.1))
    async def handle(body: bytes, ctx: Context):
        calls.append(ctx.delivery_count)
        ctx.after_ack(lambda count=ctx.delivery_count: seen.append((body, count)))
        return outcome if body == b"x" and ctx.delivery_count == 1 else None

    async with RustStream("test", broker):
        stream.add("x")
        expected = [] if mode == "new" and outcome.kind == "leave" else [(b"x", 2)]
        await eventually_async(lambda: len(calls) == 1 + len(expected))
        stream.add("end")
        await eventually_async(lambda: set(seen) >= {(b"end", 1), *expected})

    assert sorted(seen) == sorted([(b"end", 1), *expected])


async def test_a_failing_after_ack_harms_nobody(broker, stream, caplog):
    """It is logged with its entry; other callbacks of the entry and later entries go on."""
    seen = []

    def fail():
        raise LookupError("callback")

    @broker.subscriber(source("claiming"))
    async def handle(body: bytes, ctx: Context):
        ctx.after_ack(fail)
        ctx.after_ack(lambda: seen.append(body))

    async with RustStream("test", broker):
        entry = stream.add("x")
        stream.add("y")
        await eventually_async(lambda: len(seen) == 2)

    assert entry in errors(caplog)[0]


async def test_handlers_are_not_called_for_what_another_group_acked(any_server, broker, stream):
    """Acks are a group's own: the second group still has the entry when the first one is done with it."""
    seen = []

    @broker.subscriber(source("recovering", group="one"))
    async def first(body: bytes):
        seen.append("one")

    @broker.subscriber(source("recovering", group="two"))
    async def second(body: bytes):
        seen.append("two")
        return leave()

    async with RustStream("test", broker):
        entry = stream.add("x")
        await eventually_async(lambda: sorted(seen) == ["one", "two"])
        await eventually_async(lambda: stream.pending_ids("one") == [])

    assert stream.pending_ids("two") == [entry]
