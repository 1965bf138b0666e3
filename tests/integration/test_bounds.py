"""What is held stays within max_in_flight, whatever the backlog, and memory stays flat."""

import asyncio
from pathlib import Path

import pytest

from eventually import eventually_async
from ruststream import Context, RustStream, leave, retry
from ruststream.redis import RedisBroker, RedisStream, StreamStart


def source(mode: str = "recovering", **options: object) -> RedisStream:
    options = {"group": "g", "start_id": StreamStart.BEGINNING} | options
    return getattr(RedisStream, mode)("s", **options if mode == "new" else {"min_idle": 30} | options)


def resident() -> int:
    """Resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("mode", ["new", "recovering"])
@pytest.mark.parametrize(("count", "max_in_flight"), [(10, 25), (200, 1), (7, None)])
async def test_a_slow_handler_holds_no_more_than_max_in_flight(any_server, broker, stream, mode, count, max_in_flight):
    """B011: a backlog of 3,000: what the app says it holds, and what XPENDING says, is the bound and never more."""
    limit = max_in_flight or 4 * count
    most = set()
    ended = 0

    @broker.subscriber(source(mode, count=count), max_in_flight=max_in_flight)
    async def handle(body: bytes):
        nonlocal ended
        most.add(app.health().subscriptions[0].counts["in_flight"])
        if ended % 20 == 0:
            most.add(len(stream.pending_ids()))
        ended += 1
        await asyncio.sleep(0.0005)

    stream.add_numbered(1, 3000)
    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: ended >= min(200, 40 * limit))

    assert max(most) == limit


async def test_with_everything_held_the_two_sides_agree(any_server, broker, stream):
    """Handlers that wait: queued + running = in flight = XPENDING of ours = max_in_flight, and no read is sent."""
    release = asyncio.Event()

    @broker.subscriber(source(count=50), workers=8, max_in_flight=100)
    async def handle(body: bytes):
        await release.wait()

    stream.add_numbered(1, 5000)
    app = RustStream("test", broker, drain_timeout=1)
    async with app:
        await eventually_async(lambda: len(stream.pending_ids()) == 100)
        await eventually_async(lambda: app.health().subscriptions[0].counts["running"] == 8)
        counts = app.health().subscriptions[0].counts
        assert (counts["queued"], counts["running"], counts["in_flight"], counts["read"]) == (92, 8, 100, 100)
        assert {row["consumer"] for row in stream.pending()} == {app.health().subscriptions[0].consumer}
        stream.client.config_resetstat()
        await asyncio.sleep(0.2)  # time in which a reader that ignored its bound would have read all of it
        assert "cmdstat_xreadgroup" not in stream.client.info("commandstats")
        assert len(stream.pending_ids()) == 100
        release.set()


async def test_settled_entries_that_are_not_answered_yet_count(make_server, stream_of):
    """A server that hangs answers no ack: the handlers do not run on without bound, they stop at max_in_flight."""
    server = make_server()
    stream, broker, calls = stream_of(server), RedisBroker(server.url), 0

    @broker.subscriber(source(count=10), max_in_flight=40)
    async def handle(body: bytes):
        nonlocal calls
        calls += 1
        if calls == 15:
            server.pause()

    stream.add_numbered(1, 1000)
    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: calls >= 15)
        await eventually_async(lambda: app.health().subscriptions[0].counts["unsettled"] > 0)
        await asyncio.sleep(0.2)  # time in which lanes without a bound would have gone through everything
        held = app.health().subscriptions[0].counts
        assert held["in_flight"] <= 40
        assert calls <= 15 + 40
        server.resume()
        await eventually_async(lambda: calls >= 1000)
        await eventually_async(lambda: stream.pending_ids() == [])


async def test_left_and_retried_entries_give_their_room_back(any_server, broker, stream):
    """1,000 entries that are left or retried pass through room for 20: parked ones hold no credit."""
    seen = set()

    @broker.subscriber(source(count=10), max_in_flight=20)
    async def handle(number: int):
        seen.add(number)
        return leave() if number % 2 else retry()

    stream.add_numbered(1, 1000)
    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: len(seen) == 1000)
        await eventually_async(lambda: app.health().subscriptions[0].counts["in_flight"] == 0)

    assert len(stream.pending_ids()) == 1000


async def test_two_hundred_thousand_entries_pass_through_flat_memory(broker, stream, figure):
    """B011, B092: 200,000 entries, their contexts and some headers looked at: memory ends where it began."""
    seen, marks = 0, {}
    total = 200_000

    @broker.subscriber(source("claiming", count=500), workers=4, by_key=True, max_in_flight=2000)
    async def handle(body: bytes, ctx: Context):
        nonlocal seen
        seen += 1
        if seen % 20_000 == 0:
            assert ctx.headers["redis-partition-key"]
            marks[seen] = resident()

    stream.add_numbered(1, total, keys=5000)
    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: seen >= total, timeout=40, every=0.05)
        await eventually_async(lambda: stream.group()["pending"] == 0)
        assert app.health().subscriptions[0].counts["acked"] == total

    growth = marks[total] - marks[40_000]
    figure("memory over 160,000 entries", f"{growth / 1e6:+.1f} MB")
    assert seen == total
    assert growth < 16e6


async def test_a_backlog_behind_a_slow_handler_stays_at_the_server(broker, stream, figure):
    """200,000 entries wait: the app takes its 2,000 and its memory does not follow the backlog."""
    release = asyncio.Event()

    @broker.subscriber(source("claiming", count=500), max_in_flight=2000)
    async def handle(body: bytes):
        await release.wait()

    app = RustStream("test", broker, drain_timeout=1)
    async with app:
        before = resident()
        stream.add_numbered(1, 200_000)
        await eventually_async(lambda: app.health().subscriptions[0].counts["in_flight"] == 2000)
        await eventually_async(lambda: stream.group()["pending"] == 2000)
        growth = resident() - before
        release.set()

    figure("memory with 2,000 of 200,000 held", f"{growth / 1e6:+.1f} MB")
    assert growth < 16e6
