"""retry(after=) of a `new` or `reclaim` subscription: when the entry is due, and what may happen meanwhile."""

import asyncio
import time

import pytest
import xxhash

from eventually import eventually_async
from ruststream import Context, RustStream, retry
from ruststream.redis import RedisBroker, RedisStream

DELAYED = "{s}:g:delayed"


def new(**options: object) -> RedisStream:
    return RedisStream("s", group="g", start_id="0", **options)


def clock(stream) -> float:
    """The server's time."""
    seconds, micros = stream.client.time()
    return seconds + micros / 1e6


def added_at(entry_id: str) -> float:
    """When the server added the entry, by its own clock."""
    return int(entry_id.partition("-")[0]) / 1000


async def test_it_waits_in_the_sorted_set_and_comes_when_due(any_server, broker, stream, figure):
    """Off the pending list at once; back, by the server's clock, within 100 ms of its time."""
    asked, seen = [], []

    @broker.subscriber(new(block=5))
    async def handle(body: bytes, ctx: Context):
        seen.append((str(ctx.entry_id), body, ctx.delivery_count))
        if ctx.delivery_count == 1:
            asked.append(clock(stream))
            return retry(after=0.5)
        return None

    async with RustStream("test", broker):
        stream.add(b"\xff\x00")
        await eventually_async(lambda: stream.client.zcard(DELAYED) == 1)
        assert stream.pending_ids() == []
        [(_, due)] = stream.client.zrange(DELAYED, 0, -1, withscores=True)
        assert abs(due / 1000 - asked[0] - 0.5) < 0.05
        await eventually_async(lambda: len(seen) == 2)
        await eventually_async(lambda: stream.pending_ids() == [])

    late = added_at(seen[1][0]) - due / 1000
    figure("delay of 500 ms at block 5 s", f"{(late + 0.5) * 1000:.0f} ms on {any_server.name}")
    assert 0 <= late <= 0.1
    assert [(body, count) for _, body, count in seen] == [(b"\xff\x00", 1), (b"\xff\x00", 2)]
    assert not stream.client.exists(DELAYED)


async def test_due_times_are_kept_behind_busy_handlers(broker, stream, figure):
    """60 jobs of 100 ms on one key, two workers: the delayed entry of another key is due at 500 ms and handled then."""
    busy = next(key for key in ("a", "b") if partition(key) != partition("other"))
    seen = {}

    @broker.subscriber(new(block=5, min_idle=30), workers=2, by_key=True)
    async def handle(body: bytes, ctx: Context):
        if body == b"job":
            await asyncio.sleep(0.1)
            return None
        seen[ctx.delivery_count] = time.monotonic()
        return retry(after=0.5) if ctx.delivery_count == 1 else None

    async with RustStream("test", broker):
        for _ in range(60):
            stream.add("job", redis_partition_key=busy)
        stream.add("delayed", redis_partition_key="other")
        await eventually_async(lambda: len(seen) == 2)

    took = seen[2] - seen[1]
    figure("delay of 500 ms behind 60 jobs", f"{took * 1000:.0f} ms")
    assert 0.49 <= took <= 0.7


def partition(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode()) % 1024


async def test_due_times_are_kept_while_the_only_handler_works(any_server, broker, stream):
    """The timer is not the handler's: moved back on time although the one worker is busy until later."""
    seen = []

    @broker.subscriber(new(block=5))
    async def handle(body: bytes, ctx: Context):
        seen.append((body, str(ctx.entry_id)))
        if body == b"delayed" and ctx.delivery_count == 1:
            return retry(after=0.3)
        if body == b"long":
            await asyncio.sleep(0.6)
        return None

    async with RustStream("test", broker):
        stream.add("delayed")
        await eventually_async(lambda: stream.client.zcard(DELAYED) == 1)
        [(_, due)] = stream.client.zrange(DELAYED, 0, -1, withscores=True)
        stream.add("long")
        await eventually_async(lambda: len(seen) == 3)

    assert [body for body, _ in seen] == [b"delayed", b"long", b"delayed"]
    assert 0 <= added_at(seen[2][1]) - due / 1000 <= 0.1


async def test_several_delays_come_in_the_order_of_their_due_times(any_server, broker, stream):
    """Twelve entries with delays in no order: each on time, and a shorter one is not held up by a longer one."""
    delays = [0.6, 0.1, 0.4, 0.2, 0.5, 0.3] * 2
    back = []

    @broker.subscriber(new())
    async def handle(number: int, ctx: Context):
        if ctx.delivery_count == 1:
            return retry(after=delays[number])
        back.append((number, ctx.timestamp - began))
        return None

    async with RustStream("test", broker):
        began = clock(stream)
        for number in range(len(delays)):
            stream.add(str(number))
        await eventually_async(lambda: len(back) == len(delays))

    assert [delays[number] for number, _ in back] == sorted(delays)
    for number, after in back:
        assert delays[number] <= after + 0.01 <= delays[number] + 0.15


async def test_a_delay_outlives_the_app_that_asked_for_it(any_server, make_broker, stream, figure):
    """B104: the app is gone while its entry is delayed: another one of the group moves it back, on time."""
    first, second, seen = make_broker(), make_broker(), []

    @first.subscriber(new())
    async def delay(ctx: Context):
        return retry(after=0.6)

    @second.subscriber(new())
    async def handle(ctx: Context):
        seen.append((str(ctx.entry_id), ctx.delivery_count))

    stream.add("x")
    async with RustStream("first", first):
        await eventually_async(lambda: stream.client.zcard(DELAYED) == 1)
    [(_, due)] = stream.client.zrange(DELAYED, 0, -1, withscores=True)
    async with RustStream("second", second):
        await eventually_async(lambda: seen)

    [(entry, count)] = seen
    late = added_at(entry) - due / 1000
    figure("delay of 600 ms across a death", f"{late * 1000:.0f} ms late on {any_server.name}")
    assert 0 <= late <= 0.1
    assert count == 2


async def test_an_entry_that_is_due_when_nobody_runs_comes_at_the_next_start(any_server, make_broker, stream):
    """Due while all apps were down: moved back at once when one starts."""
    first, second, seen = make_broker(), make_broker(), []

    @first.subscriber(new())
    async def delay(ctx: Context):
        return retry(after=0.1)

    @second.subscriber(new())
    async def handle(body: bytes, ctx: Context):
        seen.append((body, ctx.delivery_count))

    async with RustStream("first", first):
        stream.add("x")
        await eventually_async(lambda: stream.client.zcard(DELAYED) == 1)
    [(member, due)] = stream.client.zrange(DELAYED, 0, -1, withscores=True)
    await eventually_async(lambda: clock(stream) > due / 1000)
    assert stream.client.zscore(DELAYED, member) == due
    async with RustStream("second", second):
        await eventually_async(lambda: seen, timeout=1)

    assert seen == [(b"x", 2)]


async def test_two_apps_move_a_delayed_entry_back_once(any_server, make_broker, stream):
    """100 delayed entries and two apps that look for them: each comes back once."""
    seen = []
    brokers = [make_broker(), make_broker()]
    for broker in brokers:

        @broker.subscriber(new())
        async def handle(number: int, ctx: Context):
            if ctx.delivery_count == 1:
                return retry(after=0.3)
            seen.append(number)
            return None

    async with RustStream("a", brokers[0]), RustStream("b", brokers[1]):
        stream.add_numbered(1, 100)
        await eventually_async(lambda: len(seen) >= 100)
        await eventually_async(lambda: stream.pending_ids() == [] and not stream.client.exists(DELAYED))

    assert sorted(seen) == list(range(1, 101))
    assert stream.length() == 200


async def test_an_entry_is_not_lost_when_the_server_is_full_at_its_due_time(make_server, stream_of, figure):
    """Upstream: ZSET 0, pending 0, never again. Here it stays scheduled until there is room."""
    server = make_server()
    stream, broker, seen = stream_of(server), RedisBroker(server.url), []

    @broker.subscriber(new())
    async def handle(body: bytes, ctx: Context):
        if ctx.delivery_count == 1:
            return retry(after=0.2)
        seen.append(body)
        return None

    async with RustStream("test", broker):
        stream.add("x")
        await eventually_async(lambda: stream.client.zcard(DELAYED) == 1)
        [(_, due)] = stream.client.zrange(DELAYED, 0, -1, withscores=True)
        stream.client.config_set("maxmemory", 1)
        await eventually_async(lambda: clock(stream) > due / 1000 + 0.3)
        figure("delayed entries left when the server is full", f"{stream.client.zcard(DELAYED)} of 1")
        assert stream.client.zcard(DELAYED) == 1
        stream.client.config_set("maxmemory", 0)
        await eventually_async(lambda: seen)

    assert seen == [b"x"]


async def test_the_delay_key_can_be_named(any_server, broker, stream):
    """`delay_key=` names the sorted set; streams with a hash tag keep it in their slot by default."""
    sources = (
        (RedisStream("a", group="g", start_id="0", delay_key="later"), "later"),
        (RedisStream("{tag}b", group="g", start_id="0"), "{tag}b:g:delayed"),
    )
    for number, (source, _) in enumerate(sources):

        async def handle(ctx: Context):
            return retry(after=30)

        broker.add_subscriber(source, handle, name=f"reader-{number}")
        stream.client.xadd(source.stream, {"_payload": "x"})

    async with RustStream("test", broker):
        for _, key in sources:
            await eventually_async(lambda key=key: stream.client.zcard(key) == 1)


@pytest.mark.parametrize("member", [b"not ours", b"", b"\x93\xa11\xa1g\xa1x", b"\x80"])
async def test_a_member_that_is_not_ours_does_not_hold_up_the_rest(broker, stream, caplog, member):
    """B104: something else in the sorted set, due before everything: what is behind it still comes, and it is said."""
    seen = []

    @broker.subscriber(new())
    async def handle(body: bytes, ctx: Context):
        if ctx.delivery_count == 1:
            return retry(after=0.2)
        seen.append(body)
        return None

    stream.client.zadd(DELAYED, {member: 1})
    async with RustStream("test", broker):
        stream.add("x")
        await eventually_async(lambda: seen, timeout=3)

    assert any(DELAYED in record.getMessage() for record in caplog.records)
