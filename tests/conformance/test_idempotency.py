"""`idempotency=`: one call for each message, whatever its entries go through."""

import asyncio

from backend import MIN_IDLE, Backend
from ruststream import Context, Idempotent, drop, leave
from ruststream.redis import RedisStream

RECOVERING = RedisStream.recovering("s", min_idle=MIN_IDLE, group="g")


async def test_a_duplicate_is_acked_unseen_until_its_mark_is_forgotten(backend: Backend):
    async def handler(body: int): ...

    async with backend(backend.app(handler, RECOVERING, idempotency=Idempotent(ttl=2))) as t:
        for body, message in enumerate(["a", "a", "b"]):
            await t.publish(body, "s", headers={"message-id": message})
        assert t.subscriber("main").values == [0, 2]
        assert t.pending("s", "g") == []
        assert t.app.health().subscriptions[0].counts["duplicates_done"] == 1
        await t.advance(2.5)
        await t.publish(3, "s", headers={"message-id": "a"})
        assert t.subscriber("main").values == [0, 2, 3]


async def test_what_a_message_is_known_by_may_be_computed(backend: Backend):
    async def handler(body: int): ...

    options = {"idempotency": Idempotent(ttl=60, key=lambda body: body % 10)}
    async with backend(backend.app(handler, RECOVERING, **options)) as t:
        for body in [1, 2, 11, 21, 12]:
            await t.publish(body, "s")
        assert t.subscriber("main").values == [1, 2]
        assert t.pending("s", "g") == []


async def test_what_was_not_handled_is_handled_again_and_what_was_dropped_is_not(backend: Backend):
    async def handler(body: int, ctx: Context):
        if body == 0:
            return drop()
        return leave() if ctx.delivery_count == 1 else None

    async with backend(backend.app(handler, RECOVERING, idempotency=Idempotent(ttl=60))) as t:
        for body in [0, 1]:
            await t.publish(body, "s", headers={"message-id": str(body)})
        await t.advance(MIN_IDLE)
        assert t.subscriber("main").values == [0, 1, 1]
        for body in [0, 1]:
            await t.publish(body, "s", headers={"message-id": str(body)})
        assert t.subscriber("main").values == [0, 1, 1]
        assert t.pending("s", "g") == []


async def test_a_duplicate_waits_for_the_one_that_is_handled(backend: Backend):
    release = asyncio.Event()

    async def handler(body: int):
        await release.wait()

    async with backend(backend.app(handler, RECOVERING, workers=4, idempotency=Idempotent(ttl=60))) as t:
        for body in range(3):
            await t.publish(body, "s", headers={"message-id": "m"}, wait=False)
        await t.advance(3 * MIN_IDLE)
        assert t.subscriber("main").values == [0], "its mark is renewed with its entry"
        release.set()
        await t.advance(MIN_IDLE)
        t.subscriber("main").assert_called(1)
        assert t.pending("s", "g") == []


async def test_a_crash_between_the_marks_repeats_the_work(backend: Backend):
    async def handler(body: int, ctx: Context):
        if ctx.delivery_count == 1 and body == 0:
            await asyncio.Event().wait()

    async with backend(backend.app(handler, RECOVERING, workers=4, idempotency=Idempotent(ttl=60))) as t:
        await t.publish(0, "s", headers={"message-id": "m"}, wait=False)
        await t.crash("main")
        await t.publish(1, "s", headers={"message-id": "m"}, wait=False)
        for _ in range(5):
            await t.advance(MIN_IDLE)
        record = t.subscriber("main").assert_called(2)
        assert [call.outcome is not None for call in record.calls] == [False, True]
        assert t.pending("s", "g") == []
