"""Handlers that take batches, take too long, run in threads, or reply."""

import asyncio
import time

from backend import MIN_IDLE, Backend
from ruststream import Context, Reply, ack, drop, leave, retry
from ruststream.redis import RedisStream

RECOVERING = RedisStream.recovering("s", min_idle=MIN_IDLE, group="g")


async def test_a_batch_has_an_outcome_for_each_element(backend: Backend):
    async def handler(bodies: list[int]):
        return [retry() if body == 1 else drop() if body == 2 else None for body in bodies]

    async with backend(backend.app(handler, RECOVERING, batch=4, batch_wait=5)) as t:
        for body in range(4):
            await t.publish(body, "s", wait=body == 3)
        record = t.subscriber("main")
        assert [[call.value for call in batch] for batch in record.batches] == [[0, 1, 2, 3]]
        record.assert_outcomes(ack(), retry(), drop(), ack())
        assert [row.entry_id for row in t.pending("s", "g")] == [record.calls[1].entry_id]


async def test_a_batch_that_fails_acks_nothing(backend: Backend):
    async def handler(bodies: list[int]):
        raise ValueError(bodies)

    source = RedisStream.recovering("s", min_idle=30, group="g")
    async with backend(backend.app(handler, source, batch=2, batch_wait=0.05)) as t:
        await t.publish(1, "s", wait=False)
        await t.publish(2, "s")
        t.subscriber("main").assert_outcomes(leave(), leave())
        assert len(t.pending("s", "g")) == 2


async def test_a_handler_that_takes_too_long_is_ended(backend: Backend):
    async def handler(body: int, ctx: Context):
        if ctx.delivery_count == 1:
            await asyncio.Event().wait()

    app = backend.app(handler, RECOVERING, timeout=0.2, on_error={TimeoutError: drop()})
    async with backend(app) as t:
        await t.publish(1, "s", wait=False)
        await t.advance(0.4)
        await t.settle()
        t.subscriber("main").assert_called(1).assert_raised(TimeoutError).assert_outcome(drop())
        assert t.pending("s", "g") == []


async def test_plain_functions_run_beside_each_other(backend: Backend):
    def handler(body: int):
        time.sleep(0.01)
        return drop()

    async with backend(backend.app(handler, RECOVERING, workers=3)) as t:
        for body in range(6):
            await t.publish(body, "s", wait=body == 5)
        record = t.subscriber("main").assert_called(6)
        assert set(record.outcomes) == {drop()}
        assert t.pending("s", "g") == []


async def test_a_reply_is_published_when_its_entry_is_acked(backend: Backend):
    async def handler(body: int):
        return Reply({"n": body}, key="k", headers={"x-mine": "1"})

    async with backend(backend.app(handler, RECOVERING, reply_to="replies")) as t:
        await t.publish(7, "s")
        (reply,) = t.published("replies")
        assert (reply.value, reply.key, reply.headers["x-mine"]) == ({"n": 7}, b"k", "1")
        assert t.pending("s", "g") == []
