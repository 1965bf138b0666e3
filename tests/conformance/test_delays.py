"""Retries with a delay where pending entries are recovered: the same entry, at its time."""

import pytest

from backend import MIN_IDLE, Backend
from ruststream import Backoff, Context, retry
from ruststream.redis import RedisStream

RECOVERING = RedisStream.recovering("s", min_idle=MIN_IDLE, group="g")


@pytest.mark.parametrize("delay", [MIN_IDLE / 2, MIN_IDLE * 2], ids=["shorter", "longer"])
async def test_a_delayed_retry_is_the_same_entry_at_its_time(backend: Backend, delay: float):
    async def handler(body: int, ctx: Context):
        return retry(after=delay) if ctx.delivery_count == 1 else None

    async with backend(backend.app(handler, RECOVERING)) as t:
        entry_id = await t.publish(1, "s")
        await t.advance(delay / 2)
        if backend.is_model:
            t.subscriber("main").assert_called(1)
            assert len(t.pending("s", "g")) == 1
        await t.advance(delay / 2)
        again = t.subscriber("main").assert_called(2).calls[1]
        assert (again.entry_id, again.delivery_count) == (entry_id, 2)
        # One that a claimer took at the moment it fell due lay for min_idle only since it was parked again.
        assert again.idle >= min(delay, MIN_IDLE) * 0.95
        assert t.stream("s").length == 1
        assert t.pending("s", "g") == []


async def test_a_delay_outlives_its_process(backend: Backend):
    async def handler(body: int, ctx: Context):
        return retry(after=2 * MIN_IDLE) if ctx.delivery_count == 1 else None

    async with backend(backend.app(handler, RECOVERING)) as t:
        await t.publish(1, "s")
        await t.crash("main")
        await t.advance(MIN_IDLE)
        if backend.is_model:
            t.subscriber("main").assert_called(1)
        await t.advance(MIN_IDLE)
        first, second = t.subscriber("main").assert_called(2).calls
        assert (first.consumer, second.consumer, second.delivery_count) == ("main-1", "main-2", 2)


async def test_a_head_that_is_kept_outlives_its_process(backend: Backend):
    """order="strict": nobody has it while it is held; after a crash it comes back when it is due, and not before."""

    async def handler(body: int, ctx: Context):
        return retry(after=3 * MIN_IDLE) if ctx.delivery_count == 1 else None

    async with backend(backend.app(handler, RECOVERING, by_key=True, order="strict")) as t:
        await t.publish(1, "s", key="k")
        await t.advance(MIN_IDLE / 2)
        await t.crash("main")
        await t.advance(MIN_IDLE * 1.5)
        if backend.is_model:
            t.subscriber("main").assert_called(1)
        await t.advance(MIN_IDLE)
        first, second = t.subscriber("main").assert_called(2).calls
        assert (first.consumer, second.consumer, second.delivery_count) == ("main-1", "main-2", 2)
        # As above: a claimer may take it at the moment it falls due.
        assert second.idle >= MIN_IDLE * 0.95


async def test_a_backoff_delays_what_stays_pending(backend: Backend):
    async def handler(body: int, ctx: Context):
        return retry() if ctx.delivery_count < 3 else None

    app = backend.app(handler, RECOVERING, backoff=Backoff(0.1, 1, jitter=0))
    async with backend(app) as t:
        await t.publish(1, "s")
        await t.advance(0.1)
        if backend.is_model:
            t.subscriber("main").assert_called(2)
        await t.advance(0.2)
        calls = t.subscriber("main").assert_called(3).calls
        assert [call.delivery_count for call in calls] == [1, 2, 3]
        assert len({call.entry_id for call in calls}) == 1


async def test_what_waits_for_its_time_takes_no_room(backend: Backend):
    async def handler(body: int):
        return retry(after=60) if body == 0 else None

    source = RedisStream.recovering("s", min_idle=30, group="g", count=1)
    async with backend(backend.app(handler, source, max_in_flight=1)) as t:
        await t.publish(0, "s")
        for body in range(1, 4):
            await t.publish(body, "s")
        assert t.subscriber("main").values == [0, 1, 2, 3]
        assert len(t.pending("s", "g")) == 1
