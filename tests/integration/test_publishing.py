"""Publishing: what arrives in the stream, what shares a round trip, and what is said when it did not arrive."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from eventually import eventually, eventually_async
from ruststream import DELIVERY_COUNT_HEADER, Context, EntryId, RustStream
from ruststream.errors import (
    ConfigError,
    ConnectError,
    PublishError,
    PublishUncertainError,
    RustStreamError,
    ShutDownError,
)
from ruststream.redis import RedisBroker, RedisStream

KEY = b"h:redis-partition-key"
TYPE = b"h:content-type"


class Payment(msgspec.Struct):
    id: int
    account: str


@dataclass
class Refund:
    id: int


@pytest.mark.parametrize(
    ("message", "body", "content_type"),
    [
        (Payment(7, "acc-1"), b'{"id":7,"account":"acc-1"}', b"application/json"),
        (Refund(7), b'{"id":7}', b"application/json"),
        ({"id": 7}, b'{"id":7}', b"application/json"),
        ([1, None, "x"], b'[1,null,"x"]', b"application/json"),
        (None, b"null", b"application/json"),
        (b"\xff\x00\r\n", b"\xff\x00\r\n", b"application/octet-stream"),
        (b"", b"", b"application/octet-stream"),
        (bytearray(b"abc"), b"abc", b"application/octet-stream"),
        (msgspec.Raw(b'{"id": 7}'), b'{"id": 7}', b"application/json"),
    ],
)
async def test_what_is_published_is_what_arrives(any_server, broker, stream, message, body, content_type):
    """B007: the body is the codec's, or the bytes as they are; content-type says which; the id is the server's."""
    async with broker:
        entry_id = await broker.publish(message, "s")

    assert stream.entries() == [(str(entry_id), {b"_payload": body, TYPE: content_type})]
    assert isinstance(entry_id, EntryId)


async def test_headers_key_and_content_type(any_server, broker, stream):
    """Names in lower case, values as bytes, the key as a header, the caller's content type; the body comes first."""
    async with broker:
        await broker.publish(
            b"\x00",
            "s",
            key=b"\xff\x00",
            headers={"X-Trace": "t-1", "blob": b"\xfe", "umlaut": "ä", "Content-Type": "ignored"},
            content_type="application/x-protobuf",
        )

    [(_, fields)] = stream.entries()
    assert fields == {
        b"_payload": b"\x00",
        TYPE: b"application/x-protobuf",
        b"h:x-trace": b"t-1",
        b"h:blob": b"\xfe",
        b"h:umlaut": "ä".encode(),
        KEY: b"\xff\x00",
    }
    assert next(iter(fields)) == b"_payload"


async def test_measured_headers_are_not_published(broker, stream):
    """B112: refused by name in a mapping, left out of a delivery's headers that are passed on."""

    @broker.subscriber(RedisStream.recovering("in", group="g", min_idle=30))
    async def handle(body: bytes, ctx: Context):
        assert DELIVERY_COUNT_HEADER in ctx.headers
        await ctx.publish(body, "s", headers=ctx.headers)

    async with RustStream("test", broker):
        with pytest.raises(ConfigError, match="'redis-delivery-count' is reserved"):
            await broker.publish(b"x", "in", headers={"Redis-Delivery-Count": "77"})
        await broker.publish(b"x", "in", headers={"other": "1"}, content_type="text/plain")
        await eventually_async(stream.length)

    [(_, fields)] = stream.entries()
    assert fields == {b"_payload": b"x", TYPE: b"text/plain", b"h:other": b"1"}


async def test_what_is_published_is_what_a_handler_gets(any_server, broker, stream):
    """Round trip: body, key, headers and id, from publish to handler."""
    seen = []

    @broker.subscriber(RedisStream.recovering("s", group="g", min_idle=5))
    async def handle(payment: Payment, ctx: Context):
        seen.append((payment, ctx.entry_id, ctx.partition_key, ctx.headers["X-TRACE"]))

    async with RustStream("test", broker):
        entry_id = await broker.publish(Payment(7, "a"), "s", key="acc-ä", headers={"x-trace": "t"})
        await eventually_async(lambda: seen)

    assert seen == [(Payment(7, "a"), entry_id, "acc-ä".encode(), "t")]


@pytest.mark.parametrize("many", [False, True])
async def test_maxlen_and_minid_trim(any_server, broker, stream, many):
    """Exact or approximate: XADD's own trimming, with every published entry."""

    async def publish(body, **trimming):
        if many:
            return (await broker.publish_many([body], "s", **trimming))[0]
        return await broker.publish(body, "s", **trimming)

    stream.add_numbered(1, 1000)
    async with broker:
        await publish(b"a", maxlen=500)
        assert 500 <= stream.length() < 1000
        last = await publish(b"b", maxlen=10, approximate=False)
        assert stream.length() == 10
        await publish(b"c", minid=last, approximate=False)
        assert stream.length() == 2
        await publish(b"d", minid=str(last.next()), approximate=False)
        assert [fields[b"_payload"] for _, fields in stream.entries()] == [b"c", b"d"]


async def test_publish_many_keeps_order_and_keys(any_server, broker, stream):
    """2,500 messages in three pipelines: ids in order, each with its own key, headers on all of them."""
    messages = [Payment(number, f"acc-{number % 7}") for number in range(2500)]
    async with broker:
        ids = await broker.publish_many(messages, "s", key=lambda payment: payment.account, headers={"run": "1"})
        assert await broker.publish_many([], "s") == []

    entries = stream.entries()
    assert [entry for entry, _ in entries] == [str(entry_id) for entry_id in ids]
    assert ids == sorted(ids)
    assert [msgspec.json.decode(fields[b"_payload"], type=Payment) for _, fields in entries] == messages
    assert all(fields[KEY].decode() == f"acc-{at % 7}" for at, (_, fields) in enumerate(entries))
    assert all(fields[b"h:run"] == b"1" for _, fields in entries)


async def test_concurrent_publishes_share_round_trips(any_server, broker, stream, figure):
    """B088: 64 tasks, 100 publishes each: the server reads many at a time. Its own counters are the witness."""

    async def publish(task):
        return [await broker.publish(b"x", "s") for _ in range(100)]

    async with broker:
        await broker.publish(b"first", "s")
        stream.client.config_resetstat()
        ids = await asyncio.gather(*(publish(task) for task in range(64)))
        stats = stream.client.info("stats")
        adds = stream.client.info("commandstats")["cmdstat_xadd"]["calls"]

    flat = [entry_id for found in ids for entry_id in found]
    reads = stats["total_reads_processed"]
    figure("publishes per read of the server", f"{adds / reads:.0f} on {any_server.name}")
    assert len(set(flat)) == adds == 6400
    assert all(found == sorted(found) for found in ids)
    assert adds / reads > 4


async def test_a_cancelled_publish_does_not_confuse_the_others(broker, stream):
    """B089: half of the callers are cancelled while they wait; every other one gets the id of its own message."""
    async with broker:
        tasks = [asyncio.create_task(broker.publish(str(number).encode(), "s")) for number in range(200)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)

    by_id = {entry: fields[b"_payload"] for entry, fields in stream.entries()}
    assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])
    for number, result in list(enumerate(results))[1::2]:
        assert by_id[str(result)] == str(number).encode()


async def test_a_full_server_refuses_with_publish_error(make_server, stream_of):
    """B021: OOM is the server's no: PublishError with its words, nothing in the stream, and it works again later."""
    server = make_server()
    stream, broker = stream_of(server), RedisBroker(server.url)
    async with broker:
        await broker.publish(b"before", "s")
        stream.client.config_set("maxmemory", 1)
        with pytest.raises(PublishError, match="OOM"):
            await broker.publish(b"refused", "s")
        with pytest.raises(PublishError, match="3 of 3") as refusal:
            await broker.publish_many([b"a", b"b", b"c"], "s")
        assert [type(result) for result in refusal.value.results] == [PublishError] * 3
        stream.client.config_set("maxmemory", 0)
        await broker.publish(b"after", "s")

    assert [fields[b"_payload"] for _, fields in stream.entries()] == [b"before", b"after"]


async def test_some_refused_messages_of_many(make_server, stream_of):
    """Memory runs out at the large message in the middle: `results` says of each what became of it, in order."""
    server = make_server("redis-7.0")  # later ones parse ahead, and then refuse the small ones too
    stream, broker = stream_of(server), RedisBroker(server.url)
    bodies = [b"a", b"x" * 8_000_000, b"c"]
    async with broker:
        await broker.publish(b"warm", "s")
        used = stream.client.info("memory")["used_memory"]
        stream.client.config_set("maxmemory", used + 4_000_000)
        with pytest.raises(PublishError) as refusal:
            await broker.publish_many(bodies, "s")

    results = refusal.value.results
    refused = [isinstance(result, PublishError) for result in results]
    assert refused[:2] == [False, True]
    assert str(refusal.value).startswith(f"{sum(refused)} of 3")
    by_id = {entry: fields[b"_payload"] for entry, fields in stream.entries()}
    assert stream.length() == 1 + refused.count(False)
    added = [(result, body) for result, body in zip(results, bodies, strict=True) if isinstance(result, EntryId)]
    assert all(by_id[str(result)] == body for result, body in added)


async def test_a_stream_that_is_another_type(any_server, broker, stream):
    """B048: WRONGTYPE is a PublishError that names the stream."""
    stream.client.lpush("list", "x")
    async with broker:
        with pytest.raises(PublishError, match="WRONGTYPE") as refusal:
            await broker.publish(b"x", "list")
        assert "list" in str(refusal.value)
        await broker.publish(b"x", "s")

    assert stream.length() == 1


@pytest.mark.parametrize("many", [False, True])
async def test_a_publish_whose_answer_is_lost_is_uncertain(make_server, many):
    """Killed between command and answer: PublishUncertainError, which is no PublishError: it may be in the stream."""
    server = make_server()
    broker = RedisBroker(server.url)
    async with broker:
        await broker.publish(b"before", "s")
        server.pause()
        publish = broker.publish_many([b"a", b"b"], "s") if many else broker.publish(b"a", "s")
        task = asyncio.create_task(publish)
        # The kernel has the command for the server, which does not read it: it is on its way.
        await eventually_async(lambda: unread_by(server.port))
        server.kill()
        with pytest.raises(PublishUncertainError) as lost:
            await task

    assert not isinstance(lost.value, PublishError)
    assert len(lost.value.results) == (2 if many else 0)
    assert "may or may not" in str(lost.value)


def unread_by(port: int) -> bool:
    """Whether a connection to this port has bytes that its server has not read (from /proc/net/tcp)."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, queues, *_ = line.split()
        if state == "01" and int(local.split(":")[1], 16) == port and int(queues.split(":")[1], 16) > 0:
            return True
    return False


async def test_publishing_goes_on_after_the_server_came_back(make_server, stream_of):
    """Down: every publish ends with an error of ours, none hangs. Up again: the same broker publishes."""
    server = make_server()
    broker = RedisBroker(server.url)
    async with broker:
        await broker.publish(b"before", "s")
        server.kill()
        for _ in range(3):
            with pytest.raises((ConnectError, PublishUncertainError, PublishError)):
                await asyncio.wait_for(broker.publish(b"x", "s"), 10)
        server.restart()

        async def again():
            try:
                return await broker.publish(b"after", "s")
            except RustStreamError:
                return None

        await eventually_async(again)
    assert eventually(lambda: stream_of(server).length()) == 1


async def test_a_close_answers_what_was_published_before(any_server, broker, stream):
    """Leaving `async with broker` waits for the answers of what was queued; afterwards it is ShutDownError."""
    async with broker:
        tasks = [asyncio.create_task(broker.publish(b"x", "s")) for _ in range(500)]
        await asyncio.sleep(0)
    ids = await asyncio.gather(*tasks)

    assert len(set(ids)) == stream.length() == 500
    with pytest.raises(ShutDownError, match="not connected"):
        await broker.publish(b"x", "s")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"stream": None}, "stream"),
        ({"stream": ""}, "stream"),
        ({"stream": 7}, "stream"),
        ({"maxlen": -1}, "maxlen"),
        ({"maxlen": True}, "maxlen"),
        ({"maxlen": 10, "minid": "5-0"}, "maxlen and minid"),
        ({"minid": "yesterday"}, "minid"),
        ({"approximate": "no"}, "approximate"),
        ({"headers": ["a"]}, "headers"),
        ({"headers": {"a b": "x"}}, "a header's name"),
        ({"headers": {"a": 7}}, "header 'a'"),
        ({"key": 1.5}, "key"),
        ({"content_type": ""}, "content_type"),
    ],
)
async def test_wrong_arguments_are_named_before_anything_is_sent(broker, stream, arguments, words):
    """ConfigError, which is a ValueError, names the argument; the stream stays as it was."""
    async with broker:
        with pytest.raises(ConfigError, match=words) as refusal:
            await broker.publish(b"x", **({"stream": "s"} | arguments))

    assert isinstance(refusal.value, ValueError)
    assert stream.length() == 0


async def test_a_message_that_does_not_encode_is_said(broker, stream):
    """An object that JSON can't carry: an error at the call, nothing sent, and the next message goes through."""
    async with broker:
        with pytest.raises((TypeError, RustStreamError)):
            await broker.publish(object(), "s")
        with pytest.raises((TypeError, RustStreamError)):
            await broker.publish_many([{"id": 1}, {"id": object()}], "s")
        await broker.publish({"id": 2}, "s")

    assert stream.length() == 1
