"""The marks of starts: when they are written, what they say after a crash, and whom they make wait."""

import asyncio

import pytest

from eventually import eventually_async
from integration.attempts import MARKS, Place, counts
from ruststream import Context, leave, retry


async def test_an_exhausted_entry_is_given_up_without_a_call(any_server, stream):
    """B013: three starts are marked and the end of the last one, which was made alone, is not known."""
    place = Place(any_server.url, ("recovering",), stream)
    stream.create_group()
    poison = stream.add("poison")
    stream.add("other")
    stream.deliver()
    stream.client.hset(MARKS, poison, "3a")
    calls = []

    async def handle(body: bytes):
        calls.append(body)

    app = place.app(handle)
    async with app:
        await eventually_async(lambda: counts(app, "dropped") == 1)
        await eventually_async(lambda: calls == [b"other"])
        await place.nothing_left(app)
        assert counts(app, "exhausted") == 1


async def test_a_start_is_marked_before_the_handler_is_called(any_server, stream):
    """What the mark says while a redelivered entry runs, and after it failed."""
    place = Place(any_server.url, ("recovering",), stream)
    stream.create_group()
    entry = stream.add("x")
    stream.deliver()
    seen = []

    async def handle(body: bytes):
        seen.append(stream.client.hget(MARKS, entry))
        return leave()

    async with place.app(handle):
        await eventually_async(lambda: len(seen) == 1)
        await eventually_async(lambda: stream.client.hget(MARKS, entry) == b"1?")
        await eventually_async(lambda: len(seen) == 3)

    assert seen == [b"1b?", b"2b?", b"3b?"]


async def test_a_stale_mark_does_no_harm(any_server, stream):
    """Left by a crash between an ack and the removal of its mark: entries of other ids do not see it."""
    place = Place(any_server.url, ("recovering",), stream)
    stream.client.hset(MARKS, "1-1", "3a")
    calls = []

    async def handle(body: bytes):
        calls.append(body)
        return retry() if len(calls) < 2 else None

    app = place.app(handle)
    async with app:
        stream.add("x")
        await eventually_async(lambda: len(calls) == 2)
        await eventually_async(lambda: stream.pending_ids() == [])
    assert stream.client.hgetall(MARKS) in ({b"1-1": b"3a"}, {})


async def test_marks_that_are_refused_stop_nothing(any_server, stream, caplog):
    """A key of another type where the marks belong: entries are handled uncounted, and the log says so."""
    place = Place(any_server.url, ("recovering",), stream)
    stream.client.set(MARKS, "text")
    stream.create_group()
    stream.add("x")
    stream.deliver()
    calls = []

    async def handle(body: bytes):
        calls.append(body)
        return leave() if len(calls) < 5 else None

    async with place.app(handle):
        await eventually_async(lambda: stream.pending_ids() == [], timeout=10)
    assert len(calls) == 5
    assert "refused to count" in caplog.text


async def test_one_that_may_have_ended_its_process_runs_last_and_alone(any_server, stream):
    """Its last attempt is made with no other redelivered entry beside it; those behind it went first."""
    place = Place(any_server.url, ("recovering",), stream)
    stream.create_group()
    suspects = [stream.add(f"suspect-{number}") for number in range(2)]
    others = [stream.add(f"other-{number}") for number in range(6)]
    stream.deliver()
    stream.client.hset(MARKS, mapping=dict.fromkeys(suspects, "2b?"))
    running, together, order = set(), [], []

    async def handle(body: bytes, ctx: Context):
        order.append(str(ctx.entry_id))
        running.add(body)
        together.append(set(running))
        await asyncio.sleep(0.02)
        running.discard(body)

    app = place.app(handle, workers=8)
    async with app:
        await eventually_async(lambda: len(order) == 8)
        await place.nothing_left(app)
    assert set(order[:6]) == set(others)
    assert all(len(seen) == 1 for seen in together if any(body.startswith(b"suspect") for body in seen))
    assert max(map(len, together)) > 1


async def test_order_within_a_key_is_kept(any_server, stream):
    """Redelivered entries of one key run in the order they were added, a suspect at their head included."""
    place = Place(any_server.url, ("recovering",), stream)
    stream.create_group()
    ids = [stream.add(str(number), redis_partition_key=f"key-{number % 3}") for number in range(60)]
    stream.deliver()
    stream.client.hset(MARKS, ids[0], "2b?")
    order: list[str] = []

    async def handle(ctx: Context):
        await asyncio.sleep(0.001)
        order.append(str(ctx.entry_id))

    app = place.app(handle, workers=8, by_key=True)
    async with app:
        await eventually_async(lambda: len(order) == 60, timeout=10)
        await place.nothing_left(app)
    for key in range(3):
        wanted = ids[key::3]
        assert [entry for entry in order if entry in wanted] == wanted


@pytest.mark.parametrize(("mark", "left"), [("1", 2), ("2", 1), ("1b?", 2), ("2a?", 1), ("2b", 1), ("3b", 1), ("3", 0)])
async def test_a_crash_anywhere_leaves_the_attempts_that_are_left(any_server, stream, mark, left):
    """Between mark and start, outcome and mark, mark and outcome: what is known then, and how many calls follow."""
    place = Place(any_server.url, ("recovering",), stream)
    stream.create_group()
    entry = stream.add("x")
    stream.deliver()
    stream.client.hset(MARKS, entry, mark)
    calls = []

    async def handle(body: bytes):
        calls.append(body)
        return leave()

    app = place.app(handle)
    async with app:
        await eventually_async(lambda: counts(app, "dropped") == 1)
        await place.nothing_left(app)
    assert len(calls) == left
