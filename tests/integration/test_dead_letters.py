"""dead_letter(): a copy in another stream and the ack in one step, on every server, however it is said."""

import logging
import time

import msgspec
import pytest

from eventually import eventually_async
from integration.conftest import Stream
from integration.letters import MARK, bring, counts, errors, marks, rest, source
from ruststream import Context, RustStream, Settle, dead_letter, drop, retry
from ruststream.errors import ConfigError
from ruststream.redis import RedisStream

MODES = ["new", "reclaim", "recovering"]


class Payment(msgspec.Struct):
    id: int


@pytest.mark.parametrize("mode", MODES)
async def test_a_letter_is_the_entry_byte_for_byte_and_says_why(any_server, broker, stream, letters, mode):
    """B007, B064: payload, headers, foreign and repeated fields as they were, in order; where from, how often, why."""
    stream.create_group()
    fields = {
        b"_payload": bytes(range(256)),
        b"h:trace": b"\x80",
        b"h:redis-partition-key": b"k",
        b"\xfe": b"foreign",
        b"empty": b"",
        b"h:redis-delivery-count": b"77",
        b"h:redis-idle-ms": b"88",
    }

    @broker.subscriber(source(mode), dead_letter="s.dlq")
    async def handle(body: bytes, ctx: Context):
        return dead_letter("no such account")

    app = RustStream("test", broker)
    before = time.time()
    async with app:
        entry = bring(stream, mode, fields)
        await eventually_async(lambda: counts(app)["dead_lettered"] == 1)
        consumer = app.health().subscriptions[0].consumer
        assert (counts(app)["acked"], counts(app)["dropped"], counts(app)["in_flight"]) == (0, 0, 0)

    [(_, letter)] = letters.entries()
    kept = {
        name: value for name, value in fields.items() if name not in (b"h:redis-delivery-count", b"h:redis-idle-ms")
    }
    assert list(rest(letter).items()) == list(kept.items())
    said = marks(letter)
    assert before - 1 < int(said.pop("time-ms")) / 1000 < time.time() + 1
    assert said == {
        "reason": "rejected",
        "stream": "s",
        "group": "g",
        "consumer": consumer,
        "entry-id": entry,
        "deliveries": "2" if mode == "reclaim" else "1",
        "error": "no such account",
    }
    assert stream.pending_ids() == []
    assert [entry_id for entry_id, _ in stream.entries()] == [entry]


async def test_repeated_fields_are_kept(any_server, broker, stream, letters):
    """B110: Redis keeps a name given twice; so does the letter."""
    stream.client.execute_command("XADD", "s", "*", "a", "1", "a", "2", "_payload", "x", "a", "1")

    @broker.subscriber(source(), dead_letter="s.dlq")
    async def handle(body: bytes):
        return dead_letter()

    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: counts(app)["dead_lettered"] == 1)

    raw = stream.client.execute_command("EVAL", "return redis.call('XRANGE', KEYS[1], '-', '+')[1][2]", 1, "s.dlq")
    assert raw[:8] == [b"a", b"1", b"a", b"2", b"_payload", b"x", b"a", b"1"]
    assert MARK + b"error" not in raw


@pytest.mark.parametrize("how", ["return", "raise", "by hand", "by class", "on_error"])
async def test_every_way_to_say_it_leads_there(broker, stream, letters, how):
    """Returned, raised as Settle, settled by hand, by an exception's class, by one outcome for every exception."""
    policies = {"by class": {LookupError: dead_letter()}, "on_error": dead_letter()}

    @broker.subscriber(source(), dead_letter="s.dlq", on_error=policies.get(how))
    async def handle(body: bytes, ctx: Context):
        if how == "return":
            return dead_letter("why")
        if how == "raise":
            raise Settle(dead_letter("why"))
        if how == "by hand":
            ctx.settle(dead_letter("why"))
            return None
        raise KeyError("no account")

    app = RustStream("test", broker)
    async with app:
        stream.add("x")
        await eventually_async(lambda: counts(app)["dead_lettered"] == 1)

    [(_, letter)] = letters.entries()
    assert marks(letter)["reason"] == "rejected"
    assert marks(letter)["error"] == ("KeyError: 'no account'" if how in policies else "why")


async def test_an_error_is_cut_at_512_bytes_and_never_keeps_its_entry(broker, stream, letters):
    """Texts of any length, of several bytes a character, that UTF-8 can't carry, or that can't be told at all."""

    class UntoldError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    found = [ValueError("x" * 10_000), ValueError("\u20ac" * 1000), ValueError("\udcff"), UntoldError(), ValueError()]

    @broker.subscriber(source(), dead_letter="s.dlq", on_error=dead_letter())
    async def handle(body: bytes):
        raise found[int(body)]

    app = RustStream("test", broker)
    async with app:
        for number in range(len(found)):
            stream.add(str(number))
        await eventually_async(lambda: counts(app)["dead_lettered"] == len(found))

    said = [marks(letter)["error"] for _, letter in letters.entries()]
    assert said[0] == ("ValueError: " + "x" * 1000)[:512]
    assert said[1] == "ValueError: " + "\u20ac" * 166
    assert said[2:] == ["ValueError: ?", "UntoldError: (its text can't be told)", "ValueError"]


@pytest.mark.parametrize("mode", MODES)
async def test_what_does_not_decode_goes_there_by_default(any_server, broker, stream, letters, mode):
    """B006, B014: neither lost nor stuck. Foreign fields and broken JSON, as they came, with the decoder's text."""
    stream.create_group()
    handled = []

    @broker.subscriber(source(mode), dead_letter="s.dlq")
    async def handle(payment: Payment):
        handled.append(payment.id)

    app = RustStream("test", broker)
    async with app:
        broken = bring(stream, mode, {"_payload": b"{"})
        foreign = bring(stream, mode, {"temperature": "7"})
        bring(stream, mode, {"_payload": b'{"id": 3}'})
        await eventually_async(lambda: handled == [3] and counts(app)["dead_lettered"] == 2)
        await eventually_async(lambda: stream.pending_ids() == [])

    [first, second] = [fields for _, fields in letters.entries()]
    assert rest(first) == {b"_payload": b"{"}
    assert rest(second) == {b"temperature": b"7"}
    assert [(marks(fields)["reason"], marks(fields)["entry-id"]) for fields in (first, second)] == [
        ("decode-error", broken),
        ("decode-error", foreign),
    ]
    assert marks(first)["error"].startswith("DecodeError: ")


async def test_on_decode_error_still_says_otherwise(broker, stream, letters):
    """drop() by name wins over the stream of dead letters."""

    @broker.subscriber(source(), dead_letter="s.dlq", on_decode_error=drop())
    async def handle(payment: Payment):
        pass

    app = RustStream("test", broker)
    async with app:
        stream.add("{")
        await eventually_async(lambda: counts(app)["dropped"] == 1)

    assert letters.length() == 0


async def test_without_a_stream_for_it_the_entry_stays_and_the_log_says_what_to_do(broker, stream, caplog):
    """A handler may return what its options do not know: documented error, entry kept."""

    @broker.subscriber(source())
    async def handle(body: bytes):
        return dead_letter("why")

    app = RustStream("test", broker)
    async with app:
        entry = stream.add("x")
        await eventually_async(lambda: counts(app)["left"] == 1)

    assert stream.pending_ids() == [entry]
    [text] = errors(caplog)
    assert f"entry {entry}" in text
    assert "no dead_letter= stream" in text


async def test_a_retried_copy_is_buried_deleted_and_counted_on(any_server, broker, stream, letters):
    """The copy was for this group alone: gone with its ack; the letter counts all deliveries and is no copy itself."""

    @broker.subscriber(source("new"), dead_letter="s.dlq")
    async def handle(body: bytes, ctx: Context):
        return retry() if ctx.delivery_count == 1 else dead_letter()

    app = RustStream("test", broker)
    async with app:
        original = stream.add("x", trace="t")
        await eventually_async(lambda: counts(app)["dead_lettered"] == 1)

    assert [entry_id for entry_id, _ in stream.entries()] == [original]
    [(_, letter)] = letters.entries()
    assert rest(letter) == {b"_payload": b"x", b"h:trace": b"t", b"h:x-original-entry-id": original.encode()}
    assert marks(letter)["deliveries"] == "2"
    assert stream.pending_ids() == []


async def test_a_letter_that_is_buried_again_has_one_set_of_headers(any_server, broker, stream, letters):
    """A subscriber of the dead letters that gives up too: the newest headers replace the older ones (B112)."""

    @broker.subscriber(source(), dead_letter="s.dlq")
    async def first(body: bytes):
        return dead_letter("first")

    @broker.subscriber(
        RedisStream.recovering("s.dlq", min_idle=4, group="morgue", start_id="0"), dead_letter="s.dlq.dlq"
    )
    async def second(body: bytes, ctx: Context):
        assert ctx.delivery_count == 1
        assert ctx.headers["x-dead-letter-error"] == "first"
        return dead_letter("second")

    app = RustStream("test", broker)
    async with app:
        stream.add("x", trace="t")
        last = Stream(stream.client, "s.dlq.dlq")
        await eventually_async(lambda: last.length() == 1)

    [(letter_id, _)] = letters.entries()
    [(_, fields)] = last.entries()
    assert rest(fields) == {b"_payload": b"x", b"h:trace": b"t"}
    said = marks(fields)
    assert (said["stream"], said["group"], said["entry-id"], said["error"]) == ("s.dlq", "morgue", letter_id, "second")
    assert len([name for name in fields if MARK in name]) == 8


async def test_it_works_the_same_within_the_process():
    """memory:// has dead letters too: by outcome, and read again as a stream."""
    from ruststream.redis import RedisBroker

    broker = RedisBroker("memory://dead-letters")
    seen = []

    @broker.subscriber(RedisStream("s", group="g"), dead_letter="s.dlq")
    async def handle(body: bytes):
        return dead_letter("why")

    @broker.subscriber(RedisStream("s.dlq", group="morgue"))
    async def read(body: bytes, ctx: Context):
        seen.append((body, dict(ctx.headers)))

    app = RustStream("test", broker)
    async with app:
        entry = await broker.publish(b"x", "s")
        await eventually_async(lambda: seen)

    [(body, headers)] = seen
    assert body == b"x"
    assert headers["x-dead-letter-entry-id"] == str(entry)
    assert headers["x-dead-letter-error"] == "why"


async def test_a_stop_says_how_many_were_given_up(broker, stream, caplog):
    """The drain line counts them, and a stop waits until they are answered."""
    caplog.set_level(logging.INFO)
    stream.create_group()
    stream.add_numbered(1, 50)

    @broker.subscriber(source(), dead_letter="s.dlq")
    async def handle(body: bytes):
        return dead_letter()

    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: counts(app)["read"] == 50 and counts(app)["queued"] == 0)

    assert any("dead-lettered 50" in record.getMessage() for record in caplog.records)
    assert stream.client.xlen("s.dlq") == 50


async def test_two_streams_that_bury_in_each_other_are_refused(broker):
    """A letter would go round for ever: s to s.dlq, and s.dlq back to s."""

    @broker.subscriber(source(), dead_letter="s.dlq")
    async def first(body: bytes):
        pass

    @broker.subscriber(RedisStream("s.dlq", group="morgue"), dead_letter="s")
    async def second(body: bytes):
        pass

    with pytest.raises(ConfigError, match=r"dead letters of first, second go round in a circle \(s -> s\.dlq -> s\)"):
        async with RustStream("test", broker):
            pass
