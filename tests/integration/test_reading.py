"""What each of the four constructors brings to a handler, and how soon."""

import statistics
import time

import msgspec
import pytest
import redis

from eventually import eventually_async
from ruststream import Context, RustStream, retry
from ruststream.redis import RedisStream, StreamStart

EVERYWHERE = ["new", "recovering"]


def source(mode: str, **options: object) -> RedisStream:
    """A stream read by this constructor, from its beginning unless told otherwise."""
    options = {"group": "g", "start_id": StreamStart.BEGINNING} | options
    return getattr(RedisStream, mode)("s", **options if mode == "new" else {"min_idle": 30} | options)


@pytest.mark.parametrize("mode", EVERYWHERE)
async def test_entries_arrive_in_order_once_and_leave_the_pending_list(any_server, broker, stream, mode):
    """1,000 entries, half of them there before the start: each once, in order, and nothing is left pending."""
    seen = []

    @broker.subscriber(source(mode))
    async def handle(number: int):
        seen.append(number)

    stream.add_numbered(1, 500)
    async with RustStream("test", broker):
        stream.add_numbered(501, 1000)
        await eventually_async(lambda: len(seen) >= 1000)
        await eventually_async(lambda: stream.group()["pending"] == 0)

    assert seen == list(range(1, 1001))
    assert stream.length() == 1000


async def test_claiming_reads_new_entries_and_idle_ones(broker, stream):
    """Claiming: what a dead consumer left comes with what is new."""
    stream.create_group()
    left = [stream.add("left"), stream.add("left")]
    stream.deliver("dead")
    fresh = stream.add("new")
    seen = {}

    @broker.subscriber(source("claiming", min_idle=0.05))
    async def handle(body: bytes, ctx: Context):
        seen[str(ctx.entry_id)] = body, ctx.delivery_count

    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 3)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert seen == {left[0]: (b"left", 2), left[1]: (b"left", 2), fresh: (b"new", 1)}


async def test_reclaim_reads_idle_entries_and_nothing_else(any_server, broker, stream):
    """Reclaim takes what is pending and idle, and leaves what was never delivered to others."""
    stream.create_group()
    left = stream.add("left")
    stream.deliver("dead")
    stream.add("new")
    seen = []

    @broker.subscriber(source("reclaim", min_idle=0.05))
    async def handle(body: bytes, ctx: Context):
        seen.append((str(ctx.entry_id), body))

    async with RustStream("test", broker):
        await eventually_async(lambda: seen)
        await eventually_async(lambda: stream.pending_ids() == [])
        stream.add("new")
        # A second entry that goes idle shows that it went on scanning, past the new ones.
        stream.deliver("dead", count=1)
        await eventually_async(lambda: len(seen) == 2)

    assert [body for _, body in seen] == [b"left", b"new"]
    assert seen[0][0] == left
    assert stream.group()["lag"] == 1


async def test_binary_names_and_values_arrive_unchanged(any_server, broker, stream):
    """B008: field names and values that are not UTF-8, and empty ones, reach the handler byte for byte."""
    everything = bytes(range(256))
    fields = {b"_payload": everything, b"h:trace": b"\xff\xfe\x00", b"\xff\xfe": b"\x80", b"": b"", b"\r\n$3": b"*1"}
    stream.add_fields(fields)
    seen = []

    @broker.subscriber(source("recovering"))
    async def handle(body: bytes, ctx: Context):
        seen.append((body, ctx.headers.raw["trace"], ctx.fields))

    async with RustStream("test", broker):
        await eventually_async(lambda: seen)

    assert seen == [(everything, b"\xff\xfe\x00", list(fields.items()))]


@pytest.mark.parametrize("name", ["with blanks", "größe:äöü", "{tag}:s", "a\r\nb\0c", "x" * 1000])
async def test_names_of_all_kinds(broker, witness, name):
    """Stream, group and consumer go by any text: blanks, umlauts, line ends, long ones."""
    seen = []

    @broker.subscriber(RedisStream.recovering(name, group=name, consumer=name, min_idle=30, start_id="0"))
    async def handle(body: bytes, ctx: Context):
        seen.append((body, ctx.stream, ctx.group, ctx.consumer, ctx.delivery_count))

    async with RustStream("test", broker):
        await broker.publish(b"x", name)
        await eventually_async(lambda: seen)
        await eventually_async(lambda: witness.xpending(name, name)["pending"] == 0)

    assert seen == [(b"x", name, name, name, 1)]


@pytest.mark.parametrize("entry_id", ["1-0", "9999999999999999-18446744073709551614", "18446744073709551614-7"])
async def test_ids_of_all_sizes(any_server, broker, stream, entry_id):
    """The smallest ids, and ids of a clock that is far ahead: read, retried in place, and settled."""
    stream.client.xadd("s", {"_payload": "x"}, id=entry_id)
    seen = []

    @broker.subscriber(source("recovering", min_idle=0.1))
    async def handle(ctx: Context):
        seen.append((str(ctx.entry_id), ctx.delivery_count, ctx.lag >= 0))
        return retry() if ctx.delivery_count == 1 else None

    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 2)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert seen == [(entry_id, 1, True), (entry_id, 2, True)]


async def test_an_entry_of_5000_fields(any_server, broker, stream):
    """B111: 5,000 fields arrive in order, beside small entries."""
    fields = {f"field-{number}": str(number) for number in range(5000)}
    stream.add("before")
    stream.add_fields(fields)
    stream.add("after")
    seen = []

    @broker.subscriber(source("recovering"))
    async def handle(ctx: Context):
        seen.append(ctx.fields)

    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 3)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert seen[1] == [(name.encode(), value.encode()) for name, value in fields.items()]


@pytest.mark.parametrize("mode", ["new", "claiming"])
async def test_an_entry_of_100_megabytes(broker, stream, mode):
    """B115: a body of 100 MB arrives whole, and does not hold up what comes after it."""
    body = b"0123456789abcdef" * (100 * 1024 * 1024 // 16)
    stream.add(body)
    stream.add(b"small")
    seen = []

    @broker.subscriber(source(mode))
    async def handle(payload: bytes):
        seen.append(payload)

    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 2, timeout=30)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert seen[0] == body
    assert seen[1] == b"small"


async def test_an_entry_without_a_body_reaches_a_handler_that_wants_none(any_server, broker, stream):
    """An entry with no field of ours is handled like any other where the handler takes only the context."""
    entry = stream.add_fields({"colour": "red"})
    seen = []

    @broker.subscriber(source("new"))
    async def handle(ctx: Context):
        seen.append((str(ctx.entry_id), ctx.payload, ctx.partition_key, dict(ctx.headers)))

    async with RustStream("test", broker):
        await eventually_async(lambda: seen)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert seen == [(entry, b"", None, {})]


async def test_payloads_decode_into_the_types_a_handler_asks_for(broker, stream):
    """Struct, dict, bytes and msgspec.Raw: one stream, four groups, each gets its own form of the body."""

    class Payment(msgspec.Struct):
        id: int
        account: str

    body = b'{"id": 7, "account": "acc-1"}'
    seen = {}

    def keep(name, kind):
        async def handle(message: kind):
            seen[name] = message

        broker.add_subscriber(source("new", group=name), handler=handle, name=name)

    for name, kind in (("struct", Payment), ("dict", dict), ("bytes", bytes), ("raw", msgspec.Raw)):
        keep(name, kind)
    stream.add(body)
    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 4)

    raw = seen.pop("raw")
    assert bytes(raw) == body
    assert seen == {"struct": Payment(7, "acc-1"), "dict": {"id": 7, "account": "acc-1"}, "bytes": body}


async def test_a_new_entry_is_handled_within_milliseconds_of_a_blocked_read(any_server, broker, stream, figure):
    """A read that blocks for 2 s delays nothing: from XADD to handler a few milliseconds (upstream: 1-2 ms)."""
    began, took = 0.0, []

    @broker.subscriber(source("recovering"))
    async def handle(body: bytes):
        took.append(time.perf_counter() - began)

    async with RustStream("test", broker):
        for number in range(30):
            # The reader is back in its blocked read, which is what the server says of its connection.
            await eventually_async(lambda: blocked(stream.client))
            began = time.perf_counter()
            stream.add(str(number))
            await eventually_async(lambda number=number: len(took) == number + 1, every=0.0005)

    figure("XADD to handler, median", f"{statistics.median(took) * 1000:.2f} ms on {any_server.name}")
    assert statistics.median(took) <= 0.012


def blocked(client: redis.Redis) -> bool:
    return client.info("clients")["blocked_clients"] > 0


async def test_a_blocked_read_does_not_delay_the_stop(any_server, broker, stream, figure):
    """B019: an idle app stops within a tenth of a second, although its reads block for 30 s; nothing is lost by it."""

    @broker.subscriber(source("recovering", block=30))
    async def handle(body: bytes):
        pass

    async with RustStream("test", broker):
        await eventually_async(lambda: blocked(stream.client))
        began = time.perf_counter()
    took = time.perf_counter() - began

    figure("idle stop", f"{took * 1000:.0f} ms on {any_server.name}")
    assert took < 0.5
    await eventually_async(lambda: not blocked(stream.client))


async def test_a_block_below_a_millisecond_is_no_block_for_ever(broker, stream):
    """Upstream turns such a block into 0, which waits for ever. Here the shortest is a millisecond, and it stops."""

    @broker.subscriber(source("new", block=0.001))
    async def handle(body: bytes):
        seen.append(body)

    seen = []
    async with RustStream("test", broker):
        stream.add(b"1")
        await eventually_async(lambda: seen == [b"1"])
