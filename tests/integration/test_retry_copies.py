"""retry() of a `new` or `reclaim` subscription: a copy at the end, the original acknowledged, in one step."""

import asyncio
import itertools
import logging
import time

import pytest

from eventually import eventually_async
from ruststream import Backoff, Context, RustStream, drop, leave, retry
from ruststream.redis import RedisBroker, RedisStream

DELAYED = "{s}:g:delayed"


def new(group: str = "g", **options: object) -> RedisStream:
    return RedisStream("s", group=group, start_id="0", **options)


def retries(broker, times: int, source: RedisStream | None = None, **options):
    """Subscribe a handler that asks for so many retries of each entry; return what it saw."""
    seen = []

    async def handle(body: bytes, ctx: Context):
        seen.append((body, ctx.delivery_count, time.time()))
        return retry() if ctx.delivery_count <= times else None

    broker.add_subscriber(source or new(), handle, **options)
    return seen


async def test_the_copy_is_the_entry_and_says_for_whom_and_how_often(any_server, broker, stream):
    """Body, headers and foreign fields byte for byte, in order; beside them of what it is a copy, count and group."""
    fields = {b"_payload": b"\xff\x00", b"h:trace": b"\x80", b"h:redis-partition-key": b"k", b"\xfe": b"foreign"}
    original = stream.add_fields(fields)
    seen = retries(broker, 1)

    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 2)
        await eventually_async(lambda: stream.pending_ids() == [])

    [first, (copy, copied)] = stream.entries()
    assert first == (original, fields)
    assert copy != original
    added = {b"x-original-entry-id": original.encode(), b"x-ruststream-retry-count": b"1"}
    added[b"x-ruststream-retry-group"] = b"g"
    assert copied == fields | {b"h:" + name: value for name, value in added.items()}
    assert list(copied)[: len(fields)] == list(fields)
    assert [count for _, count, _ in seen] == [1, 2]


async def test_the_copy_goes_behind_what_was_added_meanwhile(any_server, broker, stream):
    """An immediate retry is appended at the end, and its order among the others follows from that."""
    for body in "abc":
        stream.add(body)
    seen = []

    @broker.subscriber(new())
    async def handle(body: bytes, ctx: Context):
        seen.append(body)
        return retry() if body == b"a" and ctx.delivery_count == 1 else None

    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 4)

    assert seen == [b"a", b"b", b"c", b"a"]


async def test_counts_go_on_from_copy_to_copy(any_server, broker, stream):
    """B065: copies have ids of their own, but the delivery count is that of the message: 1, 2, 3, 4."""
    seen = retries(broker, 3)

    async with RustStream("test", broker):
        stream.add("x")
        await eventually_async(lambda: len(seen) == 4)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert [count for _, count, _ in seen] == [1, 2, 3, 4]


async def test_a_reclaimed_entry_counts_on_in_its_copy(any_server, broker, stream):
    """Delivered three times, then retried by a reclaim: the `new` subscription of the group gets it as the fifth."""
    stream.create_group()
    entry = stream.add("x")
    stream.deliver("dead")
    stream.claim("dead", entry)
    stream.claim("dead", entry)
    reclaimed = retries(broker, 99, RedisStream.reclaim("s", group="g", min_idle=0.1), name="recover")
    seen = retries(broker, 0, name="new")

    async with RustStream("test", broker):
        await eventually_async(lambda: seen)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert [count for _, count, _ in reclaimed] == [4]
    assert [count for _, count, _ in seen] == [5]


async def test_the_first_retry_is_at_once_and_later_ones_wait_longer_and_longer(any_server, broker, stream, figure):
    """0 s, then 0.1, 0.2, 0.4 s: with a little of what it takes to come round."""
    seen = retries(broker, 4)

    async with RustStream("test", broker):
        stream.add("x")
        await eventually_async(lambda: len(seen) == 5)

    times = [when for _, _, when in seen]
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    figure("waits of retry() by copy", f"{[f'{wait * 1000:.0f}' for wait in waits]} ms on {any_server.name}")
    for wait, due in zip(waits, (0, 0.1, 0.2, 0.4), strict=True):
        assert due <= wait < due + 0.15


async def test_a_backoff_applies_from_the_first_retry(broker, stream):
    """`backoff=` says the wait of a retry() without a delay."""
    seen = retries(broker, 2, backoff=Backoff(0.3, 1, factor=2, jitter=0))

    async with RustStream("test", broker):
        stream.add("x")
        await eventually_async(lambda: len(seen) == 3)

    times = [when for _, _, when in seen]
    assert 0.3 <= times[1] - times[0] < 0.45
    assert 0.6 <= times[2] - times[1] < 0.75


async def test_our_other_group_acks_the_copy_unseen_and_a_foreign_one_sees_it(any_server, broker, stream, figure):
    """The copy is for the group that asked for it. Upstream runs it in every group."""
    seen = retries(broker, 2)
    others = []

    @broker.subscriber(new("other"))
    async def other(body: bytes):
        others.append(body)

    stream.create_group("foreign")
    async with RustStream("test", broker):
        stream.add("x")
        await eventually_async(lambda: len(seen) == 3)
        stream.add("end")
        await eventually_async(lambda: len(others) >= 2 and others[-1] == b"end")
        await eventually_async(lambda: stream.pending_ids("other") == [])

    figure("calls of the other group", f"{len(others) - 1} for an entry retried twice, on {any_server.name}")
    assert others == [b"x", b"end"]
    assert len(stream.deliver("c", group="foreign")) >= 3


@pytest.mark.parametrize("header", ["attempts", "retry-count", "retry-group"])
async def test_headers_of_a_copy_that_nobody_made_count_nothing(any_server, broker, stream, header):
    """An entry that brings such a header and is no copy of this group's is run, and has all its attempts."""
    value = "" if header == "retry-group" else "3"
    seen = retries(broker, 1_000_000, max_attempts=2, on_exhausted=drop(), backoff=Backoff(0.01, 0.01))

    async with RustStream("test", broker) as app:
        stream.add_fields({"_payload": "x", f"h:x-ruststream-{header}": value})
        await eventually_async(lambda: app.health().subscriptions[0].counts["dropped"] == 1)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert [body for body, *_ in seen] == [b"x", b"x"]


@pytest.mark.parametrize("mode", ["new", "recovering"])
async def test_a_copy_for_a_group_that_is_not_there_is_an_ordinary_entry(any_server, broker, stream, caplog, mode):
    """The group was renamed, or the stream is the mirror of another one: nobody else would handle it."""
    caplog.set_level(logging.INFO)
    stream.create_group("h")
    for group in ("old", "h"):
        stream.add_fields(
            {"_payload": group, "h:x-ruststream-retry-group": group, "h:x-ruststream-attempts": "9"},
        )
    given = {} if mode == "new" else {"min_idle": 0.05}
    source = getattr(RedisStream, mode)("s", group="g", start_id="0", **given)
    seen = retries(broker, 1_000_000, source, max_attempts=2, on_exhausted=drop(), backoff=Backoff(0.01, 0.01))

    async with RustStream("test", broker) as app:
        await eventually_async(lambda: app.health().subscriptions[0].counts["dropped"] == 1)
        await eventually_async(lambda: stream.pending_ids() == [])
        assert app.health().subscriptions[0].counts["foreign_copies"] == 1

    assert [body for body, *_ in seen] == [b"old", b"old"]
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "1 copies are for groups that the stream does not have (old)" in said
    assert "1 copies that retries of other groups made (h) are acknowledged unseen" in said


async def test_a_group_that_is_made_later_keeps_its_copies(broker, stream):
    """That a group was not there is not remembered: the next read asks again."""
    seen = retries(broker, 0)

    async with RustStream("test", broker) as app:
        for body in ("before", "after"):
            stream.add_fields({"_payload": body, "h:x-ruststream-retry-group": "late"})
            await eventually_async(lambda: app.health().subscriptions[0].counts["acked"] == 1)
            if body == "before":
                stream.create_group("late")
        await eventually_async(lambda: app.health().subscriptions[0].counts["foreign_copies"] == 1)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert [body for body, *_ in seen] == [b"before"]


async def test_a_claiming_group_acks_foreign_copies_too(any_server, broker, make_broker, stream):
    """The same in another process that reads by another mode."""
    seen = retries(broker, 1)
    second, others = make_broker(), []

    @second.subscriber(RedisStream.recovering("s", group="other", min_idle=5, start_id="0"))
    async def other(body: bytes):
        others.append(body)

    async with RustStream("one", broker), RustStream("two", second) as app:
        stream.add("x")
        await eventually_async(lambda: len(seen) == 2)
        await eventually_async(lambda: app.health().subscriptions[0].counts["foreign_copies"] == 1)
        await eventually_async(lambda: stream.pending_ids("other") == [])

    assert others == [b"x"]


async def test_a_republished_copy_is_not_taken_for_a_copy(broker, stream):
    """A handler that passes its headers on to another stream passes on a message, not a retry: its readers see it."""
    arrived = []

    @broker.subscriber(new())
    async def forward(body: bytes, ctx: Context):
        if ctx.delivery_count == 1:
            return retry()
        await ctx.publish(body, "next", headers=ctx.headers)
        return None

    @broker.subscriber(RedisStream("next", group="ledger"))
    async def handle(body: bytes, ctx: Context):
        arrived.append((body, ctx.delivery_count))

    async with RustStream("test", broker):
        stream.add("x", trace="t-1")
        await eventually_async(lambda: arrived)

    assert arrived == [(b"x", 1)]
    [(_, fields)] = stream.client.xrange("next")
    assert fields[b"h:trace"] == b"t-1"


@pytest.mark.parametrize("any_server", ["redis-8.10", "redis-7.0"], indirect=True)
async def test_an_entry_that_always_retries_neither_spins_nor_makes_the_stream_grow(any_server, broker, stream, figure):
    """Upstream: 3,700 copies a second, each left in the stream. Here at most 10 tries a second, and two entries."""
    seen = retries(broker, 1_000_000)

    async with RustStream("test", broker):
        stream.add("x")
        began, lengths = time.monotonic(), []
        while time.monotonic() - began < 1.2:
            lengths.append(stream.length())
            await asyncio.sleep(0.02)

    figure("one entry that always retries", f"{len(seen) / 1.2:.1f} tries/s, XLEN {max(lengths)} on {any_server.name}")
    assert 4 <= len(seen) <= 12
    assert max(lengths) <= 2
    assert stream.length() + stream.client.zcard(DELAYED) <= 2


async def test_a_refused_copy_leaves_the_entry_pending(make_server, stream_of, caplog, figure):
    """B021, C1: the server is out of memory when retry() is carried out: nothing is lost, the log says so, and the
    entry comes back by recovery once there is room.
    """
    server = make_server()
    stream, broker = stream_of(server), RedisBroker(server.url)
    for number in range(100):
        stream.add(str(number))
    seen = set()

    @broker.subscriber(new(min_idle=5), workers=10)
    async def handle(body: bytes, ctx: Context):
        if not seen:
            stream.client.config_set("maxmemory", 1)
        seen.add(body)
        return retry()

    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: len(seen) == 100 and app.health().subscriptions[0].counts["in_flight"] == 0)

    lost = 100 - len(stream.pending_ids())
    figure("retries lost to a full server", f"{lost} of 100")
    assert (lost, stream.length()) == (0, 100)
    assert any("OOM" in record.getMessage() for record in caplog.records if record.levelno == logging.ERROR)

    stream.client.config_set("maxmemory", 0)
    again, second = set(), RedisBroker(server.url)

    @second.subscriber(RedisStream.claiming("s", group="g", min_idle=0.05))
    async def recover(body: bytes):
        again.add(body)

    async with RustStream("recovery", second):
        await eventually_async(lambda: again == seen)


async def test_a_server_that_forgot_the_scripts_gets_them_again(any_server, broker, stream):
    """SCRIPT FLUSH between two retries, as after a failover: the second one is carried out all the same."""
    seen = retries(broker, 2)

    async with RustStream("test", broker):
        stream.add("x")
        await eventually_async(lambda: len(seen) == 2)
        stream.client.script_flush()
        await eventually_async(lambda: len(seen) == 3)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert [count for _, count, _ in seen] == [1, 2, 3]


async def test_an_entry_too_large_to_be_copied_stays_pending_and_says_so(any_server, broker, stream, caplog):
    """An entry of 5,000 fields can't go through a script; the log names it, the next entry is handled."""
    entry = stream.add_fields({f"field-{number}": "x" for number in range(5000)})
    seen = []

    @broker.subscriber(new())
    async def handle(ctx: Context):
        seen.append(len(ctx.fields))
        return retry() if len(ctx.fields) > 1 else None

    async with RustStream("test", broker):
        stream.add("next")
        await eventually_async(lambda: seen == [5000, 1])
        await eventually_async(lambda: stream.pending_ids() == [entry])

    assert any(entry in record.getMessage() for record in caplog.records if record.levelno == logging.ERROR)


@pytest.mark.parametrize("second", [retry(), leave()])
async def test_a_retry_after_the_entry_was_taken_copies_nothing(any_server, broker, stream, second):
    """R6: owner and count are checked in the same step: an entry that another consumer took is not copied."""
    started, taken = asyncio.Event(), asyncio.Event()

    @broker.subscriber(new())
    async def handle(body: bytes):
        started.set()
        await taken.wait()
        return second

    app = RustStream("test", broker)
    async with app:
        entry = stream.add("x")
        await started.wait()
        stream.claim("thief", entry)
        taken.set()
        await eventually_async(lambda: app.health().subscriptions[0].counts["in_flight"] == 0)

    assert stream.length() == 1
    assert [(row["consumer"], row["times_delivered"]) for row in stream.pending()] == [("thief", 2)]
