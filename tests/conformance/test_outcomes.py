"""What each outcome does with its entry."""

import pytest

from backend import HALF, MIN_IDLE, Backend
from ruststream import Backoff, Context, Outcome, RustStream, Settle, ack, drop, leave, retry
from ruststream.errors import AlreadySettledError
from ruststream.redis import RedisStream

NEW = RedisStream.new("s", group="g", min_idle=30)
SOURCES = {"new": NEW, "recovering": RedisStream.recovering("s", min_idle=MIN_IDLE, group="g")}


@pytest.mark.parametrize("mode", SOURCES)
@pytest.mark.parametrize("outcome", [None, ack(), drop()], ids=["None", "ack", "drop"])
async def test_what_is_settled_is_off_the_pending_list(backend: Backend, mode: str, outcome: Outcome | None):
    async def handler(body: int):
        return outcome

    async with backend(backend.app(handler, SOURCES[mode])) as t:
        await t.publish(1, "s")
        t.subscriber("main").assert_called(1).assert_outcome(outcome or ack())
        assert t.pending("s", "g") == []
        counts = t.app.health().subscriptions[0].counts
        assert (counts["acked"], counts["dropped"]) == ((0, 1) if outcome == drop() else (1, 0))
        assert t.stream("s").length == 1


@pytest.mark.parametrize("mode", SOURCES)
async def test_what_is_left_stays_pending(backend: Backend, mode: str):
    async def handler(body: int):
        return leave()

    async with backend(backend.app(handler, SOURCES[mode])) as t:
        entry_id = await t.publish(1, "s")
        (row,) = t.pending("s", "g")
        assert (row.entry_id, row.consumer, row.delivery_count) == (entry_id, "main-1", 1)


async def test_a_first_retry_of_new_is_a_copy_behind_what_came_meanwhile(backend: Backend):
    async def handler(body: str, ctx: Context):
        if body == "first" and ctx.delivery_count == 1:
            await ctx.publish("second", "s")
            return retry()
        return None

    async with backend(backend.app(handler, NEW)) as t:
        first = await t.publish("first", "s", key=b"k", headers={"mine": "7"})
        record = t.subscriber("main").assert_called(3)
        assert record.values == ["first", "second", "first"]
        copy = record.calls[2]
        assert (copy.delivery_count, copy.key, copy.headers["mine"]) == (2, b"k", "7")
        assert copy.entry_id > record.calls[1].entry_id > first
        assert t.pending("s", "g") == []


async def test_retries_of_new_wait_longer_each_time(backend: Backend):
    async def handler(body: int, ctx: Context):
        return retry() if ctx.delivery_count < 4 else None

    async with backend(backend.app(handler, NEW)) as t:
        await t.publish(1, "s")
        # At once, after 0.1 s, after 0.2 s.
        if backend.is_model:
            t.subscriber("main").assert_called(2)
        await t.advance(0.1)
        if backend.is_model:
            t.subscriber("main").assert_called(3)
        await t.advance(0.25)
        record = t.subscriber("main").assert_called(4)
        assert [call.delivery_count for call in record.calls] == [1, 2, 3, 4]
        added = [call.entry_id.ms for call in record.calls]
        assert (added[2] - added[1] >= 100, added[3] - added[2] >= 200) == (True, True)


async def test_a_backoff_sets_the_waits_of_new(backend: Backend):
    async def handler(body: int, ctx: Context):
        return retry() if ctx.delivery_count < 3 else None

    app = backend.app(handler, NEW, backoff=Backoff(0.2, 1, jitter=0))
    async with backend(app) as t:
        await t.publish(1, "s")
        if backend.is_model:
            t.subscriber("main").assert_called(1)
        await t.advance(0.2)
        await t.advance(0.4)
        added = [call.entry_id.ms for call in t.subscriber("main").assert_called(3).calls]
        assert (added[1] - added[0] >= 200, added[2] - added[1] >= 400) == (True, True)


async def test_a_delayed_retry_of_new_comes_once_and_not_before_its_time(backend: Backend):
    broker = backend.broker()
    for name in ("one", "two"):

        async def handler(body: int, ctx: Context):
            return retry(after=0.3) if ctx.delivery_count == 1 else None

        broker.add_subscriber(NEW, handler, name=name)
    async with backend(RustStream("conformance", broker)) as t:
        first = await t.publish(1, "s")
        assert t.pending("s", "g") == []
        await t.advance(0.2)
        await t.advance(0.2)
        calls = [call for name in ("one", "two") for call in t.subscriber(name).calls]
        (copy,) = [call for call in calls if call.delivery_count == 2]
        assert len(calls) == 2
        assert copy.entry_id.ms - first.ms >= 300


async def test_a_copy_is_for_its_own_group(backend: Backend):
    broker = backend.broker()

    @broker.subscriber(RedisStream.new("s", group="retries", min_idle=30), name="retries")
    async def retries(body: int, ctx: Context):
        return retry() if ctx.delivery_count == 1 else None

    @broker.subscriber(RedisStream.new("s", group="other", min_idle=30), name="other")
    async def other(body: int):
        pass

    async with backend(RustStream("conformance", broker)) as t:
        await t.publish(1, "s")
        t.subscriber(retries).assert_called(2)
        t.subscriber(other).assert_called(1)
        assert t.pending("s", "retries") == t.pending("s", "other") == []


@pytest.mark.parametrize("mode", SOURCES)
async def test_outcomes_by_hand_and_from_deep_inside(backend: Backend, mode: str):
    async def handler(body: str, ctx: Context):
        if body == "raised":
            raise Settle(drop())
        ctx.settle(drop())
        with pytest.raises(AlreadySettledError):
            ctx.settle(ack())

    async with backend(backend.app(handler, SOURCES[mode])) as t:
        await t.publish("raised", "s")
        await t.publish("by hand", "s")
        t.subscriber("main").assert_outcomes(drop(), drop())
        assert t.pending("s", "g") == []


async def test_what_is_to_happen_after_the_ack_happens_after_it(backend: Backend):
    seen = []

    async def handler(body: int, ctx: Context):
        ctx.after_ack(lambda: seen.append(len(t.pending("s", "g"))))

    async with backend(backend.app(handler, SOURCES["recovering"])) as t:
        await t.publish(1, "s")
        await t.advance(0)
        assert seen == [0]


@pytest.mark.parametrize("mode", SOURCES)
async def test_what_does_not_decode_never_reaches_its_handler_and_stays(backend: Backend, mode: str):
    async def handler(body: int):
        pass

    async with backend(backend.app(handler, SOURCES[mode])) as t:
        await t.publish("no number", "s")
        record = t.subscriber("main").assert_not_called().assert_outcome(leave())
        assert record.deliveries[0].payload == b'"no number"'
        assert len(t.pending("s", "g")) == 1


async def test_errors_end_as_their_class_says(backend: Backend):
    async def handler(body: int):
        raise (ConnectionError, KeyError, ValueError)[body]

    app = backend.app(handler, SOURCES["recovering"], on_error={OSError: retry(), LookupError: drop()})
    async with backend(app) as t:
        for body in range(3):
            await t.publish(body, "s")
        t.subscriber("main").assert_outcomes(retry(), drop(), leave())
        assert len(t.pending("s", "g")) == 2
        await t.advance(HALF)
