"""Batch handlers: what they are given, what they may return, and that no element is lost or settled for another."""

import asyncio
import functools
import logging
import subprocess
import sys
import threading

import msgspec
import pytest

from eventually import eventually, eventually_async
from ruststream import BatchContext, Context, RustStream, Settle, ack, dead_letter, drop, leave, retry
from ruststream.errors import AlreadySettledError
from ruststream.redis import RedisBroker, RedisStream, StreamStart


class Job(msgspec.Struct):
    number: int


def recovering(min_idle: float = 30, **options: object) -> RedisStream:
    return RedisStream.recovering("s", group="g", min_idle=min_idle, start_id=StreamStart.BEGINNING, **options)


def add_jobs(stream, *numbers, **headers):
    return [stream.add(msgspec.json.encode(Job(number)), **headers) for number in numbers]


def counts_of(app):
    return app.health().subscriptions[0].counts


async def settled(app, read):
    """Wait until so many were read and nothing is left to do; return the counts."""
    await eventually_async(lambda: counts_of(app)["read"] >= read and counts_of(app)["in_flight"] == 0, timeout=15)
    return counts_of(app)


async def handled(broker, read, handler, source=None, **options):
    """Run an app with this batch handler until what was read is settled; return its counts."""
    broker.add_subscriber(source or recovering(), handler, **{"batch": 100, **options})
    app = RustStream("test", broker)
    async with app:
        return await settled(app, read)


def errors(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


async def test_full_batches_in_order_and_what_is_left_after_the_wait(any_server, broker, stream):
    """Ten, ten and, once nothing came for a while, five; acked together."""
    batches = []

    async def handle(jobs: list[Job]):
        batches.append([job.number for job in jobs])

    add_jobs(stream, *range(25))
    counts = await handled(broker, 25, handle, batch=10)

    assert batches == [list(range(10)), list(range(10, 20)), list(range(20, 25))]
    assert (counts["acked"], stream.pending_ids()) == (25, [])


@pytest.mark.parametrize("suspends", [False, True])
async def test_one_outcome_for_all_or_one_for_each(any_server, broker, stream, suspends):
    """None and ack() ack all; an outcome is that of all; a list, or a tuple, has one for each in the list's order."""
    answers = [None, ack(), drop(), [None, ack(), drop(), retry(), leave(), None], (drop(),) * 6]

    async def handle(jobs: list[Job]):
        if suspends:
            await asyncio.sleep(0)
        return answers.pop(0)

    ids = add_jobs(stream, *range(30))
    counts = await handled(broker, 30, handle, batch=6)

    assert [counts[name] for name in ("acked", "dropped", "retried", "left")] == [15, 13, 1, 1]
    assert stream.pending_ids() == ids[21:23]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([None], ["a list of 1 outcomes for 3 elements"]),
        ([None] * 4, ["a list of 4 outcomes for 3 elements"]),
        ([], ["a list of 0 outcomes for 3 elements"]),
        ([None, "drop", None], ["'drop' among the outcomes"]),
        ([None, retry, None], ["among the outcomes"]),
        ("acked", ["'acked'"]),
        (True, ["True"]),
        ({1: drop()}, ["drop()"]),
    ],
)
async def test_what_is_no_answer_keeps_every_entry(broker, stream, caplog, value, words):
    """A list of the wrong length, or with something else in it: nobody can tell whose outcome is whose."""

    async def handle(jobs: list[Job]):
        return value

    ids = add_jobs(stream, 1, 2, 3)
    counts = await handled(broker, 3, handle)

    [text] = errors(caplog)
    assert all(word in text for word in ["batch of 3 entries", ids[0], ids[-1], "Outcome of all: leave()", *words])
    assert (counts["left"], stream.pending_ids()) == (3, ids)


async def test_an_element_that_does_not_decode_is_settled_alone(any_server, broker, stream, caplog):
    """B014: the others go on as a batch without it, and it has the outcome of on_decode_error."""
    batches = []

    async def handle(jobs: list[Job], batch: BatchContext):
        batches.append([job.number for job in jobs])
        assert len(jobs) == len(batch) == len(batch.contexts)

    first = add_jobs(stream, 1)
    bad = [stream.add("{broken"), stream.add_fields({"colour": "red"})]
    stream.add_fields({"number": 2})
    add_jobs(stream, 3)
    counts = await handled(broker, 5, handle, on_decode_error=drop())

    assert batches == [[1, 2, 3]]
    assert (counts["acked"], counts["dropped"]) == (3, 2)
    assert [entry in text for entry, text in zip(bad, errors(caplog), strict=True)] == [True, True]
    assert first[0] not in "".join(errors(caplog))


async def test_a_batch_of_which_nothing_decodes_calls_nobody(broker, stream):
    """Each stays pending by default, and what comes after them is a batch as ever."""
    batches = []

    async def handle(jobs: list[Job]):
        batches.append(jobs)

    bad = [stream.add("{broken") for _ in range(7)]
    add_jobs(stream, 1)
    counts = await handled(broker, 8, handle, batch=3)

    assert batches == [[Job(1)]]
    assert (counts["left"], stream.pending_ids()) == (7, bad)


async def test_headers_decide_where_the_codec_says_so(broker, stream):
    """codec="auto" decodes each element by its own content-type; the key of by_key is in its context."""
    seen = []

    async def handle(jobs: list[Job], batch: BatchContext):
        seen.extend(zip((job.number for job in jobs), (ctx.partition_key for ctx in batch.contexts), strict=True))

    add_jobs(stream, 1)
    stream.add(msgspec.msgpack.encode(Job(2)), content_type="application/msgpack")
    await handled(broker, 2, handle, codec="auto", by_key=lambda job: f"key-{job.number}")

    assert sorted(seen) == [(1, b"key-1"), (2, b"key-2")]


async def test_an_element_whose_key_cannot_be_computed_fails_alone(broker, stream, caplog):
    """What by_key raises is that element's failure, by on_error; the others are a batch."""
    batches = []

    def key_of(job: Job):
        return 100 // job.number

    async def handle(jobs: list[Job]):
        batches.append([job.number for job in jobs])

    ids = add_jobs(stream, 1, 0, 1)
    counts = await handled(broker, 3, handle, by_key=key_of, on_error={ZeroDivisionError: drop()})

    assert (batches, counts["acked"], counts["dropped"]) == ([[1, 1]], 2, 1)
    [text] = errors(caplog)
    assert ids[1] in text


@pytest.mark.parametrize("suspends", [False, True])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (LookupError(), {"dropped": 3}),
        (ValueError(), {"left": 3}),
        (ExceptionGroup("two", [LookupError(), ConnectionError()]), {"retried": 3}),
        (Settle(retry()), {"retried": 3}),
        (asyncio.CancelledError(), {"left": 3}),
    ],
)
async def test_what_it_raises_is_the_failure_of_each_element(broker, stream, caplog, error, expected, suspends):
    """B015: on_error applies to each; the log has one line, which names the batch; the lane goes on."""
    raised = []

    async def handle(jobs: list[Job]):
        if suspends:
            await asyncio.sleep(0)
        if not raised:
            raised.append(error)
            raise error

    add_jobs(stream, *range(4))
    rules = {LookupError: drop(), ConnectionError: retry()}
    counts = await handled(broker, 4, handle, batch=3, on_error=rules)

    assert {name: counts[name] for name in expected} == expected
    assert counts["acked"] == 1
    assert len(errors(caplog)) == (0 if isinstance(error, Settle) else 1)


async def test_an_element_comes_back_after_the_delay_it_was_given(any_server, broker, stream):
    """Each element has a delay of its own, shorter than min_idle; the others do not wait for it."""
    seen = []

    async def handle(jobs: list[Job], batch: BatchContext):
        first = [ctx.delivery_count == 1 for ctx in batch.contexts]
        seen.extend((job.number, ctx.delivery_count) for job, ctx in zip(jobs, batch.contexts, strict=True))
        return [retry(after=job.number / 5) if job.number and new else None
                for job, new in zip(jobs, first, strict=True)]  # fmt: skip

    add_jobs(stream, 0, 1, 2)
    counts = await handled(broker, 5, handle, batch=3)

    assert seen == [(0, 1), (1, 1), (2, 1), (1, 2), (2, 2)]
    assert (counts["acked"], stream.pending_ids()) == (3, [])


async def test_elements_go_to_the_dead_letters_one_by_one(any_server, broker, stream):
    """One that does not decode, one that the handler gives up, and one by hand: each with its own reason."""

    async def handle(jobs: list[Job], batch: BatchContext):
        batch.settle(2, dead_letter("by hand"))
        return [None, dead_letter("refused"), None]

    add_jobs(stream, 1, 2)
    bad = stream.add("{broken")
    add_jobs(stream, 3)
    counts = await handled(broker, 4, handle, batch=4, dead_letter="s.dlq")

    letters = {fields[b"h:x-dead-letter-reason"]: fields for _, fields in stream.client.xrange("s.dlq")}
    assert (counts["acked"], stream.pending_ids(), len(letters)) == (1, [], 2)
    assert letters[b"decode-error"][b"h:x-dead-letter-entry-id"] == bad.encode()
    assert sorted(fields[b"_payload"] for _, fields in stream.client.xrange("s.dlq")) == [
        b'{"number":2}',
        b'{"number":3}',
        b"{broken",
    ]


async def test_a_failed_batch_goes_to_the_dead_letters_whole(broker, stream):
    """on_error: each element is a letter of its own, with the error of the call."""

    async def handle(jobs: list[Job]):
        raise LookupError("no such account")

    add_jobs(stream, 1, 2, 3)
    await handled(broker, 3, handle, batch=3, dead_letter="s.dlq", on_error=dead_letter("lookup"))

    letters = [fields for _, fields in stream.client.xrange("s.dlq")]
    assert [fields[b"_payload"] for fields in letters] == [b'{"number":1}', b'{"number":2}', b'{"number":3}']
    assert all(b"no such account" in fields[b"h:x-dead-letter-error"] for fields in letters)


async def test_elements_settled_by_hand_keep_their_outcome(broker, stream):
    """By index, also from the end, or by context; what the handler then says is for the others."""

    async def handle(jobs: list[Job], batch: BatchContext):
        batch.settle(0, drop())
        batch.settle(-1, retry())
        batch.settle(batch.contexts[1], drop())
        batch.contexts[2].settle(leave())
        with pytest.raises(AlreadySettledError):
            batch.settle(1, drop())
        await asyncio.sleep(0)
        assert not batch.settled

    ids = add_jobs(stream, *range(6))
    counts = await handled(broker, 6, handle, batch=6)

    assert [counts[name] for name in ("acked", "dropped", "retried", "left")] == [2, 2, 1, 1]
    assert stream.pending_ids() == [ids[2], ids[5]]


async def test_a_list_says_nothing_new_of_what_was_settled_by_hand(broker, stream, caplog):
    """None for it is fine; an outcome for it comes too late, and is said to."""

    async def handle(jobs: list[Job], batch: BatchContext):
        batch.settle(0, drop())
        batch.settle(1, drop())
        return [None, retry(), retry()]

    ids = add_jobs(stream, *range(3))
    counts = await handled(broker, 3, handle, batch=3)

    assert (counts["dropped"], counts["retried"]) == (2, 1)
    [text] = errors(caplog)
    assert "too late" in text
    assert ids[1] in text


async def test_an_outcome_of_another_entry_is_refused(broker, stream, caplog):
    """A context of an earlier batch, an index that there is not, something else: an error, and nothing is settled."""
    earlier = []

    async def handle(jobs: list[Job], batch: BatchContext):
        if not earlier:
            earlier.extend(batch.contexts)
            return leave()
        for which, error in [(earlier[0], ValueError), (3, IndexError), (-4, IndexError), (True, TypeError)]:
            with pytest.raises(error):
                batch.settle(which, drop())
        with pytest.raises(TypeError):
            batch.settle("0", drop())
        with pytest.raises(TypeError):
            batch.settle(0, "drop")
        with pytest.raises(AlreadySettledError):
            earlier[0].settle(drop())
        return None

    ids = add_jobs(stream, *range(6))
    counts = await handled(broker, 6, handle, batch=3)

    assert (counts["left"], counts["acked"], errors(caplog)) == (3, 3, [])
    assert stream.pending_ids() == ids[:3]


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
