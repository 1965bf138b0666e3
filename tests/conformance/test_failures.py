"""What becomes of a delivery that fails: groups of exceptions, cancellations, elements of a batch."""

import asyncio

import pytest

from backend import MIN_IDLE, Backend
from ruststream import BatchContext, Outcome, Settle, ack, drop, leave, retry
from ruststream.errors import DecodeError, HandlerTimeoutError
from ruststream.redis import RedisStream

RECOVERING = RedisStream.recovering("s", min_idle=30, group="g")


@pytest.mark.parametrize(
    ("errors", "outcome"),
    [
        ([ValueError(), ConnectionError()], retry(after=3)),
        ([ValueError(), ValueError()], drop()),
        ([ValueError(), KeyError()], leave()),
        ([ValueError(), Settle(retry(after=5)), ConnectionError()], retry(after=5)),
    ],
    ids=["a retry before a drop", "all agree", "one without a rule", "a Settle among them"],
)
async def test_of_a_group_the_outcome_that_gives_up_least_wins(
    backend: Backend, errors: list[BaseException], outcome: Outcome
):
    async def handler(body: int):
        raise BaseExceptionGroup("several", errors)

    rules = {OSError: retry(after=3), ValueError: drop()}
    async with backend(backend.app(handler, RECOVERING, on_error=rules)) as t:
        await t.publish(1, "s")
        t.subscriber("main").assert_called(1).assert_outcome(outcome)
        assert len(t.pending("s", "g")) == (0 if outcome == drop() else 1)


async def test_a_handler_that_swallows_its_timeout_is_not_acked(backend: Backend):
    async def handler(body: int):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return retry() if body == 2 else None

    source = RedisStream.recovering("s", min_idle=30, group="g")
    async with backend(backend.app(handler, source, workers=2, timeout=0.1)) as t:
        await t.publish(1, "s", wait=False)
        await t.publish(2, "s", wait=False)
        await t.advance(0.15)
        await t.settle()
        counts = t.app.health().subscriptions[0].counts
        assert [counts[name] for name in ("acked", "left", "retried")] == [0, 1, 1]
        assert len(t.pending("s", "g")) == 2


async def test_a_timeout_of_the_subscription_is_told_from_the_handlers_own(backend: Backend):
    async def handler(body: int):
        if body == 1:
            raise TimeoutError
        await asyncio.Event().wait()

    rules = {HandlerTimeoutError: drop(), TimeoutError: leave()}
    async with backend(backend.app(handler, RECOVERING, timeout=0.1, on_error=rules)) as t:
        await t.publish(1, "s", wait=False)
        await t.publish(2, "s", wait=False)
        await t.advance(0.2)
        await t.settle()
        t.subscriber("main").assert_outcomes(leave(), drop())


async def test_an_element_that_does_not_decode_leaves_the_batch(backend: Backend):
    async def handler(bodies: list[int], batch: BatchContext):
        assert len(bodies) == len(batch)
        return [ack() if body == 1 else retry() for body in bodies]

    source = RedisStream.recovering("s", min_idle=MIN_IDLE * 100, group="g")
    async with backend(backend.app(handler, source, batch=2, batch_wait=5, on_decode_error=drop())) as t:
        for body in (1, "x"):
            await t.publish(body, "s", wait=False)
        await t.publish(2, "s")
        record = t.subscriber("main")
        assert [[call.value for call in batch] for batch in record.batches] in ([[1], [2]], [[1, 2]])
        assert {(type(call.exception), call.outcome) for call in record.deliveries} == {
            (type(None), ack()),
            (type(None), retry()),
            (DecodeError, drop()),
        }
