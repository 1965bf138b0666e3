"""retry() where pending entries are claimed: the entry keeps its id and its place, and comes back after min_idle."""

import asyncio
import itertools
import time

import msgspec
import pytest

from eventually import eventually_async
from ruststream import DELIVERY_COUNT_HEADER, IDLE_MS_HEADER, Context, RustStream, retry
from ruststream.redis import RedisStream, StreamStart

MIN_IDLE = 0.2


def recovering(**options: object) -> RedisStream:
    return RedisStream.recovering("s", group="g", min_idle=MIN_IDLE, start_id=StreamStart.BEGINNING, **options)


async def test_a_migrating_payment_comes_back_under_its_own_id(broker, stream):
    """The guide's case, in claiming mode: back after min_idle, same id, nothing sent, XLEN unchanged."""

    class Payment(msgspec.Struct):
        id: int
        account: str
        amount_cents: int

    migrating, posted = {"migrating-7"}, []
    source = RedisStream.claiming("s", min_idle=MIN_IDLE, group="ledger", start_id=StreamStart.BEGINNING)

    @broker.subscriber(source, workers=8, by_key=True)
    async def post_payment(payment: Payment, ctx: Context):
        posted.append((payment.account, str(ctx.entry_id), ctx.delivery_count))
        return retry() if payment.account in migrating else None

    async with RustStream("payments", broker):
        moved = await broker.publish(Payment(1, "migrating-7", 500), "s", key="migrating-7")
        other = await broker.publish(Payment(2, "acc-1", 500), "s", key="acc-1")
        await eventually_async(lambda: len(posted) == 2)
        await eventually_async(lambda: len(stream.pending_ids("ledger")) == 1)
        [row] = stream.pending("ledger")
        assert (row["message_id"], row["times_delivered"]) == (str(moved), 1)
        migrating.clear()
        await eventually_async(lambda: len(posted) == 3)
        await eventually_async(lambda: stream.pending_ids("ledger") == [])

    assert posted == [("migrating-7", str(moved), 1), ("acc-1", str(other), 1), ("migrating-7", str(moved), 2)]
    assert [entry for entry, _ in stream.entries()] == [str(moved), str(other)]


async def test_every_retry_waits_min_idle_and_counts(any_server, broker, stream, figure):
    """Four retries: each back no earlier than min_idle, count and idle time raised, in one unchanged entry."""
    seen = []

    @broker.subscriber(recovering())
    async def handle(ctx: Context):
        seen.append((time.monotonic(), ctx.delivery_count, ctx.idle, dict(ctx.headers)))
        return retry() if ctx.delivery_count < 5 else None

    async with RustStream("test", broker):
        entry = stream.add("x")
        await eventually_async(lambda: len(seen) == 5)
        await eventually_async(lambda: stream.pending_ids() == [])

    times, counts, idles, headers = zip(*seen, strict=True)
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    figure("retry() in place", f"back after {[f'{wait * 1000:.0f}' for wait in waits]} ms on {any_server.name}")
    assert counts == (1, 2, 3, 4, 5)
    assert all(MIN_IDLE - 0.02 <= wait < MIN_IDLE + 0.25 for wait in waits)
    assert idles[0] == 0
    assert all(abs(idle - wait) < 0.1 for idle, wait in zip(idles[1:], waits, strict=True))
    assert [entry_id for entry_id, _ in stream.entries()] == [entry]
    # The guide's names: earlier deliveries, and the idle time in milliseconds.
    assert [int(found[DELIVERY_COUNT_HEADER]) for found in headers] == [0, 1, 2, 3, 4]
    assert [int(found[IDLE_MS_HEADER]) for found in headers] == [round(idle * 1000) for idle in idles]


async def test_nothing_is_sent_for_a_retry(any_server, broker, stream):
    """No XADD, no XACK, no script: the server counts reads alone between retry and return."""
    seen = []

    @broker.subscriber(recovering())
    async def handle(ctx: Context):
        seen.append(ctx.delivery_count)
        return retry() if ctx.delivery_count < 3 else None

    async with RustStream("test", broker):
        stream.add("x")
        await eventually_async(lambda: seen)
        stream.client.config_resetstat()
        await eventually_async(lambda: len(seen) == 2)
        commands = stream.client.info("commandstats")

    assert not {"cmdstat_xadd", "cmdstat_xack", "cmdstat_xackdel", "cmdstat_xnack"} & set(commands)


@pytest.mark.parametrize("any_server", ["redis-8.10", "redis-7.0"], indirect=True)
async def test_a_slow_handler_that_retries_is_not_back_before_min_idle(any_server, broker, stream):
    """Renewed while it ran, so the wait begins near its end: not at once, as the time since its read would suggest."""
    ended, back = [], []

    @broker.subscriber(recovering())
    async def handle(ctx: Context):
        back.append(time.monotonic())
        if ctx.delivery_count == 1:
            await asyncio.sleep(3 * MIN_IDLE)
            ended.append(time.monotonic())
            return retry()
        return None

    async with RustStream("test", broker):
        stream.add("x")
        await eventually_async(lambda: len(back) == 2)

    # A renewal is due every sixth of min_idle, so at most that and what it takes has passed when the handler ends.
    assert MIN_IDLE / 2 <= back[1] - ended[0] < MIN_IDLE + 0.25


@pytest.mark.parametrize("any_server", ["redis-8.10", "redis-7.0"], indirect=True)
async def test_ten_thousand_retries_do_not_make_the_stream_grow(any_server, broker, stream):
    """100 entries retried again and again: as many entries as before, each still pending once."""
    calls = 0

    @broker.subscriber(RedisStream.recovering("s", group="g", min_idle=0.02, start_id="0"))
    async def handle(ctx: Context):
        nonlocal calls
        calls += 1
        return retry()

    stream.add_numbered(1, 100)
    async with RustStream("test", broker):
        await eventually_async(lambda: calls > 1000)
        assert stream.length() == 100

    assert len(stream.pending_ids()) == 100
    assert stream.length() == 100
