"""Batches that are too slow, taken by others, stopped, killed or cut off: none of it is lost or acked for another."""

import asyncio
import functools
import subprocess
import sys

from eventually import eventually, eventually_async
from integration.batches import Job, add_jobs, counts_of, errors, handled, recovering
from ruststream import BatchContext, RustStream, drop, retry
from ruststream.redis import RedisStream, StreamStart


async def test_a_batch_that_takes_too_long_is_cancelled(broker, stream):
    """timeout= is for the call; TimeoutError is each element's, but for what was settled by then."""
    from_now_on = []

    async def handle(jobs: list[Job], batch: BatchContext):
        if not from_now_on:
            from_now_on.append(True)
            batch.settle(0, drop())
            await asyncio.sleep(60)

    add_jobs(stream, *range(6))
    counts = await handled(broker, 6, handle, batch=3, timeout=0.1, on_error={TimeoutError: retry()})

    assert [counts[name] for name in ("acked", "dropped", "retried")] == [3, 1, 2]


async def test_a_batch_is_renewed_as_long_as_it_takes(any_server, broker, stream):
    """B004: three times min_idle in one call, and no element comes a second time."""
    seen = []

    async def handle(jobs: list[Job], batch: BatchContext):
        seen.extend((job.number, ctx.delivery_count) for job, ctx in zip(jobs, batch.contexts, strict=True))
        await asyncio.sleep(1.0)

    add_jobs(stream, *range(5))
    await handled(broker, 5, handle, recovering(min_idle=0.3), batch=5, workers=2)

    assert sorted(seen) == [(number, 1) for number in range(5)]


async def test_elements_that_someone_else_took_are_told_of_and_not_acked(broker, stream):
    """One of three was claimed by hand: lease_lost says so, and the ack of the batch leaves it to its owner."""
    entered, told = asyncio.Event(), asyncio.Event()

    async def handle(jobs: list[Job], batch: BatchContext):
        entered.set()
        await asyncio.wait_for(batch.lease_lost.wait(), 20)
        assert [ctx.lost for ctx in batch.contexts] == [False, True, False]
        told.set()

    ids = add_jobs(stream, 1, 2, 3)
    broker.add_subscriber(recovering(min_idle=1), handle, batch=3)
    app = RustStream("test", broker)
    async with app:
        await asyncio.wait_for(entered.wait(), 10)
        stream.claim("another", ids[1])
        await asyncio.wait_for(told.wait(), 20)
        await eventually_async(lambda: [row["consumer"] for row in stream.pending()] == ["another"])

    assert stream.pending_ids() == [ids[1]]


async def test_a_part_that_gathers_is_handed_back_at_the_stop(any_server, broker, make_broker, stream):
    """Five of ten, which would wait for an hour: not run, claimable at once, and no attempt is counted."""
    seen = []

    async def handle(jobs: list[Job]):
        seen.extend(jobs)

    ids = add_jobs(stream, *range(5))
    broker.add_subscriber(recovering(min_idle=3600), handle, batch=10, batch_wait=3600)
    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: counts_of(app)["queued"] == 5)

    assert (seen, stream.pending_ids()) == ([], ids)
    again = make_broker()
    counts = []

    async def next_one(jobs: list[Job], batch: BatchContext):
        counts.extend(ctx.delivery_count for ctx in batch.contexts)

    again.add_subscriber(recovering(min_idle=3600), next_one, batch=5)
    async with RustStream("test", again):
        await eventually_async(lambda: len(counts) == 5)
    assert counts == [1] * 5


async def test_a_part_that_nobody_would_take_up_is_worked_off_at_the_stop(broker, stream):
    """A `new` subscription without a recoverer in sight: the stop runs what gathers instead of leaving it."""
    batches = []

    async def handle(jobs: list[Job]):
        batches.append(len(jobs))

    source = RedisStream("s", group="g", start_id=StreamStart.BEGINNING)
    add_jobs(stream, *range(5))
    broker.add_subscriber(source, handle, batch=10, batch_wait=3600)
    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: counts_of(app)["queued"] == 5)

    assert (batches, stream.pending_ids()) == ([5], [])


async def test_a_batch_that_is_cut_off_by_the_stop_stays_pending_whole(broker, stream, caplog):
    """After the drain timeout: nothing of it is settled, and its ids are in the log."""
    stuck = asyncio.Event()

    async def handle(jobs: list[Job]):
        stuck.set()
        await asyncio.Event().wait()

    ids = add_jobs(stream, *range(3))
    broker.add_subscriber(recovering(), handle, batch=3)
    async with RustStream("test", broker, drain_timeout=0.1):
        await asyncio.wait_for(stuck.wait(), 10)

    assert stream.pending_ids() == ids
    assert any(all(entry in text for entry in ids) for text in errors(caplog))


SERVICE = """
import asyncio, os, sys
from ruststream import BatchContext, RustStream, ack, drop
from ruststream.redis import RedisBroker, RedisStream, StreamStart

broker = RedisBroker(sys.argv[1])
app = RustStream("batches", broker)
source = RedisStream.recovering("s", group="g", min_idle=float(sys.argv[2]), start_id=StreamStart.BEGINNING)

options = {"max_attempts": 3, "on_exhausted": drop()} if sys.argv[3] == "poison" else {}

@broker.subscriber(source, batch=5, batch_wait=0.01, **options)
async def handle(bodies: list[bytes], batch: BatchContext):
    print(b" ".join(bodies).decode(), flush=True)
    if sys.argv[3] in ("die", "poison") and b"7" in bodies:
        os.kill(os.getpid(), 9)
    if sys.argv[3] == "die half way":
        acked = asyncio.Event()
        batch.contexts[1].after_ack(acked.set)
        batch.settle(0, ack())
        batch.settle(1, ack())
        await acked.wait()
        os.kill(os.getpid(), 9)

app.run()
"""


def service(server, min_idle, how):
    argv = [sys.executable, "-c", SERVICE, server.url, str(min_idle), how]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def taken_over(server, stream):
    """Run a second process until nothing is pending; return what its handler saw."""
    second = service(server, 0.5, "live")
    try:
        eventually(lambda: stream.pending_ids() == [], timeout=20)
    finally:
        second.terminate()
        printed, log = second.communicate(timeout=30)
    assert second.returncode == 0, log
    return " ".join(printed.splitlines()).split()


def test_a_process_killed_within_a_batch_loses_none_of_it(any_server, stream):
    """C1: nothing of the batch that was running is acked; the next process runs it whole, and nothing else again."""
    ids = [stream.add(str(number)) for number in range(10)]
    first = service(any_server, 30, "die")
    printed, log = first.communicate(timeout=30)
    assert (first.returncode, printed.splitlines()) == (-9, ["0 1 2 3 4", "5 6 7 8 9"]), log
    assert set(ids[5:]) <= set(stream.pending_ids())
    again = taken_over(any_server, stream)
    assert set(again) >= set("56789")
    assert len(again) == len(set(again))


def test_a_process_killed_half_way_through_a_batch_repeats_what_it_had_not_settled(any_server, stream):
    """C1: two of five were settled by hand and answered; the next process gets the other three, once."""
    ids = [stream.add(str(number)) for number in range(5)]
    first = service(any_server, 30, "die half way")
    printed, log = first.communicate(timeout=30)
    assert (first.returncode, printed.splitlines()) == (-9, ["0 1 2 3 4"]), log
    assert stream.pending_ids() == ids[2:]
    assert sorted(taken_over(any_server, stream)) == ["2", "3", "4"]


def ended_or_idle(process, stream):
    """Whether the process is gone, or has nothing left to do."""
    return process.poll() is not None or (stream.pending_ids() == [] and stream.group()["lag"] == 0)


def test_a_batch_with_an_entry_that_kills_its_process(any_server, stream):
    """B013, max_attempts=3: dropped after four runs at most; what was in a batch with it is handled all the same."""
    stream.create_group()
    stream.add_numbered(0, 9)
    batches = []
    for _ in range(8):
        process = service(any_server, 0.3, "poison")
        try:
            eventually(functools.partial(ended_or_idle, process, stream), timeout=20)
        finally:
            process.terminate()
            printed, log = process.communicate(timeout=30)
        batches += [line.split() for line in printed.splitlines()]
        if process.returncode == 0:
            break

    assert (process.returncode, stream.pending_ids()) == (0, []), log
    assert 1 < sum("7" in batch for batch in batches) <= 4
    assert {number for batch in batches if "7" not in batch for number in batch} == set("012345689")


async def test_a_connection_cut_within_a_batch_costs_nothing(any_server, broker, stream):
    """B032: every connection is cut while the handler runs; its acks are sent again, and nothing runs twice."""
    seen = []

    async def handle(bodies: list[bytes]):
        seen.extend(bodies)
        if len(seen) == 10:
            stream.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await asyncio.sleep(0.01)

    stream.add_numbered(1, 50)
    broker.add_subscriber(recovering(), handle, batch=10)
    app = RustStream("test", broker)
    async with app:
        await eventually_async(lambda: counts_of(app)["acked"] == 50, timeout=15)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert sorted(map(int, seen)) == list(range(1, 51))
