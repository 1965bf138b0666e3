"""Where marks are kept: stores that refuse, fail, are slow or elsewhere, and the steps of a mark."""

import asyncio
from collections import Counter

import pytest

from eventually import eventually_async
from integration.idempotency import Flaky, counts, numbers, settled, source
from ruststream import Context, Idempotent, MarkState, RustStream, retry
from ruststream.redis import RedisBroker, RedisIdempotencyStore, RedisStream


async def test_a_server_that_refuses_marks_has_nothing_handled_unprotected(stream, broker, caplog):
    """Out of memory: reads still work, marks do not. The entry stays pending until they do; attempts are paced."""
    calls = []

    @broker.subscriber(source(), name="post", idempotency=Idempotent(ttl=60))
    async def handle(ctx: Context):
        calls.append(ctx.delivery_count)

    app = RustStream("test", broker)
    async with app:
        entry = stream.add(b"a")
        await settled(app, 1)
        second = stream.add(b"b")
        await settled(app, 2)
        try:
            third = stream.add(b"c") if stream.client.config_set("maxmemory", "0") else ""
            await settled(app, 3)
            stream.client.config_set("maxmemory-policy", "noeviction")
            pipe = stream.client.pipeline(transaction=True)
            pipe.xadd("s", {"_payload": b"d"})
            pipe.config_set("maxmemory", "1")
            fourth = pipe.execute()[0].decode()
            await eventually_async(lambda: counts(app)["mark_errors"] >= 2, timeout=10)
            errors = counts(app)["mark_errors"]
            await asyncio.sleep(1.0)
            said = [record.getMessage() for record in caplog.records if "the store failed" in record.getMessage()]
            assert all("the store failed, 1 entries wait for their mark" in line for line in said), said
            assert said
            assert counts(app)["mark_errors"] - errors < 30
            assert (stream.pending_ids(), calls) == ([fourth], [1, 1, 1])
        finally:
            stream.client.config_set("maxmemory", "0")
        await settled(app, 4)
    assert calls == [1, 1, 1, 1]
    assert entry
    assert second
    assert third


async def test_one_message_that_its_store_does_not_take_holds_up_no_other(broker, stream):
    """A store that fails for one key: that entry waits, its neighbours are handled and acknowledged."""
    calls = []

    class Picky(Flaky):
        async def begin(self, key, owner, lease):
            if key.endswith(":message:bad"):
                raise ValueError(key)
            return await super().begin(key, owner, lease)

        async def finish(self, key, owner, ttl):
            if key.endswith(":message:worse"):
                raise ValueError(key)
            await super().finish(key, owner, ttl)

    @broker.subscriber(source(), name="post", workers=4, idempotency=Idempotent(ttl=60, store=Picky()))
    async def handle(body: bytes):
        calls.append(body)

    app = RustStream("test", broker, drain_timeout=1.0)
    async with app:
        bad, worse = stream.add(b"bad", message_id="bad"), stream.add(b"worse", message_id="worse")
        for number in range(20):
            stream.add(str(number), message_id=str(number))
        await eventually_async(lambda: counts(app)["acked"] == 20, timeout=20)
        assert stream.pending_ids() == [bad, worse]
    assert Counter(calls) == Counter([b"worse", *(str(number).encode() for number in range(20))])


async def test_a_slow_store_does_not_hold_up_what_others_park(any_server, broker, stream):
    """An entry that is due waits for its mark; meanwhile the outcomes of others of its group are carried out."""
    gate, calls = asyncio.Event(), []

    class Slow(Flaky):
        async def begin(self, key, owner, lease):
            state = await super().begin(key, owner, lease)
            if key.endswith(":message:slow") and calls:
                self.calls["waiting"] += 1
                await gate.wait()
            return state

    store, recovering = Slow(), RedisStream.recovering("s", group="g", min_idle=30, start_id="0")

    @broker.subscriber(recovering, workers=4, idempotency=Idempotent(ttl=60, store=store))
    async def handle(body: bytes, ctx: Context):
        calls.append(body)
        if ctx.delivery_count == 1:
            return retry(after=0.05 if body == b"slow" else 60)
        return None

    async with RustStream("test", broker):
        slow = stream.add(b"slow", message_id="slow")
        await eventually_async(lambda: store.calls["waiting"])
        other = stream.add(b"other", message_id="other")
        await eventually_async(lambda: stream.client.zcard("{s}:g:delayed") == 1, timeout=20)
        gate.set()
        await eventually_async(lambda: slow not in stream.pending_ids())
        assert stream.pending_ids() == [other]
    assert calls == [b"slow", b"other", b"slow"]


async def test_marks_may_be_kept_on_another_server(make_broker, stream, make_server, make_witness):
    """`RedisIdempotencyStore(broker)`: of another broker of the app."""
    server = make_server("redis-7.0")
    witness, broker, marks = make_witness(server), make_broker(), RedisBroker(server.url)
    calls = []

    @broker.subscriber(source(), name="post", idempotency=Idempotent(ttl=60, store=RedisIdempotencyStore(marks)))
    async def handle(body: bytes):
        calls.append(body)

    app = RustStream("test", marks, broker)
    async with app:
        stream.add(b"a", message_id="m")
        stream.add(b"a", message_id="m")
        await settled(app, 2)
    assert calls == [b"a"]
    assert witness.get("{s}:g:idempotency:post:message:m") == b"done"
    assert stream.client.keys("*idempotency*") == []


@pytest.mark.parametrize("name", ["any", "memory"])
async def test_the_steps_of_a_mark(name, any_server):
    """The table of states, by hand, on every server and in the model."""
    broker = RedisBroker(any_server.url if name == "any" else f"memory://marks-{next(numbers)}")
    store = RedisIdempotencyStore(broker)
    async with broker:
        assert await store.begin("k", "a", 30) is MarkState.STARTED
        assert await store.begin("k", "a", 30) is MarkState.STARTED
        assert await store.begin("k", "b", 30) is MarkState.WORKING
        await store.release("k", "b")
        await store.finish("k", "b", 30)
        assert await store.begin("k", "b", 30) is MarkState.WORKING, "a foreign mark was touched"
        await store.release("k", "a")
        assert await store.begin("k", "b", 0.05) is MarkState.STARTED
        await asyncio.sleep(0.1)
        await store.renew(["k", "other"], "a", 30)
        assert await store.begin("k", "b", 30) is MarkState.WORKING
        await store.finish("k", "a", 30)
        for owner in ("a", "b"):
            await store.release("k", owner)
            assert await store.begin("k", owner, 30) is MarkState.DONE
        await store.finish("late", "a", 30)
        assert await store.begin("late", "b", 30) is MarkState.DONE
