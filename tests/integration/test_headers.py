"""Headers and the partition key as a handler sees them: typed, in any case, measured and never believed."""

import time
from typing import Annotated

import msgspec
import pytest

from eventually import eventually_async
from ruststream import (
    DELIVERY_COUNT_HEADER,
    IDLE_MS_HEADER,
    PARTITION_KEY_HEADER,
    Context,
    Header,
    Headers,
    RustStream,
    retry,
)
from ruststream.redis import RedisStream, StreamStart


class Trace(msgspec.Struct):
    trace_id: str
    hop: int = 0


def source(mode: str = "recovering", min_idle: float = 30, **options: object) -> RedisStream:
    options = {"group": "g", "start_id": StreamStart.BEGINNING} | options
    return getattr(RedisStream, mode)("s", **options if mode == "new" else {"min_idle": min_idle} | options)


async def test_one_header_and_all_headers_by_type(any_server, broker, stream):
    """Header("x") converts one, Headers() fills a Struct by field or kebab name; defaults fill what is missing."""
    seen = []

    @broker.subscriber(source())
    async def handle(
        body: bytes,
        attempts: Annotated[int, Header("X-Attempts")],
        trace: Annotated[Trace, Headers()],
        tenant: Annotated[str | None, Header("tenant")],
        region: Annotated[str, Header("region")] = "eu",
    ):
        seen.append((attempts, trace, tenant, region))

    stream.add("x", x_attempts="3", trace_id="t-1", hop="2")
    stream.add("x", **{"x_attempts": "4", "trace-id": "t-2", "tenant": "acme", "region": "us"})
    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 2)

    assert seen == [(3, Trace("t-1", 2), None, "eu"), (4, Trace("t-2"), "acme", "us")]


async def test_a_header_that_does_not_convert_harms_its_entry_alone(any_server, broker, stream, caplog):
    """The handler is not called, the entry stays pending, and the log names entry, handler, header and option."""
    seen = []

    @broker.subscriber(source())
    async def post_payment(body: bytes, attempts: Annotated[int, Header("attempts")]):
        seen.append(attempts)

    wrong, missing = stream.add("x", attempts="many"), stream.add("x")
    stream.add("x", attempts="3")
    async with RustStream("test", broker):
        await eventually_async(lambda: seen == [3])
        await eventually_async(lambda: len(stream.pending_ids()) == 2)

    assert stream.pending_ids() == [wrong, missing]
    texts = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    for entry, text in zip((wrong, missing), texts, strict=True):
        assert all(part in text for part in (entry, "post_payment", "attempts", "on_decode_error"))


@pytest.mark.parametrize("mode", ["new", "recovering", "reclaim"])
async def test_measured_headers_are_not_believed_from_the_wire(any_server, broker, stream, mode):
    """A producer's redis-delivery-count and redis-idle-ms are ignored (upstream believes a 77 in `new`)."""
    stream.create_group()
    stream.add_fields(
        {"_payload": "x", "h:redis-delivery-count": "77", "h:Redis-Idle-Ms": "5", "h:redis-partition-key": "k"}
    )
    if mode == "reclaim":
        stream.deliver("dead")
        stream.client.xclaim("s", "g", "dead", 0, stream.pending_ids(), idle=60_000, justid=True)
    seen = []

    @broker.subscriber(source(mode))
    async def handle(ctx: Context):
        seen.append((dict(ctx.headers), ctx.delivery_count, ctx.idle))

    async with RustStream("test", broker):
        await eventually_async(lambda: seen)

    [(headers, count, idle)] = seen
    assert headers.pop(PARTITION_KEY_HEADER) == "k"
    if mode == "new":
        assert (headers, count, idle) == ({}, 1, 0)
    elif mode == "recovering":
        assert (headers, count, idle) == ({DELIVERY_COUNT_HEADER: "0", IDLE_MS_HEADER: "0"}, 1, 0)
    else:
        assert (headers[DELIVERY_COUNT_HEADER], count) == ("2", 2)
        assert int(headers[IDLE_MS_HEADER]) == round(idle * 1000) >= 60_000


async def test_measured_headers_are_not_copied(any_server, broker, stream):
    """Neither a retried copy nor a republished message carries what was measured for this delivery."""
    stream.create_group()
    stream.add_fields({"_payload": "x", "h:redis-idle-ms": "5", "h:trace": "t"})
    stream.deliver("dead")
    stream.client.xclaim("s", "g", "dead", 0, stream.pending_ids(), idle=60_000, justid=True)

    @broker.subscriber(source("reclaim"))
    async def handle(body: bytes, ctx: Context):
        await ctx.publish(body, "next", headers=ctx.headers)
        return retry()

    async with RustStream("test", broker):
        await eventually_async(lambda: stream.length() == 2 and stream.pending_ids() == [])

    [_, (_, copied)] = stream.entries()
    [(_, republished)] = stream.client.xrange("next")
    for fields in (copied, republished):
        assert fields[b"h:trace"] == b"t"
        assert not [name for name in fields if name.startswith(b"h:redis-")]


async def test_names_match_in_any_case_and_the_last_of_a_repeated_one_counts(any_server, broker, stream):
    """B110: a header written twice shows its last value; all values stay in ctx.fields."""
    seen = []

    @broker.subscriber(source())
    async def handle(ctx: Context):
        seen.append((ctx.headers["TRACE"], ctx.headers.raw["trace"], "Trace" in ctx.headers, ctx.fields))

    stream.client.execute_command("XADD", "s", "*", "h:Trace", "a", "_payload", "x", "h:trace", b"\xff")
    async with RustStream("test", broker):
        await eventually_async(lambda: seen)

    [(text, raw, found, fields)] = seen
    assert (text.encode("utf-8", "surrogateescape"), raw, found) == (b"\xff", b"\xff", True)
    assert fields == [(b"h:Trace", b"a"), (b"_payload", b"x"), (b"h:trace", b"\xff")]


async def test_what_a_context_says_of_its_entry(any_server, broker, stream):
    """Stream, group, consumer, subscription, id, timestamp and lag agree with the server."""
    seen = []

    @broker.subscriber(source(), name="post")
    async def handle(body: bytes, ctx: Context):
        seen.append((ctx.stream, ctx.group, ctx.consumer, ctx.subscription, str(ctx.entry_id), ctx.payload))
        assert ctx.timestamp == ctx.entry_id.ms / 1000
        assert abs(ctx.timestamp - time.time()) < 5
        assert 0 <= ctx.lag < 5
        assert str(ctx.entry_id) in repr(ctx)

    app = RustStream("test", broker)
    async with app:
        entry = stream.add("x")
        await eventually_async(lambda: seen)
        await eventually_async(lambda: stream.pending_ids() == [])
        consumer = app.health().subscriptions[0].consumer
        assert list(stream.consumers()) == [consumer]

    assert seen == [("s", "g", consumer, "post", entry, b"x")]


async def test_an_old_entry_has_the_lag_of_its_age(broker, stream):
    """An id of an hour ago: lag is an hour, by the server's clock, and the timestamp is the id's."""
    seen = []

    @broker.subscriber(source())
    async def handle(ctx: Context):
        seen.append((ctx.timestamp, ctx.lag))

    hour_ago = int(time.time() * 1000) - 3_600_000
    stream.client.xadd("s", {"_payload": "x"}, id=f"{hour_ago}-5")
    async with RustStream("test", broker):
        await eventually_async(lambda: seen)

    assert seen[0][0] == hour_ago / 1000
    assert 3600 <= seen[0][1] < 3610
