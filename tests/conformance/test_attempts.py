"""How often a handler is started for one entry: counted the same everywhere, and nothing else counts."""

import pytest

from backend import MIN_IDLE, Backend
from ruststream import Context, drop, leave, retry
from ruststream.redis import RedisStream

RECOVERING = RedisStream.recovering("s", min_idle=MIN_IDLE, group="g")


@pytest.mark.parametrize("asks", [retry, leave])
async def test_a_handler_that_fails_is_called_exactly_so_often(backend: Backend, asks):
    async def handler(body: int, ctx: Context):
        return asks()

    async with backend(backend.app(handler, RECOVERING, max_attempts=3, on_exhausted=drop())) as t:
        await t.publish(1, "s")
        for calls in (2, 3):
            await t.advance(MIN_IDLE * 1.5)
            t.subscriber("main").assert_called(calls)
        assert t.pending("s", "g") == []
        await t.advance(MIN_IDLE * 1.5)
        t.subscriber("main").assert_called(3)


async def test_what_has_used_up_its_attempts_is_a_dead_letter(backend: Backend):
    async def handler(body: int, ctx: Context):
        raise ValueError("no")

    async with backend(backend.app(handler, RECOVERING, max_attempts=1, dead_letter="dlq")) as t:
        await t.publish(1, "s")
        t.subscriber("main").assert_called(1)
        assert t.stream("dlq").length == 1
        assert t.pending("s", "g") == []
