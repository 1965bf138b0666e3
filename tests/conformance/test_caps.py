"""`max_attempts`: how often a handler is called at most, and what becomes of an entry then."""

import asyncio

import pytest

from backend import MIN_IDLE, Backend
from ruststream import Context, RustStream, drop, retry
from ruststream.redis import RedisStream

SOURCES = {
    "new": RedisStream.new("s", group="g", min_idle=30),
    "recovering": RedisStream.recovering("s", min_idle=MIN_IDLE, group="g"),
}


@pytest.mark.parametrize("mode", SOURCES)
async def test_three_attempts_are_three_calls_and_one_dead_letter(backend: Backend, mode: str):
    async def handler(body: int):
        return retry(after=0.1)

    app = backend.app(handler, SOURCES[mode], max_attempts=3, dead_letter="s.dead")
    async with backend(app) as t:
        await t.publish(7, "s")
        for _ in range(4):
            await t.advance(0.2)
        record = t.subscriber("main").assert_called(3)
        assert [call.delivery_count for call in record.calls] == [1, 2, 3]
        (letter,) = t.published("s.dead")
        assert (letter.value, letter.headers["x-dead-letter-reason"]) == (7, "max-attempts")
        assert t.pending("s", "g") == []


async def test_what_has_used_up_its_attempts_may_be_dropped(backend: Backend):
    async def handler(body: int):
        raise ValueError(body)

    app = backend.app(handler, SOURCES["recovering"], max_attempts=2, on_exhausted=drop())
    async with backend(app) as t:
        await t.publish(7, "s")
        for _ in range(3):
            await t.advance(MIN_IDLE)
        t.subscriber("main").assert_called(2)
        assert t.pending("s", "g") == []
        assert t.stream("s").length == 1


async def test_a_poison_entry_is_given_up_and_its_neighbours_are_not(backend: Backend):
    broker = backend.broker()

    @broker.subscriber(SOURCES["recovering"], name="main", workers=4, max_attempts=2, dead_letter="s.dead")
    async def handler(body: int, ctx: Context):
        if body == 3:
            # The process dies on it: the test crashes it when it hangs here.
            await asyncio.Event().wait()

    async with backend(RustStream("conformance", broker), max_calls=1000) as t:
        for body in range(1, 6):
            await t.publish(body, "s", wait=False)
        for _ in range(4):
            await t.crash("main")
            for _ in range(4):
                await t.advance(MIN_IDLE / 2, wait=False)
        values = t.subscriber("main").values
        assert values.count(3) <= 3, "max_attempts + 1"
        assert {1, 2, 4, 5} <= set(values)
        (letter,) = t.published("s.dead")
        assert letter.value == 3
