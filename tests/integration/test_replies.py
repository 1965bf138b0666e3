"""Replies: what a handler returns is published, and its entry acked, in one step; or neither."""

import asyncio
from typing import Any

import msgspec
import pytest

from eventually import eventually_async
from ruststream import Context, Reply, RustStream, outgoing, retry
from ruststream.redis import RedisBroker, RedisStream, StreamStart

TYPE, CORRELATION = b"h:content-type", b"h:correlation-id"


class Payment(msgspec.Struct):
    id: int


@outgoing("screened")
class Screened(msgspec.Struct):
    id: int
    fine: bool = True


def source(mode: str = "recovering", min_idle: float = 30, **options: object) -> RedisStream:
    options = {"group": "g", "start_id": StreamStart.BEGINNING} | options
    return getattr(RedisStream, mode)("s", **options if mode == "new" else {"min_idle": min_idle} | options)


def fields_of(stream: Any, name: str) -> list[dict[bytes, bytes]]:
    return [fields for _, fields in stream.client.xrange(name)]


@pytest.mark.parametrize("mode", ["new", "recovering"])
async def test_a_reply_goes_to_the_stream_of_its_class_and_the_entry_is_acked(any_server, broker, stream, mode):
    """`reply=True`: published and acked; it correlates by the entry's own header, its message id, or its id."""

    @broker.subscriber(source(mode), reply=True)
    async def screen(payment: Payment):
        return Screened(payment.id)

    ids = [stream.add('{"id":1}'), stream.add('{"id":2}', message_id="m-2")]
    stream.add('{"id":3}', message_id="m-3", correlation_id="c-3")
    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: stream.client.xlen("screened") == 3)
        await eventually_async(lambda: not stream.pending())
        await eventually_async(lambda: app.health().subscriptions[0].counts["acked"] == 3)
        assert app.health().subscriptions[0].counts["replied"] == 3

    found = fields_of(stream, "screened")
    assert [fields[b"_payload"] for fields in found] == [b'{"id":%d,"fine":true}' % number for number in (1, 2, 3)]
    assert [fields[CORRELATION] for fields in found] == [ids[0].encode(), b"m-2", b"c-3"]
    assert {tuple(fields) for fields in found} == {(b"_payload", TYPE, CORRELATION)}


async def test_every_way_to_end_a_delivery_beside_a_reply(any_server, broker, stream):
    """None acks, an outcome is that outcome, a `Reply` says where, with which key and headers, and how to trim."""

    @broker.subscriber(source(min_idle=0.2), reply_to="out", on_error=retry())
    async def handle(body: bytes, ctx: Context):
        match body:
            case b"none":
                return None
            case b"retry" if ctx.delivery_count == 1:
                return retry()
            case b"reply":
                headers = ctx.headers | {"Step": "2", "correlation-id": "mine"}
                return Reply({"a": 1}, to="elsewhere", key="k", headers=headers, maxlen=1, approximate=False)
        return body

    stream.client.xadd("elsewhere", {"f": "v"})
    for body in ("none", "retry", "plain"):
        stream.add(body)
    stream.add("reply", x_tenant="acme", content_type="text/plain")
    async with RustStream("test", broker):
        await eventually_async(lambda: stream.client.xlen("out") == 2)
        await eventually_async(lambda: not stream.pending())

    assert [fields[b"_payload"] for fields in fields_of(stream, "out")] == [b"plain", b"retry"]
    assert fields_of(stream, "elsewhere") == [
        {
            b"_payload": b'{"a":1}',
            TYPE: b"application/json",
            b"h:x-tenant": b"acme",
            b"h:step": b"2",
            CORRELATION: b"mine",
            b"h:redis-partition-key": b"k",
        }
    ]


async def test_replies_of_def_handlers_and_of_those_that_wait(broker, stream):
    """From a thread, at once or after a wait: the same."""

    def threaded(payment: Payment):
        return {"threaded": payment.id}

    async def waiting(payment: Payment):
        await asyncio.sleep(0)
        return {"waiting": payment.id}

    for handler in (threaded, waiting):
        broker.add_subscriber(source(group=handler.__name__), handler, reply_to=handler.__name__)
    stream.add('{"id":1}')
    async with RustStream("test", broker):
        for name in ("threaded", "waiting"):
            await eventually_async(lambda name=name: stream.client.xlen(name) == 1)
            assert fields_of(stream, name)[0][b"_payload"] == b'{"%s":1}' % name.encode()


@pytest.mark.parametrize("refusal", ["WRONGTYPE", "OOM"])
async def test_a_refused_reply_leaves_its_entry_pending(make_server, stream_of, caplog, refusal):
    """B021: the server says no to the reply: no ack, an ERROR with its words, a count, no `after_ack`; then again."""
    server = make_server()
    stream, broker = stream_of(server), RedisBroker(server.url)
    calls, acked = [], []

    @broker.subscriber(source(min_idle=1.0), reply_to="out")
    async def handle(body: bytes, ctx: Context):
        calls.append(ctx.delivery_count)
        ctx.after_ack(lambda count=ctx.delivery_count: acked.append(count))
        if refusal == "OOM" and len(calls) == 1:
            stream.client.config_set("maxmemory", 1)
        return body

    if refusal == "WRONGTYPE":
        stream.client.set("out", "text")
    stream.add("x")
    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: app.health().subscriptions[0].counts["refused"] == 1)
        assert [row["times_delivered"] for row in stream.pending()] == [1]
        assert acked == []
        if refusal == "OOM":
            stream.client.config_set("maxmemory", 0)
        else:
            stream.client.delete("out")
        await eventually_async(lambda: stream.client.xlen("out") == 1)
        await eventually_async(lambda: not stream.pending())
        await eventually_async(lambda: acked)

    assert acked == calls[-1:]
    assert calls == [1, 2]
    refused = [record.getMessage() for record in caplog.records if "refused to settle 1 entries" in record.getMessage()]
    assert len(refused) == 1
    assert refusal in refused[0]


async def test_a_reply_that_comes_too_late_is_not_published(any_server, broker, stream):
    """Another consumer took the entry over meanwhile: neither reply nor ack; its delivery stays as it is."""
    holding, go = asyncio.Event(), asyncio.Event()

    @broker.subscriber(source("new"), reply_to="out")
    async def handle(body: bytes, ctx: Context):
        holding.set()
        await go.wait()
        return body

    entry = stream.add("x")
    app = RustStream("test", broker)
    async with app:
        await asyncio.wait_for(holding.wait(), 10)
        stream.claim("thief", entry)
        go.set()
        await eventually_async(lambda: app.health().subscriptions[0].counts["lost"] == 1)
        assert app.health().subscriptions[0].counts["replied"] == 0

    assert stream.client.xlen("out") == 0
    assert [(row["consumer"], row["times_delivered"]) for row in stream.pending()] == [("thief", 2)]


async def test_a_value_that_can_not_be_sent_goes_by_on_error(broker, stream, caplog):
    """Not to be encoded, a class without a stream, a second settle: said in the log, published never."""

    @broker.subscriber(source(), reply=True)
    async def handle(body: bytes, ctx: Context):
        if body == b"settled":
            ctx.settle(retry())
            return Screened(1)
        return {b"unencodable": object(), b"plain": Payment(1)}[body]

    for body in ("unencodable", "plain", "settled"):
        stream.add(body)
    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: app.health().subscriptions[0].counts["left"] == 2)
        await eventually_async(lambda: "after its delivery was settled" in caplog.text)

    assert stream.client.exists("screened") == 0
    assert len(stream.pending()) == 3
    assert "publish needs the name of a stream" in caplog.text


async def test_a_plain_value_without_reply_to_says_what_to_set(broker, stream, caplog):
    """The handler returned something and nobody said that it is a reply: pending, and the log names the options."""

    @broker.subscriber(source())
    async def handle(body: bytes):
        return body

    stream.add("x")
    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: app.health().subscriptions[0].counts["left"] == 1)
    assert "set reply_to= or reply=True" in caplog.text
    assert len(stream.pending()) == 1


async def test_many_replies_share_round_trips_and_keep_their_order(any_server, broker, stream, figure):
    """2,000 entries: replies in the order of the entries, many scripts in one write."""

    @broker.subscriber(source(count=500), reply_to="out")
    async def handle(body: bytes):
        return body

    stream.add_numbered(1, 2000)
    app = RustStream("test", broker)
    stream.client.config_resetstat()
    async with app:
        await eventually_async(lambda: stream.client.xlen("out") == 2000, timeout=30)
        await eventually_async(lambda: not stream.pending())
        stats = stream.client.info("stats")
    assert [int(fields[b"_payload"]) for fields in fields_of(stream, "out")] == list(range(1, 2001))
    figure("replies per read of the server", f"{2000 / stats['total_reads_processed']:.1f} on {any_server.name}")


async def test_replies_in_memory():
    """The same on `memory://`: published and acked together, a refused one stays pending."""
    broker = RedisBroker("memory://replies")
    got = []

    @broker.subscriber(source("new"), reply=True)
    async def screen(payment: Payment):
        return Screened(payment.id)

    @broker.subscriber(RedisStream("screened", group="g"))
    async def desk(screened: Screened, ctx: Context):
        got.append((screened, ctx.headers["correlation-id"]))

    app = RustStream("test", broker)
    async with app:
        entry = await broker.publish(Payment(7), "s")
        await eventually_async(lambda: got)
        await eventually_async(lambda: app.health().subscriptions[0].counts["replied"] == 1)
    assert got == [(Screened(7), str(entry))]
