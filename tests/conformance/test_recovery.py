"""Subscriptions that recover: what comes back, when, under which id, with which counts."""

import asyncio

import pytest

from backend import HALF, MIN_IDLE, Backend
from ruststream import Context, RustStream, leave, retry
from ruststream.errors import ServerTooOldError
from ruststream.redis import RedisStream

RECOVERING = RedisStream.recovering("s", min_idle=MIN_IDLE, group="g")


async def test_a_fresh_entry_has_count_one_and_was_never_idle(backend: Backend):
    async def handler(body: int):
        pass

    async with backend(backend.app(handler, RECOVERING)) as t:
        await t.publish(1, "s")
        (call,) = t.subscriber("main").assert_called(1).calls
        assert (call.delivery_count, call.idle) == (1, 0)
        assert t.pending("s", "g") == []


async def test_a_retry_is_left_alone_for_half_of_min_idle_and_comes_back_after_all_of_it(backend: Backend):
    async def handler(body: int):
        return retry()

    async with backend(backend.app(handler, RECOVERING)) as t:
        await t.publish(1, "s")
        t.subscriber("main").assert_called(1).assert_outcome(retry())
        await t.advance(HALF)
        if backend.is_model:
            t.subscriber("main").assert_called(1)
        await t.advance(HALF)
        again = t.subscriber("main").assert_called().calls[1]
        assert again.delivery_count == 2
        backend.waited(again, MIN_IDLE)
        assert t.stream("s").length == 1, "no copy"


async def test_a_handler_that_gives_up_at_its_third_delivery_sees_one_two_three(backend: Backend):
    async def handler(body: int, ctx: Context):
        return retry() if ctx.delivery_count < 3 else None

    async with backend(backend.app(handler, RECOVERING)) as t:
        entry_id = await t.publish(1, "s")
        for _ in range(4):
            await t.advance(MIN_IDLE)
        record = t.subscriber("main").assert_called(3)
        assert [(call.entry_id, call.delivery_count) for call in record.calls] == [(entry_id, n) for n in (1, 2, 3)]
        assert t.pending("s", "g") == []


@pytest.mark.parametrize("end", ["leave", "error"])
async def test_what_was_left_or_failed_comes_back(backend: Backend, end: str):
    async def handler(body: int, ctx: Context):
        if ctx.delivery_count > 1:
            return None
        if end == "error":
            raise ValueError("no")
        return leave()

    async with backend(backend.app(handler, RECOVERING)) as t:
        await t.publish(1, "s")
        t.subscriber("main").assert_outcome(leave())
        await t.advance(MIN_IDLE)
        backend.waited(t.subscriber("main").assert_called(2).calls[1], MIN_IDLE)
        assert t.pending("s", "g") == []


async def test_what_a_dead_consumer_had_is_taken_over(backend: Backend):
    async def handler(body: int, ctx: Context):
        if ctx.delivery_count == 1:
            await asyncio.Event().wait()

    async with backend(backend.app(handler, RECOVERING)) as t:
        for body in range(3):
            await t.publish(body, "s", wait=False)
        await t.crash("main")
        assert {row.consumer for row in t.pending("s", "g")} == {"main-1"}
        await t.advance(MIN_IDLE)
        calls = [call for call in t.subscriber("main").calls if call.consumer == "main-2"]
        assert sorted((call.value, call.delivery_count) for call in calls) == [(0, 2), (1, 2), (2, 2)]
        assert t.pending("s", "g") == []


async def test_a_running_handler_keeps_its_entry_for_longer_than_min_idle(backend: Backend):
    release = asyncio.Event()

    async def handler(body: int):
        await release.wait()

    async with backend(backend.app(handler, RECOVERING)) as t:
        await t.publish(1, "s", wait=False)
        await t.advance(3 * MIN_IDLE)
        (row,) = t.pending("s", "g")
        assert row.delivery_count == 1
        release.set()
        await t.settle()
        t.subscriber("main").assert_called(1)
        assert t.pending("s", "g") == []


async def test_an_ack_never_removes_what_another_consumer_owns(backend: Backend):
    async def handler(body: int, ctx: Context):
        if ctx.delivery_count == 1:
            await ctx.lease_lost.wait()

    async with backend(backend.app(handler, RECOVERING)) as t:
        await t.publish(1, "s", wait=False)
        t.steal(t.subscriber("main").calls[0])
        # The renewal finds out, the handler ends, its ack does nothing; the thief is idle, so the entry comes back.
        await t.advance(HALF)
        await t.settle()
        assert [row.consumer for row in t.pending("s", "g")] in (["thief"], [])
        await t.advance(MIN_IDLE)
        assert [call.delivery_count for call in t.subscriber("main").calls] == [1, 3]


async def test_reclaim_takes_pending_entries_alone_and_counts_as_the_server_does(backend: Backend):
    broker = backend.broker()

    @broker.subscriber(RedisStream.new("s", group="g"))
    async def fresh(body: int):
        return leave()

    @broker.subscriber(RedisStream.reclaim("s", min_idle=MIN_IDLE, group="g"))
    async def again(body: int, ctx: Context):
        (row,) = t.pending("s", "g")
        assert (row.entry_id, row.delivery_count) == (ctx.entry_id, ctx.delivery_count)

    async with backend(RustStream("conformance", broker)) as t:
        await t.publish(1, "s")
        t.subscriber(fresh).assert_called(1)
        t.subscriber(again).assert_not_called()
        await t.advance(MIN_IDLE + HALF)
        t.subscriber(fresh).assert_called(1)
        (call,) = t.subscriber(again).assert_called(1).assert_outcome("ack").calls
        assert (call.delivery_count, call.idle >= MIN_IDLE) == (2, True)
        assert t.pending("s", "g") == []


async def test_claiming_needs_a_server_that_claims(backend: Backend):
    """Where there is no CLAIM, the start says which subscription needs it, which version has it and which is there."""

    async def handler(body: int, ctx: Context):
        return retry() if ctx.delivery_count == 1 else None

    app = backend.app(handler, RedisStream.claiming("s", min_idle=MIN_IDLE, group="g"))
    if not backend.claims:
        with pytest.raises(
            ServerTooOldError, match=r"RedisStream.claiming\(\"s\"\) of main needs Redis 8.4.0"
        ) as failed:
            await backend(app).__aenter__()
        assert failed.value.actual
        return
    async with backend(app) as t:
        await t.publish(1, "s")
        await t.advance(MIN_IDLE)
        backend.waited(t.subscriber("main").assert_called(2).calls[1], MIN_IDLE)


async def test_two_groups_each_see_every_entry(backend: Backend):
    broker = backend.broker()
    for group in ("a", "b"):

        async def handler(body: int):
            return retry()

        broker.add_subscriber(RedisStream.recovering("s", min_idle=MIN_IDLE, group=group), handler, name=group)
    async with backend(RustStream("conformance", broker)) as t:
        for body in range(3):
            await t.publish(body, "s")
        assert t.subscriber("a").values == t.subscriber("b").values == [0, 1, 2]
        assert len(t.pending("s", "a")) == len(t.pending("s", "b")) == 3
