"""Workers, keys and order: what runs side by side, what one after another, and what a slow key holds up."""

import asyncio
import random
from collections import defaultdict

import msgspec
import pytest
import xxhash

from eventually import eventually_async
from ruststream import Context, RustStream, retry
from ruststream.redis import RedisStream, StreamStart


class Job(msgspec.Struct):
    account: str
    number: int


def recovering(**options: object) -> RedisStream:
    options = {"min_idle": 30} | options
    return RedisStream.recovering("s", group="g", start_id=StreamStart.BEGINNING, **options)


def partition(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode()) % 1024


def keys(count: int) -> list[str]:
    """So many keys, each in a partition of its own."""
    by_partition = {partition(f"key-{number}"): f"key-{number}" for number in range(count * 3)}
    return list(by_partition.values())[:count]


async def test_one_worker_runs_one_after_another_in_order(any_server, broker, stream):
    """workers=1: never two at once, in the order of the stream, also across handlers that wait."""
    seen, running, most = [], 0, 0

    @broker.subscriber(recovering())
    async def handle(number: int):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(random.choice([0, 0, 0.002]))
        seen.append(number)
        running -= 1

    stream.add_numbered(1, 200)
    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 200)

    assert seen == list(range(1, 201))
    assert most == 1


@pytest.mark.parametrize("by_key", [False, True])
async def test_workers_bound_what_runs_at_once(any_server, broker, stream, by_key):
    """workers=5: five side by side when there is work for them, and never six."""
    running, most, ended = 0, 0, 0

    @broker.subscriber(recovering(), workers=5, by_key=by_key)
    async def handle(body: bytes):
        nonlocal running, most, ended
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        ended += 1

    stream.add_numbered(1, 200, keys=40)
    async with RustStream("test", broker):
        await eventually_async(lambda: ended == 200)

    assert most == 5


@pytest.mark.parametrize("how", ["header", "callable"])
async def test_each_key_in_order_over_eight_lanes(any_server, broker, stream, how):
    """B066: 1,000 jobs of 40 accounts, handlers that take random times: never two of an account, and in order."""
    accounts, seen, running = keys(40), defaultdict(list), set()
    overlaps, side_by_side = [], 0

    @broker.subscriber(recovering(), workers=8, by_key=True if how == "header" else lambda job: job.account)
    async def handle(job: Job, ctx: Context):
        nonlocal side_by_side
        if job.account in running:
            overlaps.append(job)
        running.add(job.account)
        side_by_side = max(side_by_side, len(running))
        await asyncio.sleep(random.choice([0, 0, 0.001, 0.004]))
        running.discard(job.account)
        seen[job.account].append(job.number)
        assert ctx.partition_key == job.account.encode()

    messages = [Job(random.choice(accounts), number) for number in range(1000)]
    async with RustStream("test", broker):
        key = (lambda job: job.account) if how == "header" else None
        await broker.publish_many(messages, "s", key=key)
        await eventually_async(lambda: sum(map(len, seen.values())) == 1000, timeout=10)

    assert overlaps == []
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert side_by_side == 8


async def test_a_hot_key_leaves_the_other_lanes_to_the_others(broker, stream):
    """A hot key with hundreds of entries keeps one lane busy: 400 cold jobs are done while it has hardly begun."""
    hot, *cold = keys(41)
    done = defaultdict(int)

    @broker.subscriber(recovering(), workers=4, by_key=True)
    async def handle(job: Job):
        done["hot" if job.account == hot else "cold"] += 1
        await asyncio.sleep(0.05 if job.account == hot else 0)

    async with RustStream("test", broker):
        jobs = [Job(hot, number) for number in range(300)]
        jobs += [Job(account, number) for number in range(10) for account in cold]
        await broker.publish_many(jobs, "s", key=lambda job: job.account)
        await eventually_async(lambda: done["cold"] == 400)
        hot_meanwhile = done["hot"]

    assert hot_meanwhile <= 10


@pytest.mark.parametrize("by_key", [False, True])
async def test_entries_without_a_key_go_to_any_free_lane(any_server, broker, stream, by_key):
    """One slow keyless entry holds up no other keyless one, whether the subscription goes by keys or not."""
    release, seen = asyncio.Event(), []

    @broker.subscriber(recovering(), workers=2, by_key=by_key)
    async def handle(body: bytes):
        if body == b"slow":
            await release.wait()
        seen.append(body)

    async with RustStream("test", broker):
        stream.add("slow")
        for _ in range(50):
            stream.add("fast")
        await eventually_async(lambda: len(seen) == 50)
        release.set()
        await eventually_async(lambda: len(seen) == 51)

    assert seen[-1] == b"slow"


async def test_keyed_and_keyless_entries_do_not_starve_each_other(broker, stream):
    """One lane and a crowd of either kind: the other kind still comes through soon, in turns with the crowd."""
    seen = []

    @broker.subscriber(recovering(count=1000), workers=1, by_key=True)
    async def handle(body: bytes):
        seen.append(body)
        await asyncio.sleep(0)

    for kind, other in ((b"keyed", b"keyless"), (b"keyless", b"keyed")):
        for body in [kind] * 200 + [other]:
            stream.add(body, **({"redis_partition_key": "k"} if body == b"keyed" else {}))
    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 402)

    assert b"keyless" in seen[:5]
    assert b"keyed" in seen[-5:]


async def test_binary_and_empty_keys_are_keys(broker, stream):
    """Keys are bytes: not UTF-8, empty, long; each in order, and the handler sees them as they are."""
    wanted, seen = [b"\xff\x00", b"", b"k" * 100_000], defaultdict(list)

    @broker.subscriber(recovering(), workers=4, by_key=True)
    async def handle(number: int, ctx: Context):
        await asyncio.sleep(0.001 * (number % 3))
        seen[ctx.partition_key].append(number)

    for number in range(30):
        stream.add(str(number), redis_partition_key=wanted[number % 3])
    async with RustStream("test", broker):
        await eventually_async(lambda: sum(map(len, seen.values())) == 30)

    assert seen == {key: list(range(at, 30, 3)) for at, key in enumerate(wanted)}


async def test_a_key_goes_on_after_its_handler_failed(any_server, broker, stream):
    """B071: an exception, a cancellation and a retry of a key's entry leave the key's lane to the next entry."""
    seen = []

    @broker.subscriber(recovering(), workers=2, by_key=True)
    async def handle(body: bytes):
        seen.append(body)
        if body == b"fails":
            raise LookupError
        if body == b"cancels":
            asyncio.current_task().cancel()
            await asyncio.sleep(0)
        return retry() if body == b"retries" else None

    bodies = [b"fails", b"ok", b"cancels", b"ok", b"retries", b"ok"]
    for body in bodies:
        stream.add(body, redis_partition_key="k")
    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 6)

    assert seen == bodies


async def test_an_undecodable_entry_does_not_break_the_order_of_keys_that_are_computed(broker, stream, caplog):
    """A callable needs the payload. Where that does not decode the entry alone suffers, on any lane."""
    seen = []

    @broker.subscriber(recovering(), workers=4, by_key=lambda job: job.account)
    async def handle(job: Job):
        await asyncio.sleep(0.005 if job.number == 0 else 0)
        seen.append(job.number)

    for number in range(5):
        stream.add(msgspec.json.encode(Job("a", number)))
    bad = stream.add("{broken")
    for number in range(5, 10):
        stream.add(msgspec.json.encode(Job("a", number)))
    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 10)
        await eventually_async(lambda: stream.pending_ids() == [bad])

    assert seen == list(range(10))


async def test_a_key_function_that_fails_is_said(broker, stream, caplog):
    """by_key raises for one entry: no order can be kept for it, so it is not handled silently as if it had no key."""
    seen = []

    @broker.subscriber(recovering(), workers=4, by_key=lambda job: {"a": "key of a"}[job.account])
    async def handle(job: Job):
        seen.append(job.account)

    async with RustStream("test", broker) as app:
        await broker.publish_many([Job("a", 0), Job("unknown", 1), Job("a", 2)], "s")
        await eventually_async(lambda: app.health().subscriptions[0].counts["in_flight"] == 0 and len(seen) >= 2)

    assert any("KeyError" in (record.exc_text or "") + record.getMessage() for record in caplog.records)


async def test_retrying_and_working_side_by_side_keeps_every_entry(any_server, broker, stream):
    """All of it together: keys, retries, errors, cut connections; at the end nothing is pending and nothing missing."""
    seen, done = defaultdict(int), set()

    @broker.subscriber(recovering(min_idle=0.2, count=50), workers=4, by_key=True)
    async def handle(number: int):
        seen[number] += 1
        await asyncio.sleep(0)
        if number % 7 == 0 and seen[number] == 1:
            raise LookupError
        if number % 5 == 0 and seen[number] == 1:
            return retry()
        done.add(number)
        return None

    stream.add_numbered(1, 600, keys=20)
    async with RustStream("test", broker):
        for part in (200, 400, 500):
            await eventually_async(lambda part=part: len(done) >= part, timeout=10)
            stream.client.client_kill_filter(_type="normal", skipme=True)
        await eventually_async(lambda: len(done) == 600 and stream.pending_ids() == [], timeout=10)

    assert done == set(range(1, 601))
