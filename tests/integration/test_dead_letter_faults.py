"""Dead letters that are refused, entries that are gone or another's by now: nothing is lost, nothing buried twice."""

import asyncio

import pytest

from eventually import eventually_async
from integration.letters import counts, errors, marks, rest, source
from ruststream import Context, RustStream, dead_letter


def held(broker):
    """Subscribe a handler that gives its entry up when it is let go. Returns what lets it go, and its start."""
    go, started = asyncio.Event(), asyncio.Event()

    @broker.subscriber(source(), dead_letter="s.dlq")
    async def handle(body: bytes):
        started.set()
        await go.wait()
        return dead_letter()

    return go, started


REFUSALS = {
    "WRONGTYPE": (lambda client: client.set("s.dlq", "text"), lambda client: client.delete("s.dlq")),
    "OOM": (lambda client: client.config_set("maxmemory", "1"), lambda client: client.config_set("maxmemory", "0")),
}


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_destination_that_refuses_loses_nothing(any_server, broker, stream, letters, caplog, figure, refusal):
    """B021, B048: 1,000 refused, 0 lost: pending, counted, said in few lines, tried again at redelivery."""
    forbid, allow = REFUSALS[refusal]
    stream.create_group()
    stream.add_numbered(1, 1000)

    forbidden = asyncio.Event()

    @broker.subscriber(source(min_idle=0.3), dead_letter="s.dlq", workers=4)
    async def handle(body: bytes):
        await forbidden.wait()
        return dead_letter()

    app = RustStream("test", broker)
    try:
        async with app:
            await eventually_async(lambda: counts(app)["running"] > 0)
            forbid(stream.client)
            forbidden.set()
            await eventually_async(lambda: counts(app)["refused"] >= 1000, timeout=20)
            assert len(stream.pending_ids()) == 1000, "nothing was taken off the list"
            assert counts(app)["dead_lettered"] == 0
            allow(stream.client)
            await eventually_async(lambda: counts(app)["dead_lettered"] == 1000, timeout=20)
            refused = counts(app)["refused"]
    finally:
        stream.client.config_set("maxmemory", "0")

    bodies = [fields[b"_payload"] for _, fields in letters.entries()]
    assert sorted(map(int, bodies)) == list(range(1, 1001))
    assert stream.pending_ids() == []
    lines = [text for text in errors(caplog) if refusal in text or "holds no stream" in text]
    assert any("stay pending" in text and "s.dlq" in text for text in lines)
    figure(f"{refusal}, letters refused, lines", f"{refused}, {len(lines)} on {any_server.name}")
    assert len(lines) < 30


async def test_a_user_who_may_not_write_there_loses_nothing(make_server, stream_of, caplog):
    """NOPERM on the key of the dead letters: pending, and moved once the right is there."""
    from ruststream.redis import RedisBroker

    server = make_server("redis-7.0")
    stream, letters = stream_of(server), stream_of(server, "s.dlq")

    def rights(keys: str) -> None:
        known = ("resetkeys", "~ruststream:probe", "~{s}:g:*", keys)
        stream.client.execute_command("ACL", "SETUSER", "clerk", "on", ">sesame", *known, "+@all")

    rights("~s")
    broker = RedisBroker(f"redis://clerk:sesame@{server.host}:{server.port}")

    @broker.subscriber(source(min_idle=0.3), dead_letter="s.dlq")
    async def handle(body: bytes):
        return dead_letter()

    app = RustStream("test", broker)
    async with app:
        entry = stream.add("x")
        await eventually_async(lambda: counts(app)["refused"] > 0)
        assert stream.pending_ids() == [entry]
        assert letters.length() == 0
        rights("~s*")
        await eventually_async(lambda: counts(app)["dead_lettered"] == 1)

    assert letters.length() == 1
    assert "NOPERM" in errors(caplog)[0]


@pytest.mark.parametrize("mode", ["reclaim", "recovering", "new"])
async def test_entries_whose_body_is_gone_leave_a_letter(any_server, broker, stream, letters, mode):
    """B023, B024: deleted while pending, under a dead consumer or our own fixed name: no payload, off the list."""
    stream.create_group()
    kept = [stream.add(str(number)) for number in range(500)]
    stream.deliver("me")
    deleted, kept = kept[::2], kept[1::2]
    stream.client.xdel("s", *deleted)
    handled = []

    @broker.subscriber(source(mode, min_idle=0.2, consumer="me"), dead_letter="s.dlq", max_in_flight=10_000)
    async def handle(body: bytes, ctx: Context):
        handled.append(str(ctx.entry_id))

    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: counts(app)["dead_lettered"] == len(deleted), timeout=20)
        await eventually_async(lambda: stream.pending_ids() == [] and len(handled) == len(kept), timeout=20)
        assert counts(app)["deleted"] == len(deleted)

    assert handled == kept
    found = [fields for _, fields in letters.entries()]
    assert {marks(fields)["entry-id"] for fields in found} == set(deleted)
    assert {marks(fields)["reason"] for fields in found} == {"deleted"}
    assert {marks(fields)["deliveries"] for fields in found} == {"1"}
    assert all(rest(fields) == {} for fields in found)
    assert {marks(fields)["consumer"] for fields in found} == {"me"}


@pytest.mark.parametrize("mode", ["reclaim", "recovering"])
async def test_a_body_that_is_gone_is_not_forgotten_where_its_letter_is_refused(
    any_server, broker, stream, letters, caplog, mode
):
    """It stays pending and counted, others are handled meanwhile, and the letter is written once that is possible."""
    stream.create_group()
    gone, there = stream.add("gone"), stream.add("there")
    stream.deliver("dead")
    stream.client.xdel("s", gone)
    stream.client.set("s.dlq", "text")
    handled = []

    @broker.subscriber(source(mode, min_idle=0.2), dead_letter="s.dlq")
    async def handle(body: bytes, ctx: Context):
        handled.append(str(ctx.entry_id))

    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: handled == [there] and counts(app)["refused"] > 0)
        await eventually_async(lambda: stream.pending_ids() == [gone])
        stream.client.delete("s.dlq")
        await eventually_async(lambda: stream.pending_ids() == [], timeout=10)

    [(_, letter)] = letters.entries()
    assert marks(letter)["entry-id"] == gone
    assert any("WRONGTYPE" in text and "stay pending" in text for text in errors(caplog))


async def test_nobody_is_buried_who_belongs_to_someone_else_by_now(any_server, broker, stream, letters, caplog):
    """Another consumer claimed it while the handler ran: no letter, nothing removed."""
    go = asyncio.Event()
    started = asyncio.Event()

    @broker.subscriber(source(), dead_letter="s.dlq")
    async def handle(body: bytes):
        started.set()
        await go.wait()
        return dead_letter()

    app = RustStream("test", broker)
    async with app:
        entry = stream.add("x")
        await asyncio.wait_for(started.wait(), 5)
        stream.claim("another", entry)
        go.set()
        await eventually_async(lambda: counts(app)["lost"] == 1)
        await eventually_async(lambda: counts(app)["in_flight"] == 0)
        assert counts(app)["dead_lettered"] == 0

    assert letters.length() == 0
    [row] = stream.pending()
    assert (row["consumer"], row["times_delivered"]) == ("another", 2)


async def test_an_entry_that_was_acked_elsewhere_gets_no_letter(any_server, broker, stream, letters):
    """It is off the list already: it was somebody's to ack, and nothing is given up any more."""
    go, started = held(broker)
    app = RustStream("test", broker)
    async with app:
        entry = stream.add("x")
        await asyncio.wait_for(started.wait(), 5)
        stream.client.xack("s", "g", entry)
        go.set()
        await eventually_async(lambda: counts(app)["in_flight"] == 0)
        assert counts(app)["dead_lettered"] == 0

    assert letters.length() == 0


async def test_a_body_that_was_trimmed_while_its_handler_ran_is_in_the_letter(any_server, broker, stream, letters):
    """The letter is written from what was read: the last copy of the message is not lost with the stream's."""
    go, started = held(broker)
    app = RustStream("test", broker)
    async with app:
        entry = stream.add("x")
        await asyncio.wait_for(started.wait(), 5)
        stream.client.xdel("s", entry)
        go.set()
        await eventually_async(lambda: counts(app)["dead_lettered"] == 1)

    [(_, letter)] = letters.entries()
    assert (rest(letter), marks(letter)["reason"]) == ({b"_payload": b"x"}, "rejected")
    assert stream.pending_ids() == []
