"""retry(after=) and backoff where pending entries are claimed: same id, no copy, back when due."""

import asyncio
import itertools
import time
from collections import Counter

import pytest

from eventually import eventually_async
from integration.parking import DELAYED, SLACK, clock, parked, recovering
from ruststream import Backoff, Context, RustStream, leave, retry
from ruststream.redis import RedisStream


@pytest.mark.parametrize("after", [0.2, 3])
async def test_it_comes_back_when_due_shorter_and_longer_than_min_idle(any_server, broker, stream, figure, after):
    """Upstream: both after min_idle. Here: the same id, in time, count + 1, idle as long as it lay, nothing copied."""
    seen = []

    @broker.subscriber(recovering(min_idle=1))
    async def handle(body: bytes, ctx: Context):
        seen.append((clock(stream), str(ctx.entry_id), body, ctx.delivery_count, ctx.idle))
        return retry(after=after) if ctx.delivery_count == 1 else None

    async with RustStream("test", broker):
        entry = stream.add(b"\xff\x00")
        due = (await eventually_async(lambda: parked(stream)))[entry][1]
        [row] = stream.pending()
        assert (row["message_id"], row["times_delivered"]) == (entry, 1)
        await eventually_async(lambda: len(seen) == 2)
        await eventually_async(lambda: stream.pending_ids() == [])

    [(asked, *first, _), (back, *second, idle)] = seen
    late = back - due
    figure(f"retry(after={after}) at min_idle 1 s", f"{(late + after) * 1000:.0f} ms on {any_server.name}")
    assert 0 <= due - asked - after < 5 * SLACK
    assert 0 <= late < 5 * SLACK
    assert [first, second] == [[entry, b"\xff\x00", 1], [entry, b"\xff\x00", 2]]
    assert abs(idle - after) < 5 * SLACK
    assert stream.length() == 1
    assert not stream.client.exists(DELAYED)


async def test_a_delay_does_not_wait_for_the_blocked_read(any_server, broker, stream, figure):
    """500 ms at block 5 s. Upstream: 5.0 s."""
    seen = []

    @broker.subscriber(recovering(min_idle=30, block=5))
    async def handle(ctx: Context):
        seen.append(clock(stream))
        return retry(after=0.5) if ctx.delivery_count == 1 else None

    async with RustStream("test", broker):
        stream.add("x")
        await eventually_async(lambda: len(seen) == 2)

    took = seen[1] - seen[0]
    figure("delay of 500 ms at block 5 s, in place", f"{took * 1000:.0f} ms on {any_server.name}")
    assert 0.5 <= took < 0.5 + 5 * SLACK


async def test_a_delay_does_not_wait_for_queued_jobs(any_server, broker, stream, figure):
    """500 ms behind 60 jobs of 100 ms with a free worker. Upstream: 6.1 s."""
    seen = []

    @broker.subscriber(recovering(min_idle=30), workers=2, by_key=True)
    async def handle(body: bytes, ctx: Context):
        if body == b"job":
            await asyncio.sleep(0.1)
            return None
        seen.append(clock(stream))
        return retry(after=0.5) if ctx.delivery_count == 1 else None

    async with RustStream("test", broker):
        for _ in range(60):
            stream.add("job", redis_partition_key="busy")
        stream.add("delayed", redis_partition_key="other")
        await eventually_async(lambda: len(seen) == 2)

    took = seen[1] - seen[0]
    figure("delay of 500 ms behind 60 jobs, in place", f"{took * 1000:.0f} ms on {any_server.name}")
    assert 0.5 <= took < 0.5 + 5 * SLACK


async def test_backoff_grows_with_the_delivery_count(any_server, broker, stream, figure):
    """`retry()` with a backoff is parked for 0.1, 0.2, 0.4 s, whatever min_idle is."""
    seen = []

    @broker.subscriber(recovering(min_idle=30), backoff=Backoff(0.1, 5, factor=2, jitter=0))
    async def handle(ctx: Context):
        seen.append((clock(stream), ctx.delivery_count))
        return retry() if ctx.delivery_count < 4 else None

    async with RustStream("test", broker):
        stream.add("x")
        await eventually_async(lambda: len(seen) == 4)

    waits = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(seen)]
    figure("backoff 0.1, factor 2", f"{[f'{wait * 1000:.0f}' for wait in waits]} ms on {any_server.name}")
    assert [count for _, count in seen] == [1, 2, 3, 4]
    assert all(wait >= asked for wait, asked in zip(waits, (0.1, 0.2, 0.4), strict=True))
    assert all(wait < asked + 5 * SLACK for wait, asked in zip(waits, (0.1, 0.2, 0.4), strict=True))


async def test_parked_entries_hold_no_credit_and_are_not_renewed(any_server, broker, stream):
    """20 parked at `max_in_flight=4`: the reader goes on; their idle time grows."""
    seen = Counter()

    @broker.subscriber(recovering(min_idle=0.6, count=2), max_in_flight=4)
    async def handle(number: int, ctx: Context):
        seen[number] += 1
        return retry(after=60) if number <= 20 else None

    app = RustStream("test", broker)
    async with app:
        stream.add_numbered(1, 21)
        await eventually_async(lambda: seen[21] == 1)
        await eventually_async(lambda: len(parked(stream)) == 20)
        await eventually_async(lambda: app.health().subscriptions[0].counts["in_flight"] == 0)
        await eventually_async(lambda: max(row["time_since_delivered"] for row in stream.pending()) > 400)

    assert set(seen.values()) == {1}


async def test_a_stop_leaves_parked_entries_as_they_are(any_server, make_broker, stream, figure):
    """Nothing is released, the due time stays, and the next app hands it over in time."""
    first, second, seen = make_broker(), make_broker(), []

    @first.subscriber(recovering(min_idle=30))
    async def park(ctx: Context):
        return retry(after=1)

    @second.subscriber(recovering(min_idle=30))
    async def handle(ctx: Context):
        seen.append((clock(stream), ctx.delivery_count))

    stream.add("x")
    async with RustStream("first", first):
        before = await eventually_async(lambda: parked(stream))
    assert parked(stream) == before
    [(_, due)] = before.values()
    async with RustStream("second", second):
        await eventually_async(lambda: seen)

    [(back, count)] = seen
    figure("retry(after=1) across a stop", f"{(back - due) * 1000:.0f} ms late on {any_server.name}")
    assert 0 <= back - due < 5 * SLACK
    assert count == 2


async def test_due_entries_wait_for_room(any_server, broker, stream):
    """30 due at once, one worker, `max_in_flight=3`: never more than three in flight, each comes back once."""
    most, seen = 0, Counter()
    app = RustStream("test", broker)

    @broker.subscriber(recovering(min_idle=30, count=3), max_in_flight=3)
    async def handle(number: int, ctx: Context):
        nonlocal most
        seen[number] += 1
        if ctx.delivery_count == 1:
            return retry(after=0.3)
        most = max(most, app.health().subscriptions[0].counts["in_flight"])
        await asyncio.sleep(0.002)
        return None

    async with app:
        stream.add_numbered(1, 30)
        await eventually_async(lambda: sum(seen.values()) == 60)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert set(seen.values()) == {2}
    assert most <= 3


async def test_both_kinds_of_delay_share_a_set(any_server, broker, stream):
    """`new` and `recovering` on one group: copies and parked entries in one set, each comes back once, its own way."""
    seen = []

    async def handle(number: int, ctx: Context):
        seen.append((number, ctx.delivery_count, ctx.subscription))
        return retry(after=0.4) if ctx.delivery_count == 1 else None

    broker.add_subscriber(RedisStream("s", group="g", start_id="0", count=1), handle, name="new", max_in_flight=1)
    broker.add_subscriber(recovering(min_idle=30, count=1), handle, name="recovering", max_in_flight=1)
    async with RustStream("test", broker):
        stream.add_numbered(1, 40)
        await eventually_async(lambda: len(seen) == 80)
        await eventually_async(lambda: stream.pending_ids() == [] and not stream.client.exists(DELAYED))

    assert Counter((number, count) for number, count, _ in seen) == {(n, c): 1 for n in range(1, 41) for c in (1, 2)}
    by = Counter(name for _, count, name in seen if count == 1)
    assert set(by) == {"new", "recovering"}, "both had a share"
    assert stream.length() == 40 + by["new"]


async def test_groups_that_share_a_key_keep_to_their_own(any_server, broker, stream):
    """Two groups with one `delay_key`: an entry that both park comes back once in each."""
    seen = []

    for group in ("g", "h"):
        source = RedisStream.recovering("s", group=group, min_idle=30, start_id="0", delay_key="later")

        async def handle(number: int, ctx: Context):
            seen.append((ctx.group, number, ctx.delivery_count))
            return retry(after=0.3) if ctx.delivery_count == 1 else None

        broker.add_subscriber(source, handle, name=group)

    async with RustStream("test", broker):
        stream.add_numbered(1, 5)
        await eventually_async(lambda: len(seen) == 20)
        await eventually_async(lambda: not stream.client.exists("later"))

    assert set(seen) == {(group, number, count) for group in "gh" for number in range(1, 6) for count in (1, 2)}


async def test_reclaim_hands_over_what_was_parked(any_server, make_broker, stream):
    """A group whose `claiming` service is replaced by `reclaim`: what that one parked comes when due."""
    first, second, seen = make_broker(), make_broker(), []

    @first.subscriber(recovering(min_idle=30))
    async def park(ctx: Context):
        return retry(after=0.5)

    @second.subscriber(RedisStream.reclaim("s", group="g", min_idle=30))
    async def handle(ctx: Context):
        seen.append((clock(stream), ctx.delivery_count))

    stream.add("x")
    async with RustStream("first", first):
        before = await eventually_async(lambda: parked(stream))
    [(_, due)] = before.values()
    async with RustStream("second", second):
        await eventually_async(lambda: seen)

    assert 0 <= seen[0][0] - due < 5 * SLACK
    assert seen[0][1] == 2


async def test_on_error_may_name_a_delay(broker, stream):
    """`on_error={ConnectionError: retry(after=...)}`: the entry is parked for that long; others are left."""
    seen = []

    @broker.subscriber(recovering(min_idle=30), on_error={ConnectionError: retry(after=0.2), ValueError: leave()})
    async def handle(ctx: Context):
        seen.append(time.monotonic())
        if ctx.delivery_count == 1:
            raise ConnectionRefusedError

    async with RustStream("test", broker):
        stream.add("x")
        await eventually_async(lambda: len(seen) == 2)

    assert seen[1] - seen[0] >= 0.19
