"""order="strict": later entries of a key wait while its head is being retried (B067)."""

import asyncio
import itertools
from collections import defaultdict

import pytest

from eventually import eventually_async
from ruststream import Backoff, Context, RustStream, drop, retry
from ruststream.redis import RedisStream

DELAYED = "{s}:g:delayed"
MODES = {
    "recovering": lambda **options: RedisStream.recovering("s", group="g", min_idle=0.3, start_id="0", **options),
    "new": lambda **options: RedisStream("s", group="g", start_id="0", **options),
}


@pytest.fixture(params=list(MODES))
def source(request):
    return MODES[request.param]


async def test_later_entries_of_a_key_wait_for_its_head(any_server, broker, stream, source, figure):
    """Three keys of five entries; the first of key 0 asks for three retries: its key waits, the others go on."""
    calls: dict[int, list[tuple[int, int]]] = defaultdict(list)

    @broker.subscriber(source(), workers=4, by_key=True, order="strict")
    async def handle(number: int, ctx: Context):
        calls[number % 3].append((number, ctx.delivery_count))
        if number == 3 and ctx.delivery_count < 4:
            assert all(len(calls[key]) <= 5 for key in (1, 2))
            return retry(after=0.1)
        return None

    stream.add_numbered(1, 15, keys=3)
    async with RustStream("test", broker):
        await eventually_async(lambda: len(calls[1]) == len(calls[2]) == 5)
        await eventually_async(lambda: len(calls[0]) == 8)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert calls[0] == [(3, 1), (3, 2), (3, 3), (3, 4), (6, 1), (9, 1), (12, 1), (15, 1)]
    assert stream.length() == 15, "nothing was copied"


async def test_the_relaxed_order_goes_on_meanwhile(broker, stream):
    """The default: the rest of the key is handled before its head comes back."""
    calls = []

    @broker.subscriber(MODES["recovering"](), by_key=True)
    async def handle(number: int, ctx: Context):
        calls.append(number)
        return retry(after=0.2) if number == 1 and ctx.delivery_count == 1 else None

    stream.add_numbered(1, 5)
    async with RustStream("test", broker):
        await eventually_async(lambda: len(calls) == 6)

    assert calls == [1, 2, 3, 4, 5, 1]


async def test_the_head_waits_as_long_as_it_asked_for(any_server, broker, stream, source, figure):
    """A delay shorter and one longer than min_idle, the backoff for a `retry()` without one; count and idle right."""
    seen = []
    waits = [retry(after=0.1), retry(after=0.8), retry()]

    @broker.subscriber(source(), by_key=True, order="strict", backoff=Backoff(0.2, 1, jitter=0))
    async def handle(ctx: Context):
        seen.append((asyncio.get_running_loop().time(), ctx.delivery_count, ctx.idle, ctx.partition_key))
        return waits[ctx.delivery_count - 1] if ctx.delivery_count < 4 else None

    async with RustStream("test", broker):
        stream.add("x", redis_partition_key="k")
        await eventually_async(lambda: len(seen) == 4)
        await eventually_async(lambda: stream.pending_ids() == [])

    took = [later - earlier for (earlier, *_), (later, *_) in itertools.pairwise(seen)]
    asked = [0.1, 0.8, 0.8]
    figure("strict waits of 0.1, 0.8 and 0.8 s", f"{[f'{wait * 1000:.0f}' for wait in took]} ms on {any_server.name}")
    assert [count for _, count, _, _ in seen] == [1, 2, 3, 4]
    assert all(wait >= least - 0.01 for wait, least in zip(took, asked, strict=True))
    assert all(wait < least + 0.5 for wait, least in zip(took, asked, strict=True))
    assert all(abs(idle - wait) < 0.3 for (_, _, idle, _), wait in zip(seen[1:], took, strict=True))
    assert {key for *_, key in seen} == {b"k"}


async def test_attempts_are_counted_on_the_server(any_server, broker, stream, source):
    """The count goes up at each new run, under the same consumer: a crash does not forget it."""
    rows = []

    @broker.subscriber(source(), by_key=True, order="strict")
    async def handle(ctx: Context):
        [row] = stream.pending()
        rows.append((row["times_delivered"], row["consumer"], ctx.delivery_count))
        return retry(after=0.05) if ctx.delivery_count < 4 else None

    async with RustStream("test", broker):
        stream.add("x", redis_partition_key="k")
        await eventually_async(lambda: len(rows) == 4)

    assert [(server, ours) for server, _, ours in rows] == [(n, n) for n in range(1, 5)]
    assert len({consumer for _, consumer, _ in rows}) == 1


async def test_entries_without_a_key_do_not_wait(any_server, broker, stream, source):
    """There is no order to keep: they are retried as ever."""
    calls = []

    @broker.subscriber(source(), by_key=True, order="strict")
    async def handle(body: bytes, ctx: Context):
        calls.append((body, ctx.delivery_count))
        return retry(after=0.2) if ctx.delivery_count == 1 and body == b"1" else None

    stream.add("1")
    stream.add("2")
    async with RustStream("test", broker):
        await eventually_async(lambda: len(calls) == 3)

    assert calls == [(b"1", 1), (b"2", 1), (b"1", 2)]


async def test_computed_keys_keep_their_order(broker, stream, source):
    """With a function for the key, which is asked once more for each run."""
    calls = []

    @broker.subscriber(source(), workers=2, by_key=lambda number: number % 2, order="strict")
    async def handle(number: int, ctx: Context):
        calls.append(number)
        return retry(after=0.1) if number == 1 and ctx.delivery_count < 3 else None

    stream.add_numbered(1, 6)
    async with RustStream("test", broker):
        await eventually_async(lambda: len(calls) == 8)

    assert [number for number in calls if number % 2] == [1, 1, 1, 3, 5]


async def test_a_head_settled_by_hand_waits_for_its_handler(broker, stream, source):
    """`ctx.settle(retry(after=0))` while the handler goes on: it does not run twice at once."""
    running, most, calls = 0, 0, []

    @broker.subscriber(source(), workers=4, by_key=True, order="strict")
    async def handle(number: int, ctx: Context):
        nonlocal running, most
        running += 1
        most = max(most, running)
        calls.append(number)
        if number == 1 and ctx.delivery_count == 1:
            ctx.settle(retry(after=0))
        await asyncio.sleep(0.1)
        running -= 1

    stream.add_numbered(1, 3)
    async with RustStream("test", broker):
        await eventually_async(lambda: len(calls) == 4)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert (most, calls) == (1, [1, 1, 2, 3])


@pytest.mark.parametrize("how", ["taken", "acked"])
async def test_a_head_that_someone_else_has_gives_way(any_server, broker, stream, source, how):
    """Claimed or acked by another consumer while it waits: its key goes on, nothing is taken from the other."""
    calls = []

    @broker.subscriber(source(), by_key=True, order="strict")
    async def handle(number: int, ctx: Context):
        calls.append(number)
        return retry(after=0.5) if number == 1 else None

    app = RustStream("test", broker)
    async with app:
        stream.add_numbered(1, 2)
        await eventually_async(lambda: calls == [1])
        [first, _] = stream.pending_ids()
        if how == "taken":
            stream.claim("thief", first)
        else:
            stream.client.xack("s", "g", first)
        await eventually_async(lambda: calls == [1, 2])
        await eventually_async(lambda: app.health().subscriptions[0].counts["in_flight"] == 0)

    if how == "taken":
        assert [(row["consumer"], row["times_delivered"]) for row in stream.pending()] == [("thief", 2)]
    else:
        assert stream.pending_ids() == []


async def test_a_stop_gives_waiting_heads_their_delay(any_server, make_broker, stream, source):
    """At a stop the head is retried as in a relaxed order, due when it was; nothing is lost, nothing counted twice."""
    first, second, seen = make_broker(), make_broker(), []

    @first.subscriber(source(), by_key=True, order="strict")
    async def keep(number: int, ctx: Context):
        return retry(after=1) if number == 1 else None

    @second.subscriber(source(), by_key=True, order="strict")
    async def handle(number: int, ctx: Context):
        seen.append((number, ctx.delivery_count))
        return drop()

    app = RustStream("first", first)
    async with app:
        stream.add_numbered(1, 3)
        await eventually_async(lambda: app.health().subscriptions[0].counts["in_flight"] == 3)
    assert stream.client.zcount(DELAYED, 0, "+inf") == 1
    async with RustStream("second", second):
        await eventually_async(lambda: (1, 2) in seen)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert sum(number == 1 for number, _ in seen) == 1
    await eventually_async(lambda: not stream.client.exists(DELAYED))


async def test_a_head_that_waits_for_long_is_noted_and_handed_to_nobody(any_server, make_broker, stream, source):
    """The server knows its due time; two processes have timers for it, and none takes it from its living holder."""
    first, second, runs, notes = make_broker(), make_broker(), [], []

    def handler(name):
        async def handle(number: int, ctx: Context):
            runs.append((name, number, ctx.delivery_count, stream.client.zcard(DELAYED)))
            return retry(after=0.7) if ctx.delivery_count < 3 else None

        return handle

    for name, broker in (("first", first), ("second", second)):
        broker.add_subscriber(source(), handler(name), by_key=True, order="strict")
    async with RustStream("first", first), RustStream("second", second):
        stream.add("1", redis_partition_key="k")
        for count in (1, 2):
            await eventually_async(lambda count=count: len(runs) == count)
            notes += await eventually_async(lambda: stream.client.zrange(DELAYED, 0, -1, withscores=True))
        await eventually_async(lambda: stream.pending_ids() == [])

    holder = runs[0][0]
    assert runs == [(holder, 1, count, 0) for count in (1, 2, 3)], "it is noted no more once it runs"
    assert all(score < 0 for _, score in notes)
    assert not stream.client.exists(DELAYED)


async def test_a_wait_that_a_hold_outlasts_is_not_noted(broker, stream):
    """What nobody else could get before it is due costs the server nothing but its run."""
    runs, notes = [], []
    source = RedisStream.recovering("s", group="g", min_idle=30, start_id="0")

    @broker.subscriber(source, by_key=True, order="strict")
    async def handle(number: int, ctx: Context):
        runs.append(ctx.delivery_count)
        notes.append(stream.client.exists(DELAYED))
        return retry(after=0.3) if ctx.delivery_count < 3 else None

    async with RustStream("test", broker):
        stream.add("1", redis_partition_key="k")
        while len(runs) < 3:
            notes.append(stream.client.exists(DELAYED))
            await asyncio.sleep(0.01)

    assert runs == [1, 2, 3]
    assert set(notes) == {0}


@pytest.mark.parametrize("how", ["acked", "taken"])
async def test_the_note_of_a_head_that_someone_else_has_goes(broker, stream, how):
    """Settled or claimed by a consumer that knows nothing of due times: nothing of its wait is left."""
    source = RedisStream.recovering("s", group="g", min_idle=0.6, start_id="0")

    @broker.subscriber(source, by_key=True, order="strict")
    async def handle(number: int, ctx: Context):
        return retry(after=0.5) if ctx.delivery_count == 1 else None

    async with RustStream("test", broker):
        stream.add("1", redis_partition_key="k")
        await eventually_async(lambda: stream.client.exists(DELAYED))
        [entry] = stream.pending_ids()
        if how == "taken":
            stream.claim("thief", entry)
        else:
            stream.client.xack("s", "g", entry)
        await eventually_async(lambda: not stream.client.exists(DELAYED))


async def test_a_note_that_the_server_refuses_is_said_and_the_head_runs(broker, stream, caplog):
    """`delay_key` is of another type: the wait goes on here all the same, and its key keeps its order."""
    calls = []
    stream.client.set(DELAYED, "text")
    source = RedisStream.recovering("s", group="g", min_idle=0.3, start_id="0")

    @broker.subscriber(source, by_key=True, order="strict")
    async def handle(number: int, ctx: Context):
        calls.append(number)
        return retry(after=0.4) if ctx.delivery_count < 3 and number == 1 else None

    stream.add_numbered(1, 2)
    async with RustStream("test", broker):
        await eventually_async(lambda: len(calls) == 4)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert calls == [1, 1, 1, 2]
    assert "refused the due times of 1 entries that wait here" in caplog.text


async def test_many_heads_at_once_keep_their_orders(broker, stream, source):
    """50 keys, each head retried twice, eight workers: every key in order, every entry handled."""
    calls = defaultdict(list)

    @broker.subscriber(source(), workers=8, by_key=True, order="strict")
    async def handle(number: int, ctx: Context):
        calls[number % 50].append(number)
        return retry(after=0.02) if ctx.delivery_count < 3 else None

    stream.add_numbered(1, 200, keys=50)
    async with RustStream("test", broker):
        await eventually_async(lambda: sum(map(len, calls.values())) == 600, timeout=20)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert all(found == sorted(found) and len(found) == 12 for found in calls.values())


async def test_a_head_that_used_up_its_attempts_gives_way(any_server, broker, stream, source):
    """With a cap of three, a head that always asks for a retry runs three times, and its key goes on."""
    calls = []

    @broker.subscriber(source(), by_key=True, order="strict", max_attempts=3, on_exhausted=drop())
    async def handle(number: int, ctx: Context):
        calls.append((number, ctx.delivery_count))
        return retry(after=0.05) if number == 1 else None

    stream.add_numbered(1, 3)
    async with RustStream("test", broker):
        await eventually_async(lambda: len(calls) == 5)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert calls == [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1)]
