"""Batch handlers: how batches fill, and what they are given."""

import asyncio
import threading

import msgspec

from eventually import eventually_async
from integration.batches import Job, add_jobs, counts_of, handled, recovering, settled
from ruststream import BatchContext, Context, RustStream, drop, retry
from ruststream.redis import RedisBroker, RedisStream, StreamStart


async def test_full_batches_in_order_and_what_is_left_after_the_wait(any_server, broker, stream):
    """Ten, ten and, once nothing came for a while, five; acked together."""
    batches = []

    async def handle(jobs: list[Job]):
        batches.append([job.number for job in jobs])

    add_jobs(stream, *range(25))
    counts = await handled(broker, 25, handle, batch=10)

    assert batches == [list(range(10)), list(range(10, 20)), list(range(20, 25))]
    assert (counts["acked"], stream.pending_ids()) == (25, [])


async def test_headers_decide_where_the_codec_says_so(broker, stream):
    """codec="auto" decodes each element by its own content-type; the key of by_key is in its context."""
    seen = []

    async def handle(jobs: list[Job], batch: BatchContext):
        seen.extend(zip((job.number for job in jobs), (ctx.partition_key for ctx in batch.contexts), strict=True))

    add_jobs(stream, 1)
    stream.add(msgspec.msgpack.encode(Job(2)), content_type="application/msgpack")
    await handled(broker, 2, handle, codec="auto", by_key=lambda job: f"key-{job.number}")

    assert sorted(seen) == [(1, b"key-1"), (2, b"key-2")]


async def test_what_a_batch_knows(broker, stream):
    """Where it comes from, its ids in order, each element's context, the app's state, and publishing."""
    seen = []

    async def handle(bodies: list[bytes], *, batch: BatchContext):
        assert [ctx.payload for ctx in batch.contexts] == bodies == [b"a", b"b"]
        assert batch.contexts is batch.contexts
        assert tuple(ctx.entry_id for ctx in batch.contexts) == batch.entry_ids
        assert [ctx.headers["tenant"] for ctx in batch.contexts] == ["x", "y"]
        await batch.publish(b"done", "next")
        seen.append((batch.stream, batch.group, batch.consumer, batch.subscription, batch.state.name, batch.lost))

    broker.add_subscriber(recovering(), handle, batch=2, name="sums")
    stream.add("a", tenant="x")
    stream.add("b", tenant="y")
    app = RustStream("test", broker)
    app.state.name = "made at the start"
    async with app:
        await eventually_async(lambda: seen)

    [(name, group, consumer, subscription, state, lost)] = seen
    assert (name, group, subscription, state, lost) == ("s", "g", "sums", "made at the start", False)
    assert consumer.startswith("ruststream-")
    assert stream.client.xlen("next") == 1


async def test_entries_of_a_key_are_in_order_and_in_one_batch_at_a_time(any_server, broker, stream):
    """by_key: each worker gathers its own batch; no key is in two of them at once, and its order is kept."""
    order, running, most = {}, set(), [0]

    async def handle(bodies: list[bytes], batch: BatchContext):
        keys = {ctx.partition_key for ctx in batch.contexts}
        assert not keys & running
        running.update(keys)
        most[0] = max(most[0], len(running))
        await asyncio.sleep(0.002)
        for body, ctx in zip(bodies, batch.contexts, strict=True):
            order.setdefault(ctx.partition_key, []).append(int(body))
        running.difference_update(keys)

    stream.add_numbered(1, 1000, keys=20)
    counts = await handled(broker, 1000, handle, workers=4, by_key=True, batch=16)

    assert counts["acked"] == 1000
    assert sum(map(len, order.values())) == 1000
    assert all(numbers == sorted(numbers) for numbers in order.values())
    assert most[0] > 1


async def test_workers_run_batches_side_by_side(broker, stream):
    """Without a key four workers have four batches at once, and each entry is in one."""
    at_once, seen, together = [0], [], asyncio.Event()

    async def handle(bodies: list[bytes]):
        at_once[0] += 1
        if at_once[0] == 4:
            together.set()
        await together.wait()
        seen.extend(bodies)

    stream.add_numbered(1, 40)
    await handled(broker, 40, handle, workers=4, batch=10)

    assert sorted(map(int, seen)) == list(range(1, 41))


async def test_sync_batch_handlers_run_in_threads(broker, stream):
    """A `def` handler of lists: in a thread, with its context, and the same answers."""
    threads = set()

    def handle(jobs: list[Job], batch: BatchContext):
        threads.add(threading.get_ident())
        batch.settle(0, retry())
        return [None, drop(), None]

    ids = add_jobs(stream, *range(3))
    counts = await handled(broker, 3, handle, batch=3)

    assert threading.get_ident() not in threads
    assert [counts[name] for name in ("acked", "dropped", "retried")] == [1, 1, 1]
    assert stream.pending_ids() == ids[:1]


async def test_no_batch_waits_for_what_cannot_come(broker, stream):
    """With room for one batch alone a part of it goes at once, though it might wait for an hour."""
    sizes = []

    async def handle(bodies: list[bytes]):
        sizes.append(len(bodies))

    stream.add_numbered(1, 25)
    counts = await handled(broker, 25, handle, batch=10, batch_wait=3600, max_in_flight=10)

    assert (counts["acked"], sum(sizes), max(sizes)) == (25, 25, 10)


async def test_large_batches_fill_up_by_default(broker, stream):
    """A batch of more than the default max_in_flight, in reads of 200: there is room for it to fill."""
    sizes = []

    async def handle(bodies: list[bytes]):
        sizes.append(len(bodies))

    stream.add_numbered(1, 3000)
    await handled(broker, 3000, handle, batch=1500, batch_wait=20)

    assert sizes == [1500, 1500]


async def test_entries_that_come_one_by_one_fill_a_batch(broker, stream):
    """The wait is not shortened by each arrival: ten entries added in ten commands are one batch."""
    sizes = []

    async def handle(bodies: list[bytes]):
        sizes.append(len(bodies))

    broker.add_subscriber(recovering(), handle, batch=10, batch_wait=20)
    app = RustStream("test", broker)
    async with app:
        for number in range(10):
            stream.add(str(number))
            await eventually_async(lambda number=number: counts_of(app)["read"] == number + 1)
        await eventually_async(lambda: sizes == [10])


async def test_in_memory_too():
    """The in-process model gathers the same batches."""
    broker, batches = RedisBroker("memory://batches"), []

    @broker.subscriber(recovering(), batch=4, batch_wait=1, by_key=True)
    async def handle(jobs: list[Job], batch: BatchContext):
        batches.append([job.number for job in jobs])
        return [drop() if job.number == 2 else None for job in jobs]

    app = RustStream("memory", broker)
    async with app:
        await broker.publish_many([Job(number) for number in range(6)], "s", key=lambda _: "k")
        counts = await settled(app, 6)

    assert batches == [[0, 1, 2, 3], [4, 5]]
    assert (counts["acked"], counts["dropped"]) == (5, 1)


async def test_two_ways_of_subscribing_side_by_side(broker, stream):
    """A group that takes one by one and one that takes batches, on one stream: each sees all."""
    one_by_one, batches = [], []

    async def single(job: Job, ctx: Context):
        one_by_one.append(job.number)

    async def many(jobs: list[Job]):
        batches.extend(job.number for job in jobs)

    broker.add_subscriber(recovering(), single)
    broker.add_subscriber(
        RedisStream.recovering("s", group="h", min_idle=30, start_id=StreamStart.BEGINNING), many, batch=7
    )
    add_jobs(stream, *range(20))
    async with RustStream("test", broker):
        await eventually_async(lambda: one_by_one == batches == list(range(20)))
