"""Entries of producers that know nothing of this package, and bodies that are not what the handler wants."""

import logging
from dataclasses import dataclass

import msgspec
import pytest

from eventually import eventually_async
from ruststream import Context, RustStream, drop, retry
from ruststream.redis import RedisStream, StreamStart


class Payment(msgspec.Struct):
    id: int
    account: str
    amount_cents: int = 0


@dataclass
class Refund:
    id: int
    reason: bytes = b""


def recovering(**options: object) -> RedisStream:
    return RedisStream.recovering("s", group="g", min_idle=30, start_id=StreamStart.BEGINNING, **options)


def collect(broker, kind, **options):
    """Subscribe a handler of this payload type; return what it gets."""
    seen = []

    async def handle(message: kind):
        seen.append(message)

    source = recovering(**{name: options.pop(name) for name in ("fields",) if name in options})
    broker.add_subscriber(source, handle, **options)
    return seen


async def test_plain_fields_become_the_handlers_type(any_server, broker, stream, figure):
    """B006: `XADD s * id 1 account a` is handled. Upstream acks it away with one warning."""
    seen = collect(broker, Payment)
    stream.add_fields({"id": 1, "account": "a"})
    stream.add_fields({"id": 2, "account": "b", "amount_cents": "500", "unknown": "x"})
    stream.add(msgspec.json.encode(Payment(3, "c")))

    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 3)
        await eventually_async(lambda: stream.pending_ids() == [])

    figure("foreign plain fields", f"{len(seen)} of 3 handled on {any_server.name}")
    assert seen == [Payment(1, "a"), Payment(2, "b", 500), Payment(3, "c")]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (dict, {"id": "1", "reason": b"\xff"}),
        (dict[str, bytes], {"id": b"1", "reason": b"\xff"}),
        (dict[bytes, bytes], {b"id": b"1", b"reason": b"\xff"}),
        (Refund, Refund(1, b"\xff")),
    ],
)
async def test_plain_fields_as_other_types(broker, stream, kind, expected):
    """A dict gets text where it is text and bytes where it is not; types that say bytes get bytes."""
    seen = collect(broker, kind)
    stream.add_fields({"id": "1", "reason": b"\xff"})

    async with RustStream("test", broker):
        await eventually_async(lambda: seen)

    assert seen == [expected]


async def test_repeated_foreign_fields(broker, stream):
    """B110, B111: of a repeated field the last value counts for the type, and all of them are in ctx.fields."""
    seen = []

    @broker.subscriber(recovering())
    async def handle(message: dict[str, str], ctx: Context):
        seen.append((message, ctx.fields))

    stream.client.execute_command("XADD", "s", "*", "a", "1", "b", "2", "a", "3")
    async with RustStream("test", broker):
        await eventually_async(lambda: seen)

    assert seen == [({"a": "3", "b": "2"}, [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])]


async def test_the_body_in_a_named_field(any_server, broker, stream):
    """fields="data": where another producer puts its JSON. Our own envelope is still read."""
    seen = collect(broker, Payment, fields="data")
    stream.add_fields({"version": 1, "data": msgspec.json.encode(Payment(1, "a"))})
    stream.add(msgspec.json.encode(Payment(2, "b")))

    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 2)

    assert seen == [Payment(1, "a"), Payment(2, "b")]


@pytest.mark.parametrize(
    ("fields", "entry", "words"),
    [
        ("envelope", {"id": 1, "account": "a"}, ["_payload", 'fields="envelope"']),
        ("data", {"id": 1, "account": "a"}, ["'data'"]),
        ("auto", {"id": "one", "account": "a"}, ["Payment", "id"]),
        ("auto", {"colour": "red"}, ["Payment", "id"]),
        ("auto", {"_payload": "{broken"}, ["Payment"]),
        ("auto", {"_payload": b"\xff\x00"}, ["Payment"]),
        ("auto", {"_payload": ""}, ["Payment"]),
        ("auto", {"_payload": '{"id": "x", "account": "a"}'}, ["Payment", "id"]),
    ],
)
async def test_what_does_not_decode_stays_pending_and_the_next_one_comes(
    broker, stream, caplog, figure, fields, entry, words
):
    """B014, C4: the entry alone suffers. The log names stream, group, entry, handler, what is wrong and what to set."""
    seen = collect(broker, Payment, fields=fields, name="post")
    bad = stream.add_fields(entry)
    good = [stream.add(msgspec.json.encode(Payment(number, "a"))) for number in range(3)]

    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == len(good))
        await eventually_async(lambda: stream.pending_ids() == [bad])

    [text] = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert all(word in text for word in ["'s'", "'g'", bad, "handle", "on_decode_error", *words])


@pytest.mark.parametrize("outcome", [drop(), retry()])
async def test_what_does_not_decode_has_the_outcome_that_was_asked_for(any_server, broker, stream, outcome):
    """on_decode_error: dropped, or retried as the mode retries; never acked without a word."""
    seen = collect(broker, Payment, on_decode_error=outcome)
    bad = stream.add("{broken")
    stream.add_fields({"id": 1, "account": "a"})

    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: seen)
        await eventually_async(lambda: app.health().subscriptions[0].counts["in_flight"] == 0)
        counts = app.health().subscriptions[0].counts

    assert stream.pending_ids() == ([bad] if outcome.kind == "retry" else [])
    assert counts["retried" if outcome.kind == "retry" else "dropped"] == 1


async def test_bytes_take_the_envelopes_body_alone(broker, stream):
    """A handler of bytes gets the body; an entry without one has none, which is said and not an empty success."""
    seen = collect(broker, bytes)
    stream.add(b"")
    bad = stream.add_fields({"colour": "red"})
    stream.add(b"x")

    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 2)
        await eventually_async(lambda: stream.pending_ids() == [bad])

    assert seen == [b"", b"x"]


async def test_msgpack_and_content_types(any_server, broker, stream):
    """codec="auto" reads each entry by its content-type; one it does not know stays pending."""
    seen = collect(broker, Payment, codec="auto")
    stream.add(msgspec.json.encode(Payment(1, "a")))
    stream.add(msgspec.msgpack.encode(Payment(2, "b")), content_type="application/msgpack")
    stream.add(msgspec.json.encode(Payment(3, "c")), content_type="application/json; charset=utf-8")
    bad = stream.add("<payment/>", content_type="application/xml")

    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 3)
        await eventually_async(lambda: stream.pending_ids() == [bad])

    assert [payment.id for payment in seen] == [1, 2, 3]


async def test_upstreams_wire_form_is_read(any_server, broker, stream):
    """`_payload` and `h:<name>`, with a partition key and a retry count, as the Rust original writes them."""
    seen = []

    @broker.subscriber(recovering(), by_key=True)
    async def handle(payment: Payment, ctx: Context):
        seen.append((payment, ctx.partition_key, ctx.headers["content-type"], ctx.delivery_count))

    stream.add_fields(
        {
            "_payload": '{"id":1,"account":"a","amount_cents":5}',
            "h:content-type": "application/json",
            "h:redis-partition-key": "a",
            "h:x-ruststream-retry-count": "2",
        }
    )
    async with RustStream("test", broker):
        await eventually_async(lambda: seen)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert seen == [(Payment(1, "a", 5), b"a", "application/json", 3)]
