"""What a consumer left pending: who takes it over, when, and what new entries feel of it."""

import asyncio
import time

import pytest

from eventually import eventually_async
from integration.conftest import RECOVERERS, recoverer
from ruststream import Context, RustStream
from ruststream.redis import RedisStream

HAS_CLAIM = {"redis-8.10"}


@pytest.mark.parametrize("mode", RECOVERERS)
async def test_what_a_dead_consumer_left_is_handled(any_server, broker, stream, mode):
    """B009, B051: 1,000 entries of a consumer that is gone, more than one page of the list: each once, none left."""
    stream.create_group()
    stream.add_numbered(1, 1000)
    stream.deliver("dead")
    seen = []

    @broker.subscriber(recoverer(mode, 0.1))
    async def handle(number: int):
        seen.append(number)

    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) >= 1000)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert sorted(seen) == list(range(1, 1001))


@pytest.mark.parametrize("mode", RECOVERERS)
async def test_an_entry_that_ages_while_the_reader_waits_comes_at_min_idle(any_server, broker, stream, figure, mode):
    """An aged entry comes when its time is up, not at the end of the block (upstream: 10 ms after min_idle).

    A server with CLAIM wakes the blocked read itself; elsewhere a scan comes round every tenth of min_idle.
    """
    stream.create_group()
    stream.add("x")
    stream.deliver("dead")
    took = []

    @broker.subscriber(recoverer(mode, 0.5, block=30))
    async def handle(ctx: Context):
        took.append((time.monotonic() - began, ctx.idle))

    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: app.health().healthy)
        began = time.monotonic()
        stream.claim("dead", *stream.pending_ids())
        await eventually_async(lambda: took)

    [(after, idle)] = took
    figure("aged entry", f"{(after - 0.5) * 1000:.1f} ms after min_idle, {mode} on {any_server.name}")
    slack = 0.03 if mode == "recovering" and any_server.name in HAS_CLAIM else 0.5
    assert 0.49 <= after <= 0.5 + slack
    assert abs(after - idle) < 0.03


@pytest.mark.parametrize("mode", RECOVERERS)
async def test_waiting_for_idle_entries_does_not_hammer_the_server(any_server, broker, stream, figure, mode):
    """B052: 500 pending entries that are not idle yet cost a few commands a second, not thousands."""
    stream.create_group()
    stream.add_numbered(1, 500)
    stream.deliver("alive")

    @broker.subscriber(recoverer(mode, 30))
    async def handle(body: bytes):
        pass

    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: app.health().healthy)
        before = calls(stream)
        began = time.monotonic()
        await asyncio.sleep(0.6)
        rate = (calls(stream) - before) / (time.monotonic() - began)

    figure("commands per second while waiting", f"{rate:.0f}, {mode} on {any_server.name}")
    assert rate < 30


def calls(stream) -> int:
    """Commands the server carried out, those inside scripts included."""
    return sum(row["calls"] for row in stream.client.info("commandstats").values())


@pytest.mark.parametrize("mode", RECOVERERS)
async def test_large_entries_are_recovered_like_small_ones(any_server, broker, stream, mode):
    """B111, B115: 5,000 fields, a body of 8 MB and binary fields, left by a dead consumer: all of it arrives."""
    stream.create_group()
    bodies = [b"x" * 8_000_000, b"\xff\x00\r\n", b""]
    for body in bodies:
        stream.add(body)
    stream.add_fields({f"field-{number}": "x" for number in range(5000)})
    stream.deliver("dead")
    seen = []

    @broker.subscriber(recoverer(mode, 0.1))
    async def handle(ctx: Context):
        seen.append((ctx.payload, len(ctx.fields)))

    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 4)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert sorted(seen) == sorted([*((body, 1) for body in bodies), (b"", 5000)])


@pytest.mark.parametrize("mode", RECOVERERS)
async def test_pending_entries_whose_body_was_deleted_leave_the_list(any_server, broker, stream, caplog, mode):
    """B023, B024: deleted while pending: acknowledged and said in the log, and live ones behind them are handled."""
    stream.create_group()
    gone = [stream.add("gone") for _ in range(300)]
    stream.add("alive")
    stream.deliver("dead")
    stream.client.xdel("s", *gone)
    seen = []

    @broker.subscriber(recoverer(mode, 0.2))
    async def handle(body: bytes):
        seen.append(body)

    async with RustStream("test", broker):
        await eventually_async(lambda: seen)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert seen == [b"alive"]
    assert any("deleted" in record.getMessage() for record in caplog.records)


async def test_an_entry_deleted_while_its_handler_runs_is_settled(any_server, broker, stream):
    """XDEL under a running handler: the ack goes through, nothing is left, the next entry comes."""
    started, release, seen = asyncio.Event(), asyncio.Event(), []

    @broker.subscriber(recoverer("recovering", 30))
    async def handle(body: bytes):
        seen.append(body)
        started.set()
        await release.wait()

    async with RustStream("test", broker):
        stream.client.xdel("s", stream.add("deleted"))
        entry = stream.add("runs")
        await started.wait()
        stream.client.xdel("s", entry)
        release.set()
        stream.add("next")
        await eventually_async(lambda: seen[-1] == b"next")
        await eventually_async(lambda: stream.pending_ids() == [])


@pytest.mark.parametrize("mode", ["recovering", "new and reclaim"])
async def test_one_scan_per_group_and_process(any_server, broker, stream, mode):
    """Four subscriptions of one group scan its pending list as often as one does: 400 entries, each handled once."""
    stream.create_group()
    stream.add_numbered(1, 400)
    stream.deliver("dead")
    seen = []
    for number in range(4):

        async def handle(value: int):
            seen.append(value)
            await asyncio.sleep(0.001)

        kind = "recovering" if mode == "recovering" else "reclaim"
        broker.add_subscriber(recoverer(kind, 0.2, count=20), handle, name=f"reader-{number}")
    if mode == "new and reclaim":

        async def fresh(value: int):
            seen.append(value)

        broker.add_subscriber(RedisStream("s", group="g"), fresh)

    async with RustStream("test", broker):
        stream.add_numbered(401, 500)
        await eventually_async(lambda: len(seen) >= 500, timeout=10)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert sorted(seen) == list(range(1, 501))


async def test_two_processes_never_take_the_same_entry(any_server, make_broker, stream):
    """B054: two apps recover one group at the same moment: every entry is handled once."""
    stream.create_group()
    stream.add_numbered(1, 1000)
    stream.deliver("dead")
    seen, brokers = [], [make_broker(), make_broker()]
    for broker in brokers:

        @broker.subscriber(recoverer("recovering", 0.3, count=50))
        async def handle(number: int):
            seen.append(number)
            await asyncio.sleep(0)

    async with RustStream("a", brokers[0]), RustStream("b", brokers[1]):
        await eventually_async(lambda: stream.pending_ids() == [] and len(seen) >= 1000)

    assert sorted(seen) == list(range(1, 1001))
