"""`max_attempts`: how often handlers are started is counted and limited, and nothing else counts."""

import asyncio
import itertools

import pytest

from chaos.places import places
from eventually import eventually_async
from integration.attempts import Place, broker_of, counts
from integration.conftest import Stream
from ruststream import Context, RustStream, leave, retry
from ruststream.redis import RedisStream

PLACES: dict[str, tuple[str | None, tuple[str, ...]]] = {
    **places(
        "claiming-8.10",
        "recovering-8.10",
        "recovering-8.2",
        "recovering-7.0",
        "recovering-valkey",
        "new+reclaim-8.10",
        "new+reclaim-7.0",
    ),
    "claiming-memory": (None, ("claiming",)),
    "new+reclaim-memory": (None, ("new", "reclaim")),
}
names = itertools.count()


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


async def test_many_that_are_given_up_at_once_do_not_flood_the_log(caplog):
    """Each is given up; the log says so of the first ones, and then how many more there were."""
    place = Place(f"memory://attempts-{next(names)}", ("claiming",), None)

    async def handle(body: bytes):
        return retry()

    app = place.app(handle, max_attempts=1)
    async with app:
        await broker_of(app).publish_many([b"x"] * 300, "s")
        await eventually_async(lambda: counts(app, "dropped") == 300)

    lines = [record.getMessage() for record in caplog.records if "was the last" in record.getMessage()]
    assert lines[0].endswith(": attempt 1 was the last. Outcome: drop(), not retry()")
    assert 10 <= len(lines) < 100


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
