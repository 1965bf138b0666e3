"""What recovered entries say of themselves: how often they were delivered, how long they waited."""

import asyncio

import pytest

from eventually import eventually_async
from integration.conftest import RECOVERERS, recoverer
from ruststream import Context, RustStream, retry
from ruststream.redis import RedisStream


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
