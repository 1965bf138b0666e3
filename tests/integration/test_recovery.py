"""What a consumer left pending: who takes it over, when, how often it counts, and what new entries feel of it."""

import asyncio
import time

import pytest

from eventually import eventually_async
from ruststream import Context, RustStream, retry
from ruststream.redis import RedisStream, StreamStart

RECOVERERS = ["recovering", "reclaim"]
HAS_CLAIM = {"redis-8.10"}


def recoverer(mode: str, min_idle: float, **options: object) -> RedisStream:
    return getattr(RedisStream, mode)("s", group="g", min_idle=min_idle, start_id=StreamStart.BEGINNING, **options)


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
async def test_counts_are_exact_among_seventy_foreign_entries(any_server, broker, stream, figure, mode):
    """B065: an entry delivered six times before comes with count 7, among 70 others with counts of their own.

    Upstream's reclaim says 0 here.
    """
    stream.create_group()
    others = [stream.add("other") for _ in range(35)]
    target = stream.add("target")
    others += [stream.add("other") for _ in range(35)]
    stream.deliver("dead")
    for _ in range(5):
        stream.claim("dead", target)
    stream.claim("alive", *others[::7])
    expected = dict.fromkeys(others, 2) | dict.fromkeys(others[::7], 3) | {target: 7}
    counts = {}

    @broker.subscriber(recoverer(mode, 0.1))
    async def handle(ctx: Context):
        counts[str(ctx.entry_id)] = ctx.delivery_count

    async with RustStream("test", broker):
        await eventually_async(lambda: len(counts) == 71)

    figure("count of an entry delivered six times before", f"{counts[target]}, {mode} on {any_server.name}")
    assert counts == expected


@pytest.mark.parametrize("mode", ["new", "recovering"])
async def test_a_cut_connection_is_no_delivery(any_server, broker, stream, mode):
    """Held entries, running and queued, are found again by their reader after a cut: the server's count stays at 1."""
    started, release = asyncio.Event(), asyncio.Event()

    @broker.subscriber(recoverer(mode, 30) if mode != "new" else RedisStream("s", group="g", start_id="0"))
    async def handle(body: bytes):
        started.set()
        await release.wait()

    app = RustStream("test", broker)
    async with app:
        stream.add_numbered(1, 20)
        await started.wait()
        for cut in range(1, 3):
            name = app.health().subscriptions[0].consumer
            reader = next(row for row in stream.client.client_list() if row["name"] == name)
            stream.client.client_kill_filter(_id=reader["id"])
            await eventually_async(lambda cut=cut: app.health().subscriptions[0].counts["reconnects"] == cut)
            await eventually_async(lambda: any(row["name"] == name for row in stream.client.client_list()))  # noqa: B023
        stream.add("seen by the reader that came back")
        await eventually_async(lambda: len(stream.pending_ids()) == 21)
        counts = {row["times_delivered"] for row in stream.pending()}
        release.set()
        await eventually_async(lambda: stream.pending_ids() == [])

    assert counts == {1}


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


@pytest.mark.parametrize("mode", ["new", "recovering", "reclaim"])
async def test_the_count_agrees_with_the_server_in_every_mode(any_server, broker, stream, mode):
    """The same entry says the same in every mode: this delivery included, as XPENDING has it while the handler runs."""
    stream.create_group()
    entry = stream.add("x")
    if mode == "reclaim":
        stream.deliver("dead")
    seen = []

    @broker.subscriber(recoverer(mode, 0.15) if mode != "new" else RedisStream("s", group="g"))
    async def handle(ctx: Context):
        seen.append((ctx.delivery_count, stream.pending()[0]["times_delivered"]))
        return retry() if mode == "recovering" and len(seen) < 4 else None

    async with RustStream("test", broker):
        await eventually_async(lambda: stream.pending_ids() == [] and seen)

    assert seen == {"new": [(1, 1)], "recovering": [(n, n) for n in (1, 2, 3, 4)], "reclaim": [(2, 2)]}[mode]
    assert stream.entries()[0][0] == entry


@pytest.mark.parametrize("mode", RECOVERERS)
async def test_idle_is_how_long_the_entry_waited(any_server, broker, stream, mode):
    """ctx.idle is measured before the take-over, not after it (upstream's reclaim says about 1 ms)."""
    stream.create_group()
    stream.add("x")
    stream.deliver("dead")
    stream.client.xclaim("s", "g", "dead", 0, stream.pending_ids(), idle=40_000, justid=True)
    seen = []

    @broker.subscriber(recoverer(mode, 30))
    async def handle(ctx: Context):
        seen.append(ctx.idle)

    async with RustStream("test", broker):
        await eventually_async(lambda: seen)

    assert 40 <= seen[0] < 42


@pytest.mark.parametrize("mode", RECOVERERS)
async def test_what_was_handed_back_comes_at_once_without_a_count_or_idle_time(any_server, make_broker, stream, mode):
    """Entries that a stopping app never started: the next one has them at once, count 1 for new ones, idle 0."""
    stream.create_group()
    stream.add_numbered(1, 20)
    started, release = asyncio.Event(), asyncio.Event()
    first, second = make_broker(), make_broker()

    @first.subscriber(recoverer("recovering", 30))
    async def hold(number: int):
        started.set()
        await release.wait()

    seen = []

    @second.subscriber(recoverer(mode, 30))
    async def handle(number: int, ctx: Context):
        seen.append((number, ctx.delivery_count, ctx.idle))

    async with RustStream("first", first):
        await started.wait()
        await eventually_async(lambda: len(stream.pending_ids()) == 20)
        asyncio.get_running_loop().call_later(0.05, release.set)
    async with RustStream("second", second):
        await eventually_async(lambda: len(seen) == 19)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert sorted(seen) == [(number, 1, 0.0) for number in range(2, 21)]


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


async def test_what_an_entry_was_taken_over_under_counts_for_that_delivery_only(any_server, broker, stream):
    """Taken over beside its handler, lost to another, delivered again: that delivery is settled, and runs once."""
    counts, go = [], asyncio.Event()

    async def handle(ctx: Context):
        counts.append(ctx.delivery_count)
        if len(counts) == 1:
            await go.wait()

    broker.add_subscriber(RedisStream.new("s", group="g", start_id="0", min_idle=1), handle, name="fresh")
    broker.add_subscriber(RedisStream.reclaim("s", group="g", min_idle=1), handle, name="again")
    app = RustStream("test", broker)
    async with app:
        entry = stream.add("x")
        await eventually_async(lambda: counts == [1])
        [first] = stream.pending()

        def taken_over():
            """As if a renewal came too late."""
            [row] = stream.pending()
            if row["consumer"] != first["consumer"]:
                return True
            stream.client.xclaim("s", "g", first["consumer"], 0, [entry], idle=100_000, justid=True)
            return False

        await eventually_async(taken_over, timeout=20)
        stream.claim("other", entry)
        await eventually_async(lambda: sum(it.counts["lost"] for it in app.health().subscriptions), timeout=20)
        go.set()
        await eventually_async(lambda: stream.pending_ids() == [], timeout=20)

    assert len(counts) == 2
