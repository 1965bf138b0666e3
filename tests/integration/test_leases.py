"""Entries that are held stay this process's own while it lives, and when one is lost that is known and respected."""

import asyncio
import threading
import time

import pytest

from eventually import eventually_async
from ruststream import Context, RustStream, drop, retry
from ruststream.redis import RedisStream, StreamStart

MIN_IDLE = 0.2


def recovering(min_idle: float = MIN_IDLE, **options: object) -> RedisStream:
    return RedisStream.recovering("s", group="g", min_idle=min_idle, start_id=StreamStart.BEGINNING, **options)


async def test_a_handler_of_ten_times_min_idle_runs_once(any_server, broker, make_broker, stream):
    """B004: with a second worker and a second app in wait: one call, and the entry never changes hands or count."""
    calls, rows = [], []
    second = make_broker()
    for part in (broker, second):

        @part.subscriber(recovering(), workers=2)
        async def handle(body: bytes, ctx: Context):
            calls.append(str(ctx.entry_id))
            for _ in range(10):
                await asyncio.sleep(MIN_IDLE)
                [row] = stream.pending()
                rows.append((row["consumer"] == ctx.consumer, row["times_delivered"], row["time_since_delivered"]))

    async with RustStream("one", broker), RustStream("two", second):
        stream.add("x")
        await eventually_async(lambda: len(rows) == 10)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert len(calls) == 1
    assert {(own, count) for own, count, _ in rows} == {(True, 1)}
    assert max(idle for *_, idle in rows) < MIN_IDLE * 1000


@pytest.mark.parametrize("any_server", ["redis-8.10", "redis-7.0"], indirect=True)
async def test_a_handler_that_blocks_the_loop_for_ten_times_min_idle_runs_once(
    any_server, broker, make_broker, stream, beside
):
    """B004, B108, C7: renewal does not need the event loop. The app in wait lives on a loop of its own."""
    calls, stolen = [], []
    second = make_broker()

    @broker.subscriber(recovering(), workers=2)
    async def handle(body: bytes):
        calls.append(body)
        time.sleep(10 * MIN_IDLE)  # noqa: ASYNC251 - blocking is what it is about

    @second.subscriber(RedisStream.reclaim("s", group="g", min_idle=MIN_IDLE))
    async def steal(body: bytes):
        stolen.append(body)

    # It takes idle entries alone, so it may be there before the handler blocks.
    with beside(RustStream("two", second)):
        async with RustStream("one", broker):
            stream.add("x")
            await eventually_async(lambda: calls and stream.pending_ids() == [])

    assert (calls, stolen) == ([b"x"], [])


async def test_renewals_do_not_count_as_deliveries(any_server, broker, stream):
    """XPENDING says 1 for all 100 held entries after many renewals, and their idle time stays below min_idle."""
    release = asyncio.Event()

    @broker.subscriber(recovering())
    async def handle(body: bytes):
        await release.wait()

    async with RustStream("test", broker):
        stream.add_numbered(1, 100)
        await eventually_async(lambda: len(stream.pending_ids()) == 100)
        stream.client.config_resetstat()
        worst = 0
        # Each tick renews everything in one script; ten of them are far more than min_idle together.
        while stream.client.info("commandstats").get("cmdstat_xclaim", {"calls": 0})["calls"] < 10:
            worst = max(worst, *(row["time_since_delivered"] for row in stream.pending()))
            await asyncio.sleep(0.01)
        assert {row["times_delivered"] for row in stream.pending()} == {1}
        release.set()
        await eventually_async(lambda: stream.pending_ids() == [])

    assert worst < MIN_IDLE * 1000


async def test_new_entries_are_renewed_for_the_apps_recoverer(any_server, broker, stream):
    """A `new` subscription takes its min_idle from the reclaim of its group: no entry of ours is reclaimed by us."""
    calls, reclaimed = [], []

    @broker.subscriber(RedisStream("s", group="g", start_id="0"), workers=2)
    async def handle(body: bytes):
        calls.append(body)
        await asyncio.sleep(4 * MIN_IDLE)

    @broker.subscriber(RedisStream.reclaim("s", group="g", min_idle=MIN_IDLE))
    async def recover(body: bytes):
        reclaimed.append(body)

    async with RustStream("test", broker):
        stream.add("a")
        stream.add("b")
        await eventually_async(lambda: len(calls) == 2 and stream.pending_ids() == [])

    assert (calls, reclaimed) == ([b"a", b"b"], [])


@pytest.mark.parametrize("outcome", [None, drop(), retry()])
async def test_a_stolen_entry_is_known_as_lost_and_left_to_its_owner(any_server, broker, stream, caplog, outcome):
    """B069 turned round: XCLAIM from outside sets ctx.lease_lost, and settling late removes nothing and says so."""
    events = []

    @broker.subscriber(recovering(min_idle=0.6))
    async def handle(body: bytes, ctx: Context):
        if body == b"stolen" and ctx.delivery_count == 1:
            assert not ctx.lease_lost.is_set()
            stream.claim("thief", str(ctx.entry_id))
            await ctx.lease_lost.wait()
            events.append("lost")
            return outcome
        return None

    app = RustStream("test", broker)
    async with app:
        entry = stream.add("stolen")
        await eventually_async(lambda: events == ["lost"])
        await eventually_async(lambda: app.health().subscriptions[0].counts["in_flight"] == 0)
        [row] = stream.pending()
        assert (row["message_id"], row["consumer"], row["times_delivered"]) == (entry, "thief", 2)
        assert stream.length() == 1
        assert app.health().subscriptions[0].counts["lost"] == 1

    assert any("taken over" in record.getMessage() or "owns" in record.getMessage() for record in caplog.records)


async def test_a_late_ack_of_a_stolen_entry_removes_nothing(any_server, broker, stream):
    """The loop is blocked when the entry is stolen, so nothing there can know; the core does, and sends no ack."""
    acked = []

    @broker.subscriber(recovering(min_idle=0.3))
    async def handle(body: bytes, ctx: Context):
        if ctx.delivery_count == 1:
            stream.claim("thief", str(ctx.entry_id))
            time.sleep(0.25)  # noqa: ASYNC251 - blocking is what it is about
            acked.append(str(ctx.entry_id))

    app = RustStream("test", broker)
    async with app:
        stream.add("x")
        await eventually_async(lambda: acked)
        await eventually_async(lambda: app.health().subscriptions[0].counts["in_flight"] == 0)
        owners = [(row["consumer"], row["times_delivered"]) for row in stream.pending()]

    assert owners == [("thief", 2)]


async def test_queued_entries_that_are_stolen_are_not_run(any_server, broker, stream):
    """Taken from outside while they wait for a lane: their handlers are not called here."""
    started, release, calls = asyncio.Event(), asyncio.Event(), []

    @broker.subscriber(recovering(min_idle=0.6))
    async def handle(body: bytes, ctx: Context):
        calls.append(body)
        started.set()
        await release.wait()

    app = RustStream("test", broker)
    async with app:
        stream.add("first")
        await started.wait()
        queued = [stream.add("queued") for _ in range(5)]
        await eventually_async(lambda: len(stream.pending_ids()) == 6)
        stream.claim("thief", *queued)
        await eventually_async(lambda: app.health().subscriptions[0].counts["lost"] == 5)
        release.set()
        await eventually_async(lambda: app.health().subscriptions[0].counts["in_flight"] == 0)
        assert calls == [b"first"]
        assert {row["consumer"] for row in stream.pending()} == {"thief"}


@pytest.mark.parametrize("mode", ["new", "recovering"])
async def test_a_loop_that_stands_still_gives_its_entries_up(
    any_server, make_broker, stream, caplog, beside, figure, mode
):
    """renew_stalled: past it another process gets the entry at once, as its second delivery. The log says ERROR,
    lease_lost is set, and what the stalled handler returns in the end does not touch the new owner's entry.
    """
    first, second, lost = make_broker(), make_broker(), []
    taken, end = threading.Event(), threading.Event()
    source = RedisStream("s", group="g", start_id="0", min_idle=0.2) if mode == "new" else recovering(min_idle=0.2)
    began = []

    @first.subscriber(source, renew_stalled=0.5)
    async def stall(body: bytes, ctx: Context):
        event = ctx.lease_lost
        began.append(time.monotonic())
        assert taken.wait(10)
        await asyncio.wait_for(event.wait(), 1)
        lost.append(ctx.lost)

    calls = []

    @second.subscriber(RedisStream.reclaim("s", group="g", min_idle=0.2))
    async def take(body: bytes, ctx: Context):
        calls.append((time.monotonic(), ctx.delivery_count))
        taken.set()
        await asyncio.to_thread(end.wait, 10)

    app = RustStream("one", first)
    with beside(RustStream("two", second)):
        async with app:
            stream.add("x")
            await eventually_async(lambda: lost)
            await eventually_async(lambda: app.health().subscriptions[0].counts["in_flight"] == 0)
            owners = [row["times_delivered"] for row in stream.pending()]
            end.set()
            await eventually_async(lambda: stream.pending_ids() == [])

    [(when, count)] = calls
    figure("stalled loop", f"given up and taken after {when - began[0]:.2f} s, delivery {count}, {mode}")
    assert any(record.levelname == "ERROR" and "renew_stalled" in record.getMessage() for record in caplog.records)
    assert owners == [2]
    assert count == 2
    assert when - began[0] < 1.5
