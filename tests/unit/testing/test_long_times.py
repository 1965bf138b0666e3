"""Long times pass quickly where little happens in them, and end with an error where too much does."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from ruststream import Backoff, Context, Idempotent, MarkState, RustStream, ack, retry
from ruststream.errors import NotQuiescentError
from ruststream.redis import RedisBroker, RedisStream
from ruststream.testing import TestApp, pace

DAY = 86_400
WEEK = 7 * DAY


class Handlers:
    """One that is held open until it is released, and one that always retries."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.times: list[float] = []

        async def held(value: int):
            await self.release.wait()

        async def again(value: int, ctx: Context):
            self.times.append(ctx.timestamp + ctx.lag)
            return retry()

        self.held, self.again = held, again


def app_of(*subscribers: tuple[RedisStream, Any], **options: Any) -> RustStream:
    broker = RedisBroker("redis://localhost:1")
    for source, handler in subscribers:
        broker.add_subscriber(source, handler, **options)
    return RustStream("app", broker)


def source(stream: str, min_idle: float) -> RedisStream:
    return RedisStream.recovering(stream, min_idle=min_idle, group="g")


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What each look of an `advance` at the loop came to: whether anything went on."""
    seen: list[bool] = []
    rest = pace.ModelPace._rest

    async def noted(self: pace.ModelPace, held: Any) -> bool:
        moved = await rest(self, held)
        seen.append(moved)
        return moved

    monkeypatch.setattr(pace.ModelPace, "_rest", noted)
    return seen


async def test_a_week_with_a_held_handler_is_renewed_without_turns_of_the_loop(rests: list[bool]):
    handlers = Handlers()
    async with TestApp(app_of((source("s", 30), handlers.held))) as t:
        entry_id = await t.publish(1, "s", wait=False)
        rests.clear()
        began = time.perf_counter()
        await t.advance(WEEK)
        took = time.perf_counter() - began
        (row,) = t.pending("s", "g")
        assert (row.entry_id, row.delivery_count, row.idle <= 5) == (entry_id, 1, True)
        handlers.release.set()
        await t.settle()
        t.subscriber(handlers.held).assert_called(1).assert_outcome(ack())
    assert len(rests) < WEEK / 5 / 100, "there were 120,960 renewals"
    assert took < 10, "0.5 s where nothing else runs"


async def test_what_falls_due_amid_renewals_happens_at_its_time():
    """The same retries at the same times, whether a handler is held beside them or not."""

    async def run(held: bool) -> list[float]:
        handlers = Handlers()
        async with TestApp(app_of((source("s", 0.06), handlers.held), (source("r", 17.003), handlers.again))) as t:
            if held:
                await t.publish(1, "s", wait=False)
            await t.publish(1, "r")
            began = handlers.times[0]
            await t.advance(100)
            handlers.release.set()
            return [round(at - began, 3) for at in handlers.times]

    alone = await run(held=False)
    assert alone == [0, 17.003, 34.006, 51.009, 68.012, 85.015]
    assert await run(held=True) == alone


async def test_an_entry_that_is_stolen_late_is_missed_at_the_next_renewal():
    async def handler(value: int, ctx: Context):
        await ctx.lease_lost.wait()

    async with TestApp(app_of((source("s", 30), handler))) as t:
        await t.publish(1, "s", wait=False)
        await t.advance(DAY)
        t.steal(t.subscriber(handler).calls[0])
        await t.advance(5)
        assert t.subscriber(handler).calls[0].ended


async def test_a_handler_goes_on_amid_renewals_of_its_entry():
    """Time does not run away from a handler that has a few turns of the loop to go."""
    ended: list[float] = []

    async def handler(value: int, ctx: Context):
        for _ in range(10):
            await asyncio.sleep(0)
        ended.append(t.now - began)

    async with TestApp(app_of((source("s", 6), handler))) as t:
        began = t.now
        await t.publish(1, "s", wait=False)
        await t.advance(DAY, wait=False)
    assert len(ended) == 1
    assert ended[0] < 60


async def test_what_nobody_recovers_is_renewed_for_nobody(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pace, "ADVANCE_TIMES", 10)
    handlers = Handlers()
    async with TestApp(app_of((RedisStream("s", group="g"), handlers.held))) as t:
        await t.publish(1, "s", wait=False)
        await t.advance(WEEK)
        handlers.release.set()
        await t.settle()
        t.subscriber(handlers.held).assert_called(1)


async def test_no_marks_are_renewed_where_there_are_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pace, "ADVANCE_TIMES", 10)
    handlers = Handlers()
    handlers.release.set()
    app = app_of((source("s", 30), handlers.held), idempotency=Idempotent(ttl=WEEK, lease=1))
    async with TestApp(app) as t:
        for _ in range(2):
            await t.publish(1, "s", headers={"message-id": "m"})
            await t.advance(DAY)
        t.subscriber(handlers.held).assert_called(1)


class Renewals:
    """Lets every message be handled, and notes when leases were renewed."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.now: Callable[[], float] = time.time

    async def begin(self, *_: Any) -> MarkState:
        return MarkState.STARTED

    async def finish(self, *_: Any) -> None:
        pass

    async def release(self, *_: Any) -> None:
        pass

    async def renew(self, *_: Any) -> None:
        self.times.append(self.now())


async def test_a_mark_is_renewed_from_when_its_message_came_also_after_a_long_time_without_any():
    handlers, store = Handlers(), Renewals()
    app = app_of((source("s", 600), handlers.held), idempotency=Idempotent(ttl=WEEK, lease=6, store=store))
    async with TestApp(app) as t:
        store.now = lambda: t.now
        for _ in range(2):
            await t.advance(DAY)
            assert store.times == []
            handlers.release.clear()
            await t.publish(1, "s", wait=False)
            began = t.now
            await t.advance(3.5, wait=False)
            assert [round(at - began, 3) for at in store.times] == [1, 2, 3]
            handlers.release.set()
            await t.settle()
            store.times.clear()


async def test_more_calls_than_an_advance_may_lead_to_are_an_error_that_names_the_subscription_and_the_time():
    async def run() -> tuple[str, float, int]:
        handlers = Handlers()
        app = app_of((source("s", 0.001), handlers.again), (source("r", 60), handlers.held))
        async with TestApp(app, max_calls=20) as t:
            await t.publish(1, "s")
            began = t.now
            with pytest.raises(NotQuiescentError) as failed:
                await t.advance(DAY)
            stopped, calls = t.now - began, len(handlers.times)
            await t.advance(0.1)
            assert len(handlers.times) == calls + 100, "the test can go on from there"
            return str(failed.value), round(stopped, 3), calls

    text, stopped, calls = await run()
    assert (stopped, calls) == (0.201, 202)
    for part in ("advance(86400) stopped 0.201 s on", "again was called 201 times", "min_idle=0.001", "max_calls=20"):
        assert part in text
    assert await run() == (text, stopped, calls)


async def test_as_many_calls_as_an_advance_may_lead_to_are_no_error():
    handlers = Handlers()
    async with TestApp(app_of((source("s", 1), handlers.again)), max_calls=20) as t:
        await t.publish(1, "s")
        await t.advance(20 * pace.ADVANCE_CALLS)
        await t.advance(20 * pace.ADVANCE_CALLS)
        with pytest.raises(NotQuiescentError, match="stopped 201 s on"):
            await t.advance(20 * pace.ADVANCE_CALLS + 1)


def test_an_entry_may_be_retried_each_second_of_a_day():
    default = TestApp.__init__.__kwdefaults__["max_calls"]  # type: ignore[misc]
    assert default * pace.ADVANCE_CALLS >= DAY


async def test_retries_with_growing_delays_are_bounded_as_well():
    handlers = Handlers()
    app = app_of((RedisStream("s", group="g"), handlers.again), backoff=Backoff(0.01, 0.02))
    async with TestApp(app, max_calls=5) as t:
        await t.publish(1, "s")
        with pytest.raises(NotQuiescentError, match=r"again was called 51 times.* the delay of its retries"):
            await t.advance(DAY)


async def test_timers_without_end_are_an_error_that_names_who_holds_what_they_renew(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pace, "ADVANCE_TIMES", 5_000)
    handlers = Handlers()
    async with TestApp(app_of((source("s", 0.001), handlers.held), (source("r", 60), handlers.again))) as t:
        await t.publish(1, "s", wait=False)
        with pytest.raises(NotQuiescentError) as failed:
            await t.advance(DAY)
        await t.advance(1)
        t.subscriber(handlers.held).assert_called(1)
        handlers.release.set()
        await t.settle()
    for part in ("advance(86400) stopped 5.", "more than 5000 times", "handler of held is held open", "min_idle=0.001"):
        assert part in str(failed.value)
