"""Entries of producers that know nothing of this package, and bodies that are not what the handler wants."""

import datetime as dt
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


class Order(msgspec.Struct):
    """What a service in another language might write."""

    id: int
    paid: bool
    amount: float
    note: str = "-"
    refunded: bool = False
    discount: float | None = 1.0
    at: dt.datetime | None = None
    took: int = 0
    tags: list[str] = msgspec.field(default_factory=list)
    raw: bytes = b""
    blob: bytes = b""


AT = dt.datetime(2026, 1, 2, 3, 4, 5, 123457, tzinfo=dt.UTC)


def by_redis_py(server, stream):
    """Numbers, text and bytes as redis-py encodes them; it takes neither bools, nor None, nor lists."""
    fields = {"id": 7, "paid": "True", "amount": 12.5, "note": "\u00e9", "raw": b"\x00\xff", "tags": '["a","b"]'}
    stream.client.xadd("s", fields)
    return Order(7, True, 12.5, "\u00e9", raw=b"\x00\xff", tags=["a", "b"])


def by_redis_cli(server, stream):
    """Arguments of a shell: text with blanks, an empty one, a repeated field."""
    server.cli(
        *["XADD", "s", "*", "id", "6", "paid", "false", "amount", "1e3", "id", "7"],
        "note",
        "two words",
        "discount",
        "",
        "raw",
        "",
    )
    return Order(7, False, 1000.0, "two words", discount=None)


def by_go_redis(server, stream):
    """What go-redis 9.7 writes of int64, bool, float32, nil, time.Time, time.Duration, []byte and MarshalBinary."""
    fields = [
        *("id", "7", "paid", "1", "refunded", "0", "amount", "0.10000000149011612", "discount", ""),
        *("at", "2026-01-02T03:04:05.123456789Z", "took", "1500000000", "raw", b"\x00\xff", "blob", b"\x00\xff\x01"),
    ]
    stream.client.execute_command("XADD", "s", "*", *fields)
    return Order(7, True, 0.10000000149011612, discount=None, at=AT, took=1_500_000_000, raw=b"\x00\xff",
                 blob=b"\x00\xff\x01")  # fmt: skip


@pytest.mark.parametrize("written", [by_redis_py, by_redis_cli, by_go_redis])
async def test_entries_as_other_clients_write_them(any_server, broker, stream, written):
    """B006, B114: numbers, bools, times, empty values, bytes and JSON, each as its client puts it on the wire."""
    seen = collect(broker, Order)
    expected = written(any_server, stream)

    async with RustStream("test", broker):
        await eventually_async(lambda: seen)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert seen == [expected]


async def test_names_and_values_that_are_not_text_reach_the_handler(any_server, broker, stream):
    """B008: a handler that takes a dict, or looks at ctx.fields, gets every byte."""
    seen = []

    @broker.subscriber(recovering())
    async def handle(message: dict, ctx: Context):
        seen.append((message, ctx.fields))

    fields = [(b"\xff\x00", b"\xfe"), (b"", b""), (b"text", b"\xc3\xa9")]
    stream.client.execute_command("XADD", "s", "*", *(part for pair in fields for part in pair))
    async with RustStream("test", broker):
        await eventually_async(lambda: seen)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert seen == [({b"\xff\x00": b"\xfe", "": "", "text": "\u00e9"}, fields)]


async def test_a_named_field_is_decoded_as_the_body_is(broker, stream):
    """fields="data": the last of a repeated one, by the codec; bytes as they are; an empty one is no message."""
    payments, raw = collect(broker, Payment, fields="data"), []

    async def handle(body: bytes):
        raw.append(body)

    broker.add_subscriber(
        RedisStream.recovering("s", group="h", min_idle=30, start_id=StreamStart.BEGINNING, fields="data"), handle
    )
    body = msgspec.json.encode(Payment(2, "b"))
    stream.client.execute_command("XADD", "s", "*", "data", "{broken", "\u00e4", b"\xff", "data", body)
    bad = stream.add_fields({"data": ""})
    async with RustStream("test", broker):
        await eventually_async(lambda: len(payments) == 1)
        await eventually_async(lambda: stream.pending_ids() == [bad])
        await eventually_async(lambda: len(raw) == 2)

    assert (payments, raw) == ([Payment(2, "b")], [body, b""])


async def test_a_batch_takes_entries_of_every_form(any_server, broker, stream):
    """Our envelope, plain fields, and one that fits neither, in one batch."""
    seen = []

    async def handle(payments: list[Payment]):
        seen.extend(payments)

    broker.add_subscriber(recovering(), handle, batch=10)
    stream.add(msgspec.json.encode(Payment(1, "a")))
    stream.add_fields({"id": 2, "account": "b"})
    bad = stream.add_fields({"id": "x"})
    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 2)
        await eventually_async(lambda: stream.pending_ids() == [bad])

    assert seen == [Payment(1, "a"), Payment(2, "b")]


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
