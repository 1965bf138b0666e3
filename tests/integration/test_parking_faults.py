"""Parked entries that others claim, ack or delete, on servers that are full and in groups that are lost."""

import asyncio

import msgspec.msgpack
import pytest

from eventually import eventually_async
from integration.parking import DELAYED, SLACK, clock, parked, recovering
from ruststream import Context, RustStream, retry
from ruststream.redis import RedisBroker


async def test_an_early_claimer_parks_it_again_without_counting(any_server, make_broker, stream):
    """A delay of 1.2 s at min_idle 0.2 s, two apps: neither hands it over before, and the count is 2 when it comes."""
    seen = []
    brokers = [make_broker(), make_broker()]
    for broker in brokers:

        @broker.subscriber(recovering(min_idle=0.2))
        async def handle(ctx: Context):
            seen.append((clock(stream), ctx.delivery_count, ctx.idle))
            return retry(after=1.2) if ctx.delivery_count == 1 else None

    async with RustStream("a", brokers[0]), RustStream("b", brokers[1]):
        entry = stream.add("x")
        due = (await eventually_async(lambda: parked(stream)))[entry][1]
        await eventually_async(lambda: len(seen) == 2)
        await eventually_async(lambda: stream.pending_ids() == [])

    [(_, first, _), (back, second, idle)] = seen
    assert (first, second) == (1, 2)
    assert 0 <= back - due < 5 * SLACK
    assert abs(idle - 1.2) < 5 * SLACK


async def test_an_early_claim_whose_claimer_died_keeps_the_due_time(any_server, broker, stream):
    """Claimed early by one that died before it looked at the delay: the next one sees it all the same."""
    seen = []

    @broker.subscriber(recovering(min_idle=0.3))
    async def handle(ctx: Context):
        seen.append((clock(stream), ctx.delivery_count))
        return retry(after=1.5) if ctx.delivery_count == 1 else None

    async with RustStream("test", broker):
        entry = stream.add("x")
        due = (await eventually_async(lambda: parked(stream)))[entry][1]
        stream.claim("died", entry)
        await eventually_async(lambda: len(seen) == 2)

    assert 0 <= seen[1][0] - due < 5 * SLACK
    assert seen[1][1] == 3, "nobody can tell whether the dead one had started it"


async def test_a_foreign_claimer_keeps_what_it_took(any_server, broker, stream):
    """Someone who knows nothing of delays takes the entry: at the due time it is not taken from under it."""
    seen = []

    @broker.subscriber(recovering(min_idle=30))
    async def handle(body: bytes, ctx: Context):
        seen.append((body, ctx.delivery_count))
        return retry(after=0.3) if body == b"x" else None

    async with RustStream("test", broker):
        entry = stream.add("x")
        await eventually_async(lambda: entry in parked(stream))
        stream.claim("foreign", entry)
        await eventually_async(lambda: not stream.client.exists(DELAYED))
        stream.add("after")
        await eventually_async(lambda: (b"after", 1) in seen)

    assert seen == [(b"x", 1), (b"after", 1)]
    assert [(row["consumer"], row["times_delivered"]) for row in stream.pending()] == [("foreign", 2)]


@pytest.mark.parametrize("how", ["acked", "deleted", "trimmed"])
async def test_the_member_of_an_entry_that_is_gone_goes_too(any_server, broker, stream, how):
    """Acked, deleted or trimmed by someone else while it was parked: the set is empty once it was due."""
    seen = []

    @broker.subscriber(recovering(min_idle=30))
    async def handle(ctx: Context):
        seen.append(ctx.delivery_count)
        return retry(after=0.3)

    async with RustStream("test", broker):
        entry = stream.add("x")
        await eventually_async(lambda: entry in parked(stream))
        if how == "acked":
            stream.client.xack("s", "g", entry)
        elif how == "deleted":
            stream.client.xdel("s", entry)
        else:
            stream.client.xtrim("s", maxlen=0, approximate=False)
        await eventually_async(lambda: not stream.client.exists(DELAYED))
        await eventually_async(lambda: stream.pending_ids() == [])

    assert seen == [1]


async def test_a_full_server_parks_nothing_and_loses_nothing(make_server, stream_of, caplog):
    """B021: the server refuses the due time: the entry stays pending, it is said, and it comes back after min_idle."""
    server = make_server()
    stream, broker, seen = stream_of(server), RedisBroker(server.url), []

    @broker.subscriber(recovering(min_idle=0.3))
    async def handle(ctx: Context):
        if ctx.delivery_count == 1:
            stream.client.config_set("maxmemory", 1)
            return retry(after=60)
        seen.append(ctx.delivery_count)
        return None

    async with RustStream("test", broker):
        entry = stream.add("x")
        await eventually_async(lambda: any(entry in record.getMessage() for record in caplog.records))
        stream.client.config_set("maxmemory", 0)
        await eventually_async(lambda: seen)

    assert seen == [2]


async def test_what_another_consumer_took_meanwhile_is_not_parked(any_server, broker, stream):
    """Owner and count are checked in the same step."""
    started, taken = asyncio.Event(), asyncio.Event()

    @broker.subscriber(recovering(min_idle=30))
    async def handle(ctx: Context):
        started.set()
        await taken.wait()
        return retry(after=0.1)

    app = RustStream("test", broker)
    async with app:
        entry = stream.add("x")
        await started.wait()
        stream.claim("thief", entry)
        taken.set()
        await eventually_async(lambda: app.health().subscriptions[0].counts["in_flight"] == 0)

    assert not stream.client.exists(DELAYED)
    assert [(row["consumer"], row["times_delivered"]) for row in stream.pending()] == [("thief", 2)]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_group_that_is_made_again_has_nothing_parked(any_server, make_broker, stream, restarted):
    """B002: what an entry was parked for in the lost group does not take it from under who runs it in the new one."""
    counts, left = [], msgspec.msgpack.encode(["1-1", "other", "1"])

    async def handle(ctx: Context):
        counts.append((ctx.delivery_count, len(parked(stream))))
        return retry(after=60) if len(counts) == 1 else None

    def app():
        broker = make_broker()
        broker.add_subscriber(recovering(block=0.1), handle)
        return RustStream("test", broker)

    async with app():
        entry = stream.add("x")
        await eventually_async(lambda: entry in parked(stream))
        stream.client.zadd(DELAYED, {left: 2e15})
        if not restarted:
            stream.client.xgroup_destroy("s", "g")
            await eventually_async(lambda: len(counts) == 2)
            await eventually_async(lambda: stream.pending_ids() == [])
    if restarted:
        stream.client.xgroup_destroy("s", "g")
        async with app():
            await eventually_async(lambda: len(counts) == 2)
            await eventually_async(lambda: stream.pending_ids() == [])

    assert counts == [(1, 0), (1, 1)]
    assert stream.client.zrange(DELAYED, 0, -1) == [left]
