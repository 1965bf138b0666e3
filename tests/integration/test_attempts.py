"""`max_attempts`: how often handlers are started is counted and limited, and nothing else counts."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from eventually import eventually_async
from integration.conftest import Stream
from ruststream import Context, RustStream, drop, leave, retry
from ruststream.redis import RedisBroker, RedisStream

MIN_IDLE = 0.2
MARKS = "{s}:g:attempts"
PLACES = {
    "claiming-8.10": ("redis-8.10", ("claiming",)),
    "recovering-8.10": ("redis-8.10", ("recovering",)),
    "recovering-8.2": ("redis-8.2", ("recovering",)),
    "recovering-7.0": ("redis-7.0", ("recovering",)),
    "recovering-valkey": ("valkey-9.1", ("recovering",)),
    "new+reclaim-8.10": ("redis-8.10", ("new", "reclaim")),
    "new+reclaim-7.0": ("redis-7.0", ("new", "reclaim")),
    "claiming-memory": (None, ("claiming",)),
    "new+reclaim-memory": (None, ("new", "reclaim")),
}
names = itertools.count()


@dataclass
class Place:
    """A server or the model, and how the group is read there."""

    url: str
    modes: tuple[str, ...]
    stream: Stream | None

    def app(self, handler: Callable[..., Any], min_idle: float = MIN_IDLE, **options: Any) -> RustStream:
        broker = RedisBroker(self.url)
        options = {"max_attempts": 3, "on_exhausted": drop(), **options}
        for mode in self.modes:
            given = {} if mode == "new" else {"min_idle": min_idle}
            source = getattr(RedisStream, mode)("s", group="g", start_id="0", **given)
            broker.add_subscriber(source, handler, name=mode, **options)
        return RustStream("test", broker)

    async def nothing_left(self, app: RustStream) -> None:
        """Nothing is pending, and no mark is left."""
        await eventually_async(lambda: counts(app, "in_flight") == 0)
        if self.stream is not None:
            stream = self.stream
            await eventually_async(lambda: stream.pending_ids() == [])
            await eventually_async(lambda: not stream.client.exists(MARKS))


def counts(app: RustStream, name: str) -> int:
    return sum(subscription.counts[name] for subscription in app.health().subscriptions)


def broker_of(app: RustStream) -> RedisBroker:
    return app.brokers[0]


@pytest.fixture(params=list(PLACES))
def place(request, make_server, stream_of):
    name, modes = PLACES[request.param]
    if name is None:
        return Place(f"memory://attempts-{next(names)}", modes, None)
    server = make_server(name)
    return Place(server.url, modes, stream_of(server))


@pytest.mark.parametrize("cap", [1, 2, 3])
async def test_a_handler_that_asks_for_a_retry_is_called_exactly_so_often(place, cap):
    """B012: as many calls as the cap says, the first one included, then given up; others are not held up."""
    calls = []

    async def handle(body: bytes, ctx: Context):
        calls.append((body, ctx.delivery_count))
        return retry() if body == b"poison" else None

    app = place.app(handle, max_attempts=cap)
    async with app:
        for body in [b"a", b"poison", b"b"]:
            await broker_of(app).publish(body, "s")
        await eventually_async(lambda: counts(app, "dropped") == 1)
        await place.nothing_left(app)

    assert [count for body, count in calls if body == b"poison"] == list(range(1, cap + 1))
    assert sorted(body for body, _ in calls if body != b"poison") == [b"a", b"b"]


@pytest.mark.parametrize("outcome", ["raises", "leaves"])
async def test_a_handler_that_fails_is_called_exactly_so_often(place, outcome):
    """An error, or an entry left pending, is an attempt like a retry: three calls on the entry itself."""
    calls = []

    async def handle(body: bytes, ctx: Context):
        calls.append(ctx.delivery_count)
        if outcome == "raises":
            raise ValueError("no")
        return leave()

    app = place.app(handle)
    async with app:
        await broker_of(app).publish(b"x", "s")
        await eventually_async(lambda: counts(app, "dropped") == 1)
        await place.nothing_left(app)

    assert calls == [1, 2, 3]


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("cap", [1, 2, 3])
async def test_what_only_sat_in_a_prefetch_is_never_given_up(any_server, stream, cap, workers):
    """Ten entries that three consumers read and died with stand at 4 on the server; none of them was ever started."""
    place = Place(any_server.url, ("recovering",), stream)
    stream.create_group()
    ids = [stream.add(str(number)) for number in range(10)]
    stream.deliver()
    for consumer in ["second", "third", "fourth"]:
        stream.claim(consumer, *ids)
    assert {row["times_delivered"] for row in stream.pending()} == {4}
    calls = []

    async def handle(body: bytes, ctx: Context):
        calls.append((str(ctx.entry_id), ctx.delivery_count))

    app = place.app(handle, max_attempts=cap, workers=workers)
    async with app:
        await eventually_async(lambda: len(calls) == 10)
        await place.nothing_left(app)
        assert counts(app, "exhausted") == 0

    assert sorted(calls) == [(entry, 5) for entry in ids]


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


async def test_handing_back_at_stop_never_counts(any_server, stream):
    """Five stops while the entry waits behind a handler: it is as if nobody had read it."""
    place = Place(any_server.url, ("recovering",), stream)
    stream.create_group()
    runs: list[bytes] = []

    for stop in range(5):
        slow, end = f"slow-{stop}".encode(), asyncio.Event()

        async def handle(body: bytes, slow: bytes = slow, end: asyncio.Event = end):
            runs.append(body)
            if body == slow:
                await end.wait()

        stream.add(slow)
        if stop == 0:
            stream.add("waits")
            stream.deliver()
        app = place.app(handle, max_attempts=2, min_idle=0.05)
        started = asyncio.Event()

        async def serve(app: RustStream = app, slow: bytes = slow, started: asyncio.Event = started):
            async with app:
                await eventually_async(lambda: slow in runs)
                started.set()

        task = asyncio.create_task(serve())
        await started.wait()
        await asyncio.sleep(0)
        end.set()
        await task

    async def last(body: bytes):
        runs.append(body)

    app = place.app(last, max_attempts=2, min_idle=0.05)
    async with app:
        await eventually_async(lambda: stream.pending_ids() == [])
        await place.nothing_left(app)
    assert runs.count(b"waits") == 1


async def test_a_connection_that_is_lost_counts_nothing(any_server, stream):
    """All connections are cut again and again while an entry waits and another one runs."""
    place = Place(any_server.url, ("recovering",), stream)
    stream.create_group()
    ids = [stream.add(str(number)) for number in range(4)]
    stream.deliver()
    runs = []

    async def handle(body: bytes, ctx: Context):
        runs.append(str(ctx.entry_id))
        for _ in range(3):
            stream.client.client_kill_filter(_type="normal", skipme=True)
            await asyncio.sleep(0.02)

    app = place.app(handle, max_attempts=1, min_idle=1)
    async with app:
        await eventually_async(lambda: stream.pending_ids() == [], timeout=20)
        await place.nothing_left(app)
        assert counts(app, "exhausted") == 0
    assert sorted(runs) == ids


async def test_two_consumers_count_together(any_server, stream):
    """The starts of one entry are counted wherever it runs."""
    place = Place(any_server.url, ("recovering",), stream)
    calls = []

    async def handle(body: bytes, ctx: Context):
        calls.append(ctx.consumer)
        return leave()

    one, two = place.app(handle, max_attempts=6), place.app(handle, max_attempts=6)
    async with one, two:
        stream.add("x")
        await eventually_async(lambda: counts(one, "dropped") + counts(two, "dropped") == 1, timeout=20)
        await place.nothing_left(one)
    assert len(calls) == 6


async def test_copies_carry_their_attempts_and_not_their_deliveries(any_server, stream):
    """A copy counts on from how often handlers were started, however often the entry was delivered before that."""
    place = Place(any_server.url, ("new", "reclaim"), stream)
    stream.create_group()
    entry = stream.add("x")
    stream.deliver()
    stream.claim("second", entry)
    stream.claim("third", entry)
    calls = []

    async def handle(body: bytes, ctx: Context):
        calls.append(ctx.delivery_count)
        return retry()

    app = place.app(handle)
    async with app:
        await eventually_async(lambda: counts(app, "dropped") == 1)
        await place.nothing_left(app)
    assert calls == [4, 5, 6]


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


LAST = {
    "raises": "ValueError: no",
    "returns": "TypeError: the handler returned 'what'",
    "returns too few": "ValueError: the handler returned a list of 0 outcomes for 1 elements",
}


@pytest.mark.parametrize("fails", LAST)
async def test_a_failure_of_the_last_attempt_is_said_once_and_kept(any_server, stream, caplog, fails):
    """One line tells of the failure and what really follows, and the letter names the failure, whatever it was."""
    place = Place(any_server.url, ("recovering",), stream)

    async def handle(body: bytes):
        if fails == "raises":
            raise ValueError("no")
        return "what"

    async def handle_batch(bodies: list[bytes]):
        return []

    batch = {"batch": 5} if "too few" in fails else {}
    app = place.app(handle_batch if batch else handle, dead_letter="dlq", on_exhausted=None, max_attempts=2, **batch)
    async with app:
        entry = stream.add("x")
        await eventually_async(lambda: counts(app, "dead_lettered") == 1)
        await place.nothing_left(app)
    [(_, fields)] = Stream(stream.client, "dlq").entries()
    assert fields[b"h:x-dead-letter-reason"] == b"max-attempts"
    assert fields[b"h:x-dead-letter-error"].decode() == LAST[fails]
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [entry in line for line in lines] == [True, True], "one line for each attempt"
    assert lines[0].endswith(": leave()")
    assert lines[1].endswith(": dead_letter(), not leave(): attempt 2 was the last")


@pytest.mark.parametrize("fails", ["retries", "raises"])
async def test_what_has_used_up_its_attempts_is_dead_lettered(place, fails):
    """B012, research 11 no. 32: three calls, one dead letter of the reason max-attempts, with the last error."""
    calls, letters = [], []

    async def handle(body: bytes, ctx: Context):
        calls.append(ctx.delivery_count)
        if fails == "raises":
            raise ValueError(f"no. {len(calls)}")
        return retry()

    app = place.app(handle, dead_letter="dlq", on_exhausted=None)

    @broker_of(app).subscriber(RedisStream.new("dlq", group="g", start_id="0"))
    async def letter(body: bytes, ctx: Context):
        letters.append((body, dict(ctx.headers)))

    async with app:
        entry = await broker_of(app).publish(b"x", "s", headers={"trace": "t"})
        await eventually_async(lambda: len(letters) == 1)
        await place.nothing_left(app)

    assert calls == [1, 2, 3]
    [(body, headers)] = letters
    assert (body, headers["trace"], headers["x-dead-letter-reason"]) == (b"x", "t", "max-attempts")
    assert headers["x-dead-letter-deliveries"] == "3"
    assert headers.get("x-dead-letter-error") == ("ValueError: no. 3" if fails == "raises" else None)
    assert "x-ruststream-attempts" not in headers
    if place.modes[0] != "new":
        assert headers["x-dead-letter-entry-id"] == str(entry)


async def test_an_exhausted_entry_waits_for_a_dead_letter_stream_that_refuses(any_server, stream, caplog):
    """It stays pending and is not run again; once the stream takes it, it goes there."""
    place = Place(any_server.url, ("recovering",), stream)
    stream.client.set("dlq", "text")
    calls = []

    async def handle(body: bytes):
        calls.append(body)
        return leave()

    app = place.app(handle, dead_letter="dlq", on_exhausted=None)
    async with app:
        stream.add("x")
        await eventually_async(lambda: counts(app, "refused") >= 4, timeout=20)
        assert len(stream.pending_ids()) == 1
        lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert not [line for line in lines if "are given up" in line], "its handler's last attempt was said"
        assert [line for line in lines if "refused to dead-letter to dlq 1 entries" in line]
        stream.client.delete("dlq")
        await eventually_async(lambda: stream.client.exists("dlq"), timeout=10)
        await place.nothing_left(app)
    assert len(calls) == 3
    assert stream.client.xlen("dlq") == 1


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


async def test_a_retry_with_a_delay_counts_as_well(any_server, stream):
    """Parked under its own id and handed over when due: three calls, and no more."""
    place = Place(any_server.url, ("recovering",), stream)
    calls = []

    async def handle(body: bytes):
        calls.append(body)
        return retry(after=0.05)

    app = place.app(handle, min_idle=30)
    async with app:
        stream.add("x")
        await eventually_async(lambda: counts(app, "dropped") == 1, timeout=10)
        await place.nothing_left(app)
    assert len(calls) == 3
