"""Marks and entries: what frees a mark, what keeps it, whose it is, and which entries are one message."""

import asyncio

import pytest

from eventually import eventually_async
from integration.idempotency import MIN_IDLE, counts, mark_of, settled, source
from ruststream import Context, Idempotent, RustStream, ack, drop, leave, retry
from ruststream.redis import RedisStream


async def test_what_is_not_handled_frees_its_mark_and_what_is_dropped_does_not(stream, broker):
    @broker.subscriber(source(), name="post", workers=4, idempotency=Idempotent(ttl=60))
    async def handle(body: bytes):
        if body == b"raises":
            raise ValueError(body)
        return {b"leave": leave(), b"retry": retry(), b"drop": drop(), b"ack": ack()}[body]

    app = RustStream("test", broker)
    async with app:
        ids = {body: stream.add(body) for body in (b"leave", b"retry", b"raises", b"drop", b"ack")}
        await eventually_async(lambda: counts(app)["acked"] == 1 and counts(app)["dropped"] == 1)
        await eventually_async(lambda: mark_of(stream, f"entry:{ids[b'leave']}") is None)
        await eventually_async(lambda: mark_of(stream, f"entry:{ids[b'retry']}") is None)
        await eventually_async(lambda: mark_of(stream, f"entry:{ids[b'raises']}") is None)
        assert mark_of(stream, f"entry:{ids[b'drop']}") == b"done"
        assert mark_of(stream, f"entry:{ids[b'ack']}") == b"done"
        assert 50_000 < stream.client.pttl(f"{{s}}:g:idempotency:post:entry:{ids[b'ack']}") <= 60_000


async def test_a_dead_letter_that_is_put_back_is_a_duplicate_if_it_was_handled(stream, broker):
    """A replay keeps the original id in a header: handled messages are not handled again, given up ones are."""
    calls = []

    @broker.subscriber(source(), name="post", idempotency=Idempotent(ttl=60))
    async def handle(body: bytes):
        calls.append(body)

    app = RustStream("test", broker)
    async with app:
        handled = stream.add(b"a")
        await settled(app, 1)
        stream.add(b"a", x_original_entry_id=handled)
        await settled(app, 2)
        stream.add(b"b", x_original_entry_id="5-0")
        await settled(app, 3)
        assert counts(app)["duplicates_done"] == 1

    assert calls == [b"a", b"b"]


async def test_a_copy_carries_the_id_of_the_first_entry(stream, broker):
    """Of every copy, also of a copy of a copy; none of them shows it to what the handler publishes."""
    copies = []

    @broker.subscriber(source("new"), name="post", idempotency=Idempotent(ttl=60))
    async def handle(ctx: Context):
        copies.append(ctx.headers.get("x-original-entry-id"))
        if ctx.delivery_count == 3:
            await ctx.publish(b"x", "other", headers=ctx.headers.passed_on())
        return retry() if ctx.delivery_count < 3 else None

    app = RustStream("test", broker)
    async with app:
        first = stream.add(b"a")
        await settled(app, 1)
    assert copies == [None, first, first]
    [(_, fields)] = stream.client.xrange("other")
    assert b"h:x-original-entry-id" not in fields


async def test_a_foreign_mark_is_waited_for_and_never_touched(any_server, stream, broker):
    """Another owner's lease: the entry waits, pending, and runs when the lease has ended. Waiting is no delivery."""
    calls = []

    @broker.subscriber(source("recovering"), name="post", idempotency=Idempotent(ttl=60))
    async def handle(ctx: Context):
        calls.append(ctx.delivery_count)

    app = RustStream("test", broker)
    key = "{s}:g:idempotency:post:message:m"
    async with app:
        stream.client.set(key, "working other", px=600_000)
        entry = stream.add(b"a", message_id="m")
        await eventually_async(lambda: counts(app)["waiting"] == 1)
        await asyncio.sleep(3 * MIN_IDLE)
        [row] = stream.pending()
        assert (row["message_id"], row["times_delivered"], calls) == (entry, 1, [])
        assert stream.client.get(key) == b"working other"
        assert stream.client.pttl(key) > 500_000
        stream.client.pexpire(key, 100)
        await settled(app, 1)
        assert stream.client.get(key) == b"done"
    assert calls == [1]


async def test_a_mark_that_another_took_meanwhile_stays_the_others(stream, broker, caplog):
    """The lease ended while the handler ran, another began: its mark is neither removed nor overwritten."""
    running, go = asyncio.Event(), asyncio.Event()

    @broker.subscriber(source(), name="post", idempotency=Idempotent(ttl=60))
    async def handle(body: bytes):
        running.set()
        await go.wait()
        return retry() if body == b"retry" else None

    app = RustStream("test", broker)
    async with app:
        for body in (b"ack", b"retry"):
            running.clear()
            go.clear()
            entry = stream.add(body)
            await running.wait()
            key = f"{{s}}:g:idempotency:post:entry:{entry}"
            stream.client.set(key, "working other", px=600_000)
            await asyncio.sleep(MIN_IDLE)
            go.set()
            await eventually_async(lambda: counts(app)["running"] == 0 and counts(app)["unsettled"] == 0)
            await asyncio.sleep(MIN_IDLE / 2)
            assert stream.client.get(key) == b"working other"
    assert "another consumer had begun to handle them too" in caplog.text


async def test_a_handled_message_whose_entry_was_taken_over_is_marked_as_done(stream, broker):
    """The next owner of the entry finds the mark and does not repeat the work."""
    running, go, calls = asyncio.Event(), asyncio.Event(), []

    @broker.subscriber(source(), name="post", idempotency=Idempotent(ttl=60))
    async def handle(body: bytes):
        calls.append(body)
        running.set()
        await go.wait()

    async with RustStream("test", broker):
        entry = stream.add(b"a")
        await running.wait()
        stream.claim("other", entry)
        await asyncio.sleep(MIN_IDLE)
        go.set()
        await eventually_async(lambda: mark_of(stream, f"entry:{entry}") == b"done")
        # The other one never acknowledges it, so it comes back here.
        await eventually_async(lambda: stream.pending_ids() == [])
        assert calls == [b"a"]


async def test_what_is_handed_back_at_stop_leaves_no_mark(stream, make_broker):
    """The prefetch of a stopped process is taken by the next one at once, not after a lease."""
    running, go = asyncio.Event(), asyncio.Event()
    seen = []

    def app_of(handler):
        broker = make_broker()
        slow = RedisStream.claiming("s", group="g", min_idle=30, start_id="0")
        broker.add_subscriber(slow, handler, name="post", idempotency=Idempotent(ttl=600))
        return RustStream("test", broker)

    async def first(body: bytes):
        running.set()
        await go.wait()

    async def second(body: bytes):
        seen.append(body)

    async with app_of(first):
        for number in range(5):
            stream.add(str(number))
        await running.wait()
        await eventually_async(lambda: len(stream.client.keys("*idempotency*")) == 5)
        asyncio.get_running_loop().call_later(0.3, go.set)
    states = [stream.client.get(key) for key in stream.client.keys("*idempotency*")]
    assert states == [b"done"]
    async with app_of(second):
        await eventually_async(lambda: len(seen) == 4, timeout=10)
    assert seen == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("refused", [False, True])
async def test_a_reply_is_out_before_its_message_is_done(stream, broker, refused):
    """Done comes after the reply: one that the server refuses is tried again, not taken for handled."""
    calls = []

    @broker.subscriber(source(), name="post", reply_to="replies", idempotency=Idempotent(ttl=60))
    async def handle(body: bytes) -> bytes:
        calls.append(body)
        if len(calls) == 2:
            stream.client.delete("replies")
        return b"re: " + body

    app = RustStream("test", broker)
    if refused:
        stream.client.set("replies", "no stream")
    async with app:
        entry = stream.add(b"a")
        if refused:
            await eventually_async(lambda: len(calls) == 2)
        await eventually_async(lambda: mark_of(stream, f"entry:{entry}") == b"done")
        await eventually_async(lambda: stream.pending_ids() == [])
        stream.add(b"a", x_original_entry_id=entry)
        await eventually_async(lambda: counts(app)["duplicates_done"] == 1)

    assert calls == [b"a"] * (2 if refused else 1)
    assert [fields[b"_payload"] for _, fields in stream.client.xrange("replies")] == [b"re: a"]
