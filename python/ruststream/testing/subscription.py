"""A subscription whose deliveries are written down."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from ruststream._core import BatchContext, Context, EntryId
from ruststream.errors import DecodeError
from ruststream.handler import HandlerPlan
from ruststream.loop import Bell
from ruststream.outcome import Outcome, ack
from ruststream.redis.broker import RedisBroker
from ruststream.redis.stream import RedisStream
from ruststream.subscriber import Subscriber
from ruststream.subscription import Subscription
from ruststream.testing.record import Call, SubscriberRecord

_SEED: Final = 7


class RecordedSubscription(Subscription):
    """One consumer of one group, its handlers, and a record of what they were called with."""

    def __init__(
        self, subscriber: Subscriber, broker: RedisBroker, bell: Bell, state: Any, record: SubscriberRecord, number: int
    ) -> None:
        """Do no I/O.

        Args:
            subscriber: the registration.
            broker: connected.
            bell: of the running loop.
            state: what handlers see as `ctx.state`.
            record: where calls are written down.
            number: of this consumer among those that the subscription has had.
        """
        self._record = record
        self._number = number
        self._open: dict[EntryId, Call] = {}
        self._begun: dict[EntryId, int] = {}
        self._extract = subscriber.plan.extract
        self.subscriber = subscriber
        self.broker = broker
        self.bell = bell
        plan = subscriber.plan
        plan = self._recorded(plan) if subscriber.batch is None else self._recorded_batches(plan)
        super().__init__(replace(subscriber, plan=plan), broker, bell, state)
        self.jitter = random.Random(_SEED)  # noqa: S311 - the same waits in every run

    def _consumer_name(self, source: RedisStream) -> str:
        return source.consumer or f"{self.name}-{self._number}"

    @property
    def suspended(self) -> set[Context | BatchContext]:
        """The deliveries, and the batches, whose handlers wait for something."""
        return {lane.context for lane in self._lanes if lane.context is not None and not lane.task.done()}

    @property
    def moves(self) -> bool:
        """Whether a lane has something to do that is not to wait."""
        alive = sum(not lane.task.done() for lane in self._lanes)
        idle = sum(not future.done() for future in self._idle)
        return alive > idle + len(self.suspended)

    def hurry(self) -> bool:
        """Have a batch handed over that is not full. Whether there is one."""
        return self._subscriber.batch is not None and not self.suspended and self.consumer_core.hurry()

    def inherit(self, gone: RecordedSubscription) -> None:
        """Let whoever waits for the failure of one that is gone hear of this one's."""
        self._failure = gone._failure

    def abandon(self) -> None:
        """Be gone as a killed process is."""
        self.cancel()
        self.consumer_core.abandon(self.broker.client)
        self._bell.forget(self.consumer_core.id)

    def settle(self, ctx: Context, outcome: Outcome, error: BaseException | None = None) -> None:
        """Settle a delivery, and write down how."""
        super().settle(ctx, outcome, error)
        self._ended(ctx, outcome)

    def returned(self, ctx: Context, value: object) -> None:
        """Settle a delivery by what its handler returned."""
        if value is None and not ctx.settled:
            self._ended(ctx, ack())
        super().returned(ctx, value)

    def _reply(self, ctx: Context, value: object) -> None:
        super()._reply(ctx, value)
        # What became of it otherwise is written down by now.
        self._ended(ctx, ack())

    def raised(self, ctx: Context, error: BaseException) -> None:
        """Settle a delivery by what its handler raised, or what raised before there was a call."""
        if self._begun.get(ctx.entry_id) != ctx.delivery_count:
            self._began(ctx).ended = True
        if (open_call := self._open.get(ctx.entry_id)) is not None:
            open_call.exception = error
        super().raised(ctx, error)

    def _is_broken_off(self, running: Context | BatchContext) -> bool:
        return any(lane.context is running and lane.broken_off for lane in self._lanes)

    def _ended(self, ctx: Context, outcome: Outcome) -> None:
        if (call := self._open.pop(ctx.entry_id, None)) is not None:
            call.outcome = outcome

    def _recorded(self, plan: HandlerPlan) -> HandlerPlan:
        """Return the plan such that every call passes here."""

        async def run(ctx: Context) -> object:
            call = self._began(ctx)
            with _noted([call]):
                running = plan.invoke(ctx)
                call.started = True
                value = await running
            if value is None and not ctx.settled and not self._is_broken_off(ctx):
                # The core acks it without a word.
                self._ended(ctx, ack())
            return value

        return replace(plan, invoke=run, shape="other", decode=None)

    def _recorded_batches(self, plan: HandlerPlan) -> HandlerPlan:
        """The same of one that takes batches."""

        async def run(messages: list[Any], batch: BatchContext) -> object:
            calls = [self._began(ctx) for ctx in batch.contexts]
            self._record.batches.append(calls)
            for call in calls:
                call.started = True
            with _noted(calls):
                value = await plan.invoke(messages, batch)
            if value is ack() or (value is None and not self._is_broken_off(batch)):
                for ctx in batch.contexts:
                    self._ended(ctx, ack())
            return value

        return replace(plan, invoke=run)

    def _began(self, ctx: Context) -> Call:
        try:
            value = self._extract(ctx)
        except DecodeError:
            value = None
        call = Call(
            value=value,
            payload=ctx.payload,
            headers=dict(ctx.headers),
            key=ctx.partition_key,
            entry_id=ctx.entry_id,
            delivery_count=ctx.delivery_count,
            idle=ctx.idle,
            stream=ctx.stream,
            group=ctx.group,
            subscription=ctx.subscription,
            consumer=ctx.consumer,
        )
        self._open[ctx.entry_id] = call
        self._begun[ctx.entry_id] = ctx.delivery_count
        self._record.deliveries.append(call)
        return call


@contextmanager
def _noted(calls: list[Call]) -> Iterator[None]:
    """Note that these calls have ended, and what they raised."""
    try:
        yield
    except BaseException as error:
        for call in calls:
            call.exception = error
        raise
    finally:
        for call in calls:
            call.ended = True
