"""`memory://`: the same app on a stream server within the process."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from eventually import eventually_async
from ruststream import Context, RustStream, retry
from ruststream.redis import RedisBroker, RedisStream, StreamStart


class Payment(msgspec.Struct):
    """The guide's message."""

    id: int
    account: str


@pytest.mark.parametrize("mode", ["claiming", "recovering"])
async def test_a_retried_payment_comes_back_under_its_own_id(mode):
    """Once with outcome retry, once more after min_idle, the same id, the count raised: as on a server."""
    broker = RedisBroker(f"memory://retried-{mode}")
    seen = []

    @broker.subscriber(getattr(RedisStream, mode)("payments", min_idle=0.2, group="ledger"), workers=4, by_key=True)
    async def post_payment(payment: Payment, ctx: Context):
        seen.append((payment.id, ctx.entry_id, ctx.delivery_count, ctx.idle >= 0.2))
        if payment.account.startswith("migrating-") and ctx.delivery_count == 1:
            return retry()
        return None

    app = RustStream("memory", broker)
    async with app:
        first = await broker.publish(Payment(1, "migrating-1"), "payments", key="migrating-1")
        second = await broker.publish(Payment(2, "acct-1"), "payments", key="acct-1")
        await eventually_async(lambda: len(seen) == 3)
        await eventually_async(lambda: app.health().subscriptions[0].counts["unsettled"] == 0)
        assert app.health().subscriptions[0].counts["acked"] == 2

    assert sorted(seen) == sorted([(1, first, 1, False), (1, first, 2, True), (2, second, 1, False)])


async def test_new_and_reclaim_share_a_group():
    """A copy made by a retry comes back at once, and counts on."""
    broker = RedisBroker("memory://copies")
    seen = []

    async def handle(body: bytes, ctx: Context):
        seen.append(ctx.delivery_count)
        return retry() if ctx.delivery_count < 3 else None

    broker.add_subscriber(RedisStream.new("s", group="g"), handle)
    broker.add_subscriber(RedisStream.reclaim("s", min_idle=30, group="g"), handle)
    async with RustStream("memory", broker):
        await broker.publish(b"x", "s")
        await eventually_async(lambda: seen == [1, 2, 3])


async def test_brokers_of_one_name_share_it_and_others_do_not():
    """What one publishes before, the other reads; another name is another server."""
    seen, others = [], []
    name = "memory://shared"
    reader, stranger = RedisBroker(name), RedisBroker("memory://elsewhere")

    @reader.subscriber(RedisStream("s", group="g", start_id=StreamStart.BEGINNING))
    async def handle(body: bytes):
        seen.append(body)

    @stranger.subscriber(RedisStream("s", group="g", start_id=StreamStart.BEGINNING))
    async def handle_other(body: bytes):
        others.append(body)

    async with RedisBroker(name) as writer:
        await writer.publish_many([b"1", b"2"], "s")
    async with RustStream("memory", reader, stranger):
        await eventually_async(lambda: seen == [b"1", b"2"])
    assert others == []


async def test_what_was_never_started_is_handed_back_at_the_stop():
    """The next app has it at once, as its first delivery."""
    started, release = asyncio.Event(), asyncio.Event()
    first, second, seen = RedisBroker("memory://stop"), RedisBroker("memory://stop"), []
    source = RedisStream.claiming("s", min_idle=30, group="g", start_id=StreamStart.BEGINNING)

    @first.subscriber(source)
    async def hold(body: bytes):
        started.set()
        await release.wait()

    @second.subscriber(source)
    async def handle(body: bytes, ctx: Context):
        seen.append((body, ctx.delivery_count, ctx.idle))

    app = RustStream("first", first)
    async with app:
        await first.publish_many([b"1", b"2", b"3"], "s")
        await started.wait()
        await eventually_async(lambda: app.health().subscriptions[0].counts["queued"] == 2)
        asyncio.get_running_loop().call_soon(release.set)
    async with RustStream("second", second):
        await eventually_async(lambda: seen == [(b"2", 1, 0.0), (b"3", 1, 0.0)])
