"""What app.health() reports and what the server says of the same thing, at every step of an entry's way."""

import asyncio
import re
from collections import Counter

import pytest

from eventually import eventually_async
from ruststream import Context, RustStream, drop, leave, retry
from ruststream.redis import RedisBroker, RedisStream, StreamStart


def recovering(min_idle: float = 30, **options: object) -> RedisStream:
    return RedisStream.recovering("s", group="g", min_idle=min_idle, start_id=StreamStart.BEGINNING, **options)


async def test_counts_and_gauges_agree_with_the_server(any_server, broker, stream):
    """XINFO GROUPS, XINFO CONSUMERS and XPENDING against queued, running, acked, dropped, retried and left."""
    gates = {b"hold": asyncio.Event()}

    @broker.subscriber(recovering(count=100), workers=4)
    async def handle(body: bytes):
        if body == b"hold":
            await gates[body].wait()
        return {b"drop": drop(), b"leave": leave(), b"retry": retry()}.get(body)

    bodies = [b"ack"] * 40 + [b"drop"] * 10 + [b"leave"] * 5 + [b"retry"] * 5 + [b"hold"] * 20
    app = RustStream("test", broker)
    async with app:
        for body in bodies:
            stream.add(body)
        await eventually_async(lambda: app.health().subscriptions[0].counts["running"] == 4)
        await eventually_async(lambda: stream.group()["pending"] == 30 and stream.group()["lag"] == 0)
        [subscription] = app.health().subscriptions
        counts = subscription.counts
        assert (counts["acked"], counts["dropped"], counts["left"], counts["retried"]) == (40, 10, 5, 5)
        assert (counts["queued"], counts["running"], counts["in_flight"], counts["unsettled"]) == (16, 4, 20, 0)
        assert counts["read"] == stream.group()["entries-read"] == 80
        assert stream.group()["consumers"] == 1
        [(name, row)] = stream.consumers().items()
        assert (name, row["pending"]) == (subscription.consumer, 30)
        assert {row["consumer"] for row in stream.pending()} == {subscription.consumer}
        gates[b"hold"].set()
        await eventually_async(lambda: stream.group()["pending"] == 10)
        counts = app.health().subscriptions[0].counts
        assert (counts["acked"], counts["in_flight"]) == (60, 0)

    assert stream.group()["pending"] == counts["left"] + counts["retried"]
    assert not app.health().subscriptions


async def test_claims_are_counted_as_the_server_counts_them(any_server, broker, stream):
    """claimed is what came from the pending list; read is all of it."""
    stream.create_group()
    stream.add_numbered(1, 30)
    stream.deliver("dead")
    stream.add_numbered(31, 50)

    @broker.subscriber(recovering(min_idle=0.05))
    async def handle(body: bytes):
        pass

    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: app.health().subscriptions[0].counts["acked"] == 50)
        counts = app.health().subscriptions[0].counts

    assert (counts["read"], counts["claimed"]) == (50, 30)
    assert stream.group()["pending"] == 0


async def test_what_was_released_at_stop_is_what_the_server_has(any_server, broker, stream, caplog):
    """The line at the end of a drain: acked, released and left pending add up to what XPENDING and the handlers say."""
    caplog.set_level("INFO")
    started, release, ended = asyncio.Event(), asyncio.Event(), []

    @broker.subscriber(recovering())
    async def handle(number: int):
        started.set()
        await release.wait()
        ended.append(number)
        return leave() if number == 1 else None

    stream.add_numbered(1, 50)
    app = RustStream("test", broker)
    async with app:
        await started.wait()
        await eventually_async(lambda: len(stream.pending_ids()) == 50)
        asyncio.get_running_loop().call_later(0.05, release.set)

    [line] = [record.getMessage() for record in caplog.records if "drain complete" in record.getMessage()]
    assert ended == [1]
    names = ("acked", "retried", "released", "left pending")
    said = {name: int(re.search(rf"{name} (\d+)", line)[1]) for name in names}
    assert said == {"acked": 0, "retried": 0, "released": 49, "left pending": 1}
    assert len(stream.pending_ids()) == 50


async def test_an_entry_that_was_left_often_is_left_pending_once(any_server, broker, stream, caplog):
    """`left pending` tells entries, not deliveries; what was handled in the end is none, what waits for a retry is."""
    caplog.set_level("INFO")
    calls = Counter()

    @broker.subscriber(recovering(min_idle=0.1))
    async def handle(number: int):
        calls[number] += 1
        if number == 3:
            return retry(after=60)
        return leave() if number == 1 or calls[number] < 3 else None

    app = RustStream("test", broker)
    async with app:
        stream.add_numbered(1, 3)
        await eventually_async(lambda: calls[1] >= 4 and calls[2] == 3 and calls[3] == 1, timeout=20)
        await eventually_async(lambda: app.health().subscriptions[0].counts["acked"] == 1)

    [line] = [record.getMessage() for record in caplog.records if "drain complete" in record.getMessage()]
    assert line.endswith("left pending 2")
    assert len(stream.pending_ids()) == 2


async def test_lost_entries_are_counted(any_server, broker, stream):
    """Taken from outside: lost here, owned there."""

    @broker.subscriber(recovering(min_idle=0.3), workers=3)
    async def handle(body: bytes, ctx: Context):
        await ctx.lease_lost.wait()

    app = RustStream("test", broker)
    async with app:
        stream.add_numbered(1, 3)
        await eventually_async(lambda: app.health().subscriptions[0].counts["running"] == 3)
        stream.claim("thief", *stream.pending_ids())
        await eventually_async(lambda: app.health().subscriptions[0].counts["lost"] == 3)
        await eventually_async(lambda: app.health().subscriptions[0].counts["in_flight"] == 0)
        assert stream.consumers()["thief"]["pending"] == 3
        assert app.health().subscriptions[0].counts["acked"] == 0


@pytest.mark.parametrize("loss", ["paused", "killed"])
async def test_health_says_when_the_server_is_away_and_when_it_is_back(make_server, stream_of, loss):
    """Healthy means making progress: not while the server is gone, with the reason beside it; healthy again after."""
    server = make_server()
    broker, seen = RedisBroker(server.url), []

    @broker.subscriber(recovering(block=0.2))
    async def handle(body: bytes):
        seen.append(body)

    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: app.health().healthy)
        if loss == "killed":
            server.kill()
            await eventually_async(lambda: not app.health().healthy)
            assert app.health().state == "running"
            assert app.health().subscriptions[0].state == "retrying"
            assert str(server.port) in app.health().subscriptions[0].error
            server.restart()
        else:
            server.pause()
            await asyncio.sleep(0.5)
            server.resume()
        await eventually_async(lambda: app.health().healthy)
        assert app.health().subscriptions[0].error is None
        stream_of(server).add("x")
        await eventually_async(lambda: seen == [b"x"])
