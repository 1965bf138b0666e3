"""What a message carries, in which order messages come, and how they are added."""

import asyncio
import contextlib
from typing import Annotated

import msgspec
import pytest

from backend import MIN_IDLE, Backend
from ruststream import Context, Header, RustStream, leave, retry
from ruststream.errors import ConfigError, PublishError
from ruststream.redis import RedisStream

RECOVERING = RedisStream.recovering("s", min_idle=MIN_IDLE, group="g")


class Order(msgspec.Struct):
    id: int
    note: str = ""


async def test_payload_key_and_headers_arrive_as_they_were_sent(backend: Backend):
    async def handler(order: Order, ctx: Context, trace: Annotated[int, Header("x-trace")]):
        assert (ctx.partition_key, trace, ctx.stream, ctx.group, ctx.consumer) == (b"k", 7, "s", "g", "main-1")
        assert ctx.headers["X-Trace"] == "7"
        assert ctx.headers["content-type"] == "application/json"
        assert ctx.timestamp * 1000 == ctx.entry_id.ms
        assert 0 <= ctx.lag < 60

    async with backend(backend.app(handler, RECOVERING)) as t:
        await t.publish(Order(1, "ünï"), "s", key="k", headers={"X-Trace": "7"})
        t.subscriber("main").assert_called(1).assert_outcome("ack").assert_called_with(Order(1, "ünï"))


async def test_counts_in_headers_are_measured_and_never_taken_from_the_wire(backend: Backend):
    seen = []

    async def handler(body: int, ctx: Context):
        seen.append((ctx.headers["redis-delivery-count"], int(ctx.headers["redis-idle-ms"])))
        return leave() if ctx.delivery_count == 1 else None

    async with backend(backend.app(handler, RECOVERING)) as t:
        await t.publish(1, "s")
        await t.advance(MIN_IDLE)
        assert seen[0] == ("0", 0)
        assert seen[1][0] == "1"
        assert seen[1][1] >= MIN_IDLE * 1000
        with contextlib.suppress(ConfigError):
            await t.publish(1, "s", headers={"redis-delivery-count": "9"})
            assert seen[2] == ("0", 0)


async def test_bytes_and_msgpack_go_as_they_are(backend: Backend):
    broker = backend.broker(codec="msgpack")

    @broker.subscriber(RedisStream.recovering("raw", min_idle=MIN_IDLE, group="g"))
    async def raw(body: bytes):
        pass

    @broker.subscriber(RedisStream.recovering("packed", min_idle=MIN_IDLE, group="g"))
    async def packed(order: Order):
        pass

    async with backend(RustStream("conformance", broker)) as t:
        await t.publish(b"\x00\xff\r\n", "raw")
        await t.publish(b"", "raw")
        await t.publish(Order(2), "packed")
        assert t.subscriber(raw).values == [b"\x00\xff\r\n", b""]
        t.subscriber(packed).assert_called_with(Order(2))
        assert t.stream("packed").entries[0].headers["content-type"] == "application/msgpack"


async def test_one_worker_handles_in_the_order_of_the_stream(backend: Backend):
    async def handler(body: int):
        await asyncio.sleep(0.001 * (body % 3))

    async with backend(backend.app(handler, RECOVERING)) as t:
        for body in range(12):
            await t.publish(body, "s", wait=False)
        await t.settle()
        assert t.subscriber("main").values == list(range(12))


async def test_one_key_is_in_order_and_keys_are_side_by_side(backend: Backend):
    running: set[bytes] = set()
    together = []

    async def handler(body: int, ctx: Context):
        key = ctx.partition_key or b""
        assert key not in running, "one key in two hands"
        running.add(key)
        together.append(len(running))
        await asyncio.sleep(0.02)
        running.remove(key)

    async with backend(backend.app(handler, RECOVERING, workers=4, by_key=True)) as t:
        for body in range(16):
            await t.publish(body, "s", key=f"key-{body % 4}", wait=False)
        await t.settle()
        calls = t.subscriber("main").assert_called(16).calls
        for key in {call.key for call in calls}:
            values = [call.value for call in calls if call.key == key]
            assert values == sorted(values)
        assert max(together) > 1


async def test_no_more_is_taken_in_hand_than_is_allowed(backend: Backend):
    release = asyncio.Event()

    async def handler(body: int):
        await release.wait()

    source = RedisStream.recovering("s", min_idle=30, group="g", count=2)
    async with backend(backend.app(handler, source, max_in_flight=3)) as t:
        for body in range(8):
            await t.publish(body, "s", wait=False)
            assert len(t.pending("s", "g")) <= 3
        release.set()
        await t.settle()
        assert t.subscriber("main").values == list(range(8))
        assert t.pending("s", "g") == []


async def test_ids_grow_and_many_messages_keep_their_order(backend: Backend):
    async def handler(body: int, ctx: Context):
        ids = await t.app.brokers[0].publish_many([body, body + 1, body + 2], "out", key=str)
        assert ids == sorted(ids)
        assert len(set(ids)) == 3

    async with backend(backend.app(handler, RECOVERING)) as t:
        first, second = await t.publish(1, "s"), await t.publish(10, "s")
        assert first < second
        t.subscriber("main").assert_outcomes("ack", "ack")
        out = t.published("out")
        assert [(entry.value, entry.key) for entry in out] == [(n, str(n).encode()) for n in (1, 2, 3, 10, 11, 12)]


async def test_a_stream_is_trimmed_as_the_publisher_says(backend: Backend):
    async def handler(body: int, ctx: Context):
        await ctx.publish(body, "out", maxlen=2, approximate=False)

    async with backend(backend.app(handler, RECOVERING)) as t:
        for body in range(5):
            await t.publish(body, "s")
        assert t.stream("out").values == [3, 4]


async def test_a_key_of_another_kind_is_refused(backend: Backend):
    async def handler(body: int, ctx: Context):
        if body == 1:
            return retry(after=60)
        # The sorted set of delayed entries is no stream.
        with pytest.raises(PublishError, match="WRONGTYPE"):
            await ctx.publish(1, t.app.brokers[0].subscribers[0].delay_key)
        return None

    async with backend(backend.app(handler, RedisStream.new("s", group="g", min_idle=30))) as t:
        await t.publish(1, "s")
        await t.publish(2, "s")
        t.subscriber("main").assert_outcomes(retry(after=60), "ack")
