"""Streams that do not grow for ever, and groups that lose nothing by it (B020, B022, B118)."""

import asyncio
import contextlib

import pytest

from eventually import eventually_async
from ruststream import RustStream, drop, retry
from ruststream.errors import ServerTooOldError
from ruststream.redis import RedisBroker, RedisStream, StreamStart, Trim

DELETING = {"redis-8.10", "redis-8.2"}


def source(trim, **options):
    """New entries, and what lies pending, from the stream's beginning."""
    return RedisStream.recovering("s", group="g", min_idle=30, start_id=StreamStart.BEGINNING, trim=trim, **options)


@contextlib.asynccontextmanager
async def running(broker, trim, handle=None, **options):
    """An app that handles everything."""

    async def ignore(body: bytes): ...

    broker.add_subscriber(source(trim, **options), handle or ignore, name="handle")
    app = RustStream("test", broker)
    async with app:
        yield app


def counts(app):
    return app.health().subscriptions[0].counts


async def test_a_length_is_kept(any_server, broker, stream):
    """B118: exactly so many stay, also of a stream that is shorter than what the server trims at once."""
    stream.add_numbered(1, 3_000)
    async with running(broker, Trim.max_length(10)) as app:
        await eventually_async(lambda: stream.length() == 10, timeout=30)
        for number in range(60):
            stream.add(str(number))
        await eventually_async(lambda: stream.length() == 10, timeout=30)
        assert counts(app)["trimmed"] == 3_050
        assert counts(app)["acked"] == 3_060
        assert counts(app)["held_back"] == 0
    assert [fields[b"_payload"] for _, fields in stream.entries()] == [str(n).encode() for n in range(50, 60)]


async def test_what_another_group_needs_is_kept_and_said(any_server, broker, stream, caplog):
    """B022: another group is behind; nothing of it goes, the log names it, and once it has caught up all goes."""
    stream.create_group("audit")
    stream.add_numbered(1, 500)
    async with running(broker, Trim.max_length(50)) as app:
        stream.deliver("slow", 20, group="audit")
        await eventually_async(lambda: counts(app)["held_back"] == 450, timeout=30)
        await eventually_async(lambda: "group audit (20 pending, 480 not delivered yet)" in caplog.text, timeout=30)
        assert stream.length() == 500
        mine = stream.deliver("slow", group="audit")
        stream.client.xack("s", "audit", *mine)
        await eventually_async(lambda: counts(app)["held_back"] == 450)
        assert stream.length() == 500, "its first 20 are pending"
        stream.client.xack("s", "audit", *stream.pending_ids("audit"))
        await eventually_async(lambda: stream.length() == 50, timeout=30)
        await eventually_async(lambda: counts(app)["held_back"] == 0, timeout=30)
    assert len([record for record in caplog.records if "needed by" in record.getMessage()]) == 1


async def test_what_is_pending_here_is_kept(any_server, broker, stream):
    """An entry that is being handled, and those behind it, stay until it is settled."""
    release, begun = asyncio.Event(), asyncio.Event()

    async def handle(body: bytes):
        if body == b"100":
            begun.set()
            await release.wait()

    stream.add_numbered(1, 300)
    async with running(broker, Trim.max_length(1), handle):
        await begun.wait()
        await eventually_async(lambda: stream.length() == 201, timeout=30)
        assert stream.entries()[0][1][b"_payload"] == b"100"
        release.set()
        await eventually_async(lambda: stream.length() == 1, timeout=30)


async def test_what_is_too_old_goes(any_server, broker, stream):
    """By the time in the ids; what was not delivered when it got old is delivered first."""
    for number in range(150):
        stream.client.xadd("s", {"_payload": str(number)}, id=f"{number + 1}-0")
    handled = []

    async def handle(body: bytes):
        handled.append(body)

    async with running(broker, Trim.max_age(3600), handle) as app:
        fresh = [stream.add("fresh"), stream.add("fresh")]
        await eventually_async(lambda: [entry for entry, _ in stream.entries()] == fresh, timeout=30)
        await eventually_async(lambda: counts(app)["trimmed"] == 150)
        await eventually_async(lambda: len(handled) == 152)


async def test_a_group_that_is_made_while_it_is_trimmed_gets_all_that_is_there(any_server, broker, stream):
    """Between two looks or before them: from the moment it is there, nothing it needs goes."""
    stream.add_numbered(1, 2_000)
    async with running(broker, Trim.max_length(1)):
        await eventually_async(lambda: stream.pending_ids() == [])
        last = stream.entries()[-1][0]
        stream.create_group("late")
        needed = [entry for entry, _ in stream.entries()]
        stream.add_numbered(1, 100)
        await eventually_async(lambda: stream.group()["last-delivered-id"].decode() != last)
        read = stream.deliver("c", group="late")
        assert read[: len(needed)] == needed
        assert len(read) == len(needed) + 100


async def test_entries_that_are_added_while_it_trims_are_all_handled(any_server, broker, stream):
    """The bound is far below what is under way: everything is handled once nevertheless."""
    handled = []

    async def handle(body: bytes):
        handled.append(int(body))

    async with running(broker, Trim.max_length(1), handle, count=50):
        for first in range(1, 5_001, 250):
            stream.add_numbered(first, first + 249)
            await asyncio.sleep(0.05)
        await eventually_async(lambda: len(handled) >= 5_000, timeout=30)
        await eventually_async(lambda: stream.length() == 1, timeout=30)
    assert sorted(handled) == list(range(1, 5_001))


async def test_acknowledged_entries_are_deleted_where_the_server_can(any_server, make_broker, stream):
    """B020: a stream holds what is not done. Elsewhere the start says what it needs, and names both versions."""
    stream.add_numbered(1, 500)
    if any_server.name not in DELETING:
        with pytest.raises(ServerTooOldError, match=r"Trim\.acked\(\) of handle.*Redis 8\.2\.0.*is (redis 7|valk)"):
            async with running(make_broker(), Trim.acked()):
                pass
        assert stream.length() == 500
        return
    async with running(make_broker(), Trim.acked()) as app:
        await eventually_async(lambda: stream.length() == 0)
        assert counts(app)["acked"] == 500
        assert stream.pending_ids() == []


@pytest.mark.parametrize("any_server", sorted(DELETING), indirect=True)
async def test_an_acknowledged_entry_stays_for_another_group(any_server, broker, stream):
    """Deleted once the last group has acknowledged it, though that one only sends XACK."""
    stream.create_group("audit")
    stream.add_numbered(1, 300)
    async with running(broker, Trim.acked()) as app:
        await eventually_async(lambda: counts(app)["acked"] == 300)
        read = stream.deliver("theirs", 100, group="audit")
        assert stream.length() == 300
        stream.client.xack("s", "audit", *read)
        await eventually_async(lambda: stream.length() == 200, timeout=30)
        read = stream.deliver("theirs", group="audit")
        assert len(read) == 200


@pytest.mark.parametrize("any_server", sorted(DELETING), indirect=True)
async def test_every_way_to_settle_deletes(any_server, broker, stream):
    """Dropped, retried with and without a delay: nothing but what is still to be done stays."""
    seen = []

    async def handle(body: bytes):
        seen.append(body)
        if body == b"drop":
            return drop()
        if body == b"again" and seen.count(b"again") < 3:
            return retry()
        return retry(after=0.1) if body == b"later" and seen.count(b"later") < 2 else None

    @broker.subscriber(RedisStream("s", group="g", start_id="0", trim=Trim.acked()))
    async def consume(body: bytes):
        return await handle(body)

    for body in ("drop", "again", "later", "ack"):
        stream.add(body)
    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 7)
        await eventually_async(lambda: stream.length() == 0)
    assert stream.pending_ids() == []


@pytest.mark.parametrize("any_server", sorted(DELETING), indirect=True)
async def test_an_outcome_that_comes_too_late_deletes_nothing(any_server, broker, stream):
    """Somebody else owns the entry by now: it stays, body and all."""
    release, begun = asyncio.Event(), asyncio.Event()

    @broker.subscriber(RedisStream("s", group="g", start_id="0", trim=Trim.acked()))
    async def handle(body: bytes):
        begun.set()
        await release.wait()
        return retry()

    entry = stream.add("slow")
    app = RustStream("test", broker)
    async with app:
        await begun.wait()
        stream.claim("thief", entry)
        release.set()
        await eventually_async(lambda: counts(app)["lost"] == 1)
    assert [(row["message_id"], row["consumer"]) for row in stream.pending()] == [(entry, "thief")]
    assert [entry for entry, _ in stream.entries()] == [entry]


async def test_the_model_keeps_the_same_bounds():
    """`memory://`: a length, and what is acknowledged."""
    broker = RedisBroker("memory://bounded")
    handled = []

    def add(stream, trim):
        async def handle(body: bytes):
            handled.append(body)

        broker.add_subscriber(
            RedisStream(stream, group="g", start_id=StreamStart.BEGINNING, trim=trim), handle, name=stream
        )

    add("long", Trim.max_length(5))
    add("done", Trim.acked())
    app = RustStream("test", broker)
    async with app:
        for stream in ("long", "done"):
            await broker.publish_many([b"x"] * 300, stream)
        await eventually_async(lambda: len(handled) == 600)
        await eventually_async(lambda: app.health().subscriptions[0].counts["trimmed"] == 295, timeout=30)
