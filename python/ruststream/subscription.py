"""A subscription that runs: its consumer in the core, its lanes, and what becomes of each delivery."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from ruststream._core import ACK, DEAD_LETTER, LEAVE, BatchContext, Context, EntryId
from ruststream.batches import Batches
from ruststream.consumer import CODES, batch, direct, make_consumer
from ruststream.context import HeadersView
from ruststream.errors import DecodeError, RustStreamError
from ruststream.lane import Lane
from ruststream.marks import Marking
from ruststream.outcome import Outcome, cause_text, leave, meaningless
from ruststream.policy import leaves, said_by
from ruststream.quiet import Quiet
from ruststream.timeouts import Timeout

if TYPE_CHECKING:
    from ruststream.loop import Bell
    from ruststream.redis.broker import RedisBroker
    from ruststream.redis.stream import RedisStream
    from ruststream.subscriber import Subscriber

_log: Final = logging.getLogger("ruststream.subscription")


class Subscription:
    """One consumer of one group, and the handlers it feeds."""

    def __init__(self, subscriber: Subscriber, broker: RedisBroker, bell: Bell, state: Any) -> None:
        """Do no I/O.

        Args:
            subscriber: the registration.
            broker: connected; where `ctx.publish` goes.
            bell: of the running loop.
            state: what handlers see as `ctx.state`.
        """
        source = subscriber.source
        self.name = subscriber.name
        self.consumer = self._consumer_name(source)
        self.app_state = state
        """What handlers see as `ctx.state`."""
        self.state = "starting"
        """What the reader does: `starting`, `reading`, `retrying`, `stopped` or `failed`."""
        self.error: str | None = None
        self.jitter = random.Random()  # noqa: S311 - it spreads waits
        """The generator of the jitter of backoffs."""
        self.draining = False
        self.finished_reading = False
        self._subscriber = subscriber
        self._broker = broker
        self._bell = bell
        self._failure: asyncio.Future[BaseException] = bell.loop.create_future()
        self._lanes: list[Lane] = []
        self._idle: deque[asyncio.Future[None]] = deque()
        self._released = 0
        self._given_up = Quiet()
        self._callbacks: dict[EntryId, list[Callable[[], object]]] = {}
        self._lost_events: WeakValueDictionary[EntryId, asyncio.Event] = WeakValueDictionary()
        # Without a recoverer in sight nobody would ever take up what is handed back: the queue is worked off instead.
        self._hands_back = source.recovers or source.min_idle is not None
        idempotency = subscriber.idempotency
        self._marking = None if idempotency is None else Marking(self, subscriber, idempotency)
        self.consumer_core = make_consumer(
            subscriber,
            broker.client,
            bell,
            self.consumer,
            self._marking,
        )
        self.consumer_core.bind(
            self, subscriber.plan.invoke, subscriber.key_of, direct(subscriber.plan), batch(subscriber)
        )
        self._batches = None if subscriber.batch is None else Batches(self)
        self._timeout = (
            None
            if subscriber.timeout is None
            else Timeout(self.consumer_core, subscriber.timeout, cancels=subscriber.plan.is_async)
        )
        bell.listen(self.consumer_core.id, self)

    def _consumer_name(self, source: RedisStream) -> str:
        return source.consumer_name()

    # What the app does with it.

    async def open(self) -> None:
        """Check the server, create the group, move its cursor.

        Raises:
            ServerTooOldError: the server lacks what the source needs.
            SubscribeError: the group can't be read.
            ConnectError: the server went away.
        """
        await self.consumer_core.open()

    def start(self) -> None:
        """Start the lanes and begin to read."""
        for number in range(self._subscriber.workers):
            lane = Lane(self, self._batches or self, f"ruststream-{self.name}-{number}", self._timeout)
            lane.task.add_done_callback(self._lane_ended)
            self._lanes.append(lane)
        self.consumer_core.start()

    async def stop_reading(self) -> None:
        """Read no more. What was never started is handed back at once, where someone would take it up."""
        self.draining = self._hands_back
        await self.consumer_core.stop_reading()
        self.consumer_core.unkeep()
        if not self._hands_back:
            await self.consumer_core.let_through()
        self.finished_reading = True
        if self._hands_back:
            self._released += await self.consumer_core.release()
        self._wake_all()

    async def finished(self) -> None:
        """Return once no handler runs and, where the queue is worked off, it is empty."""
        self._wake_all()
        pending = [lane.task for lane in self._lanes if not lane.task.done()]
        if pending:
            await asyncio.wait(pending)

    def running(self) -> list[EntryId]:
        """Return the entries whose handlers run."""
        return [entry_id for lane in self._lanes if lane.context is not None for entry_id in _ids(lane.context)]

    def cancel(self) -> None:
        """Cancel the handlers that run. Their entries stay pending."""
        self.draining = True
        for lane in self._lanes:
            lane.wind_up()

    async def release(self) -> int:
        """Give back what was never started, without costing an attempt. Returns how many since the stop began."""
        self._released += await self.consumer_core.release()
        return self._released

    async def flush(self) -> None:
        """Return once every outcome given so far has been answered by the server."""
        await self.consumer_core.flush()

    async def close(self) -> None:
        """Stop lanes and timers. What is unsettled stays pending."""
        self.cancel()
        await self.consumer_core.close()
        self._bell.forget(self.consumer_core.id)

    async def failure(self) -> BaseException:
        """Return what ends this subscription, once it can't go on."""
        return await asyncio.shield(self._failure)

    def stats(self) -> dict[str, int]:
        """Return counters since the start, and gauges."""
        return self.consumer_core.stats()

    def unsettled(self) -> list[EntryId]:
        """Return the entries that are queued, running, or whose outcome has no answer yet."""
        return self.consumer_core.unsettled()

    def left_pending(self) -> int:
        """Return how many entries it leaves pending, as far as this process knows: they may be settled elsewhere."""
        return self.consumer_core.left_pending()

    # What its lanes call.

    def idle(self) -> asyncio.Future[None]:
        """Return a future that is done once there may be work."""
        future = self._bell.loop.create_future()
        if self.draining or self.finished_reading:
            future.set_result(None)
        else:
            self._idle.append(future)
        return future

    def pass_on(self) -> None:
        """Let an idle lane take what is ready, if something is: this one is about to wait for its handler."""
        if self._idle and self.consumer_core.ready():
            self.wake()

    def returned(self, ctx: Context, value: object) -> None:
        """Settle a delivery by what its handler returned."""
        if isinstance(value, Outcome):
            self._settle_returned(ctx, value)
        elif value is None:
            if not ctx.settled:
                self.consumer_core.settle(ctx, ACK)
        elif self._subscriber.replies.takes(value):
            self._reply(ctx, value)
        else:
            outcome = leave()
            _log.error(
                "%s: the handler returned %.200r; return None to ack, or an outcome such as retry(), or set reply_to= "
                "or reply=True to publish what it returns. Outcome: %s",
                self.where(ctx),
                value,
                self.follows(outcome, [ctx]),
            )
            if not ctx.settled:
                self.settle(ctx, outcome, meaningless(value))

    def _reply(self, ctx: Context, value: object) -> None:
        """Publish what the handler returned, and ack its entry in the same step."""
        if ctx.settled:
            _log.error(
                "%s: the handler returned a reply after its delivery was settled; the reply is not published",
                self.where(ctx),
            )
            return
        try:
            reply = self._subscriber.replies.message(value)
            ours = self.consumer_core.reply(ctx, reply.stream, reply.payload, reply.fields, *reply.trimming)
        except RustStreamError as error:
            self.raised(ctx, error)
            return
        if not ours:
            _log.warning(
                "%s: another consumer owns the entry by now, its reply to stream %s was not sent",
                self.where(ctx),
                reply.stream,
            )

    def raised(self, ctx: Context, error: BaseException) -> None:
        """Settle a delivery by what its handler raised. An error never acks by itself."""
        said = said_by(error)
        if said is not None:
            self._settle_returned(ctx, said)
        elif ctx.settled and isinstance(error, Exception):
            _log.error("%s: the handler failed after its delivery was settled", self.where(ctx), exc_info=error)
        else:
            outcome = self.judged(self.where(ctx), error, [ctx])
            if not ctx.settled:
                self.settle(ctx, outcome, error)

    def judged(self, where: str, error: BaseException, deliveries: Sequence[Context]) -> Outcome:
        """Log a failure of these deliveries, and return its outcome."""
        if isinstance(error, DecodeError):
            outcome = self._subscriber.on_decode_error
            _log.error("%s: %s. Outcome: %s", where, error, self.follows(outcome, deliveries))
            return outcome
        ends = next((leaf for leaf in leaves(error) if isinstance(leaf, (KeyboardInterrupt, SystemExit))), None)
        outcome = leave() if ends is not None else self._subscriber.on_error.outcome(error)
        what = "failed" if isinstance(error, (Exception, BaseExceptionGroup)) and ends is None else "was ended"
        _log.error("%s: the handler %s. Outcome: %s", where, what, self.follows(outcome, deliveries), exc_info=error)
        if ends is not None and not self._failure.done():
            # It wants the process to end, and so it does: after the others have worked off what they are at.
            self._failure.set_result(ends)
        return outcome

    def follows(self, outcome: Outcome, deliveries: Sequence[Context]) -> str:
        """Say what becomes of deliveries with this outcome, for the log: after the last attempt it is another one."""
        most = self._subscriber.max_attempts
        open_ = [] if most is None else [ctx for ctx in deliveries if not ctx.settled]
        last = sum(self._is_exhausted(ctx, outcome) for ctx in open_)
        if not last:
            return repr(outcome)
        final = self._subscriber.on_exhausted
        if last == len(deliveries):
            return f"{final!r}, not {outcome!r}: attempt {most} was the last"
        return f"{outcome!r}, but {final!r} for {last} of them, whose attempt {most} was the last"

    def _settle_returned(self, ctx: Context, outcome: Outcome) -> None:
        if ctx.settled:
            _log.error(
                "%s: %r comes too late, the delivery was settled before; settle by hand or by return, not both",
                self.where(ctx),
                outcome,
            )
            return
        self.settle(ctx, outcome)

    # What `Context` leaves to Python.

    def settle(self, ctx: Context, outcome: Outcome, error: BaseException | None = None) -> None:
        """Settle a delivery, because of this error, where there is one: then it is in the log already.

        Raises:
            AlreadySettledError: it was settled before.
        """
        if not isinstance(outcome, Outcome):
            raise TypeError(f"settle takes an outcome such as ack() or retry(), not {outcome!r}")
        if exhausted := self._is_exhausted(ctx, outcome):
            asked, outcome = outcome, self._subscriber.on_exhausted
            if error is None:
                self._say_given_up(ctx, outcome, asked)
        if outcome.kind != "ack" and self._callbacks:
            self._callbacks.pop(ctx.entry_id, None)
        delay = outcome.delay
        if outcome.kind == "retry" and delay is None and self._subscriber.backoff is not None:
            delay = self._subscriber.backoff.delay(ctx.delivery_count, self.jitter)
        if outcome.kind == "dead_letter":
            ours = self._dead_letter(ctx, outcome, error, exhausted=exhausted)
        else:
            ours = self.consumer_core.settle(ctx, CODES[outcome.kind], delay)
        if not ours:
            _log.warning("%s: another consumer owns the entry by now, %r was not sent", self.where(ctx), outcome)

    def _say_given_up(self, ctx: Context, outcome: Outcome, asked: Outcome) -> None:
        """Say so of the first ones, and then once a second: with a downstream that is away it may be all of them."""
        unsaid = self._given_up.allow()
        if unsaid is not None:
            more = f" ({unsaid} more like this)" if unsaid else ""
            most = self._subscriber.max_attempts
            where = self.where(ctx)
            _log.error("%s: attempt %d was the last. Outcome: %r, not %r%s", where, most, outcome, asked, more)

    def _dead_letter(self, ctx: Context, outcome: Outcome, error: BaseException | None, *, exhausted: bool) -> bool:
        if self._subscriber.dead_letter is None:
            _log.error(
                "%s: %r, but the subscription has no dead_letter= stream. The entry stays pending; say where to, for "
                'example dead_letter="payments.dlq"',
                self.where(ctx),
                outcome,
            )
            return self.consumer_core.settle(ctx, LEAVE)
        reason = "max-attempts" if exhausted else "decode-error" if isinstance(error, DecodeError) else "rejected"
        return self.consumer_core.settle(ctx, DEAD_LETTER, reason=reason, error=cause_text(outcome, error))

    def _is_exhausted(self, ctx: Context, outcome: Outcome) -> bool:
        """Return whether this was the last attempt, and its outcome asks for one more."""
        most = self._subscriber.max_attempts
        return most is not None and outcome.kind in ("retry", "leave") and self.consumer_core.attempts(ctx) >= most

    def make_headers(self, ctx: Context) -> HeadersView:
        """Return the headers of a delivery."""
        return HeadersView.of(ctx, self._subscriber.source.mode)

    def make_lease_lost(self, ctx: Context) -> asyncio.Event:
        """Return the event of a delivery whose entry may be taken over."""
        event = self._lost_events[ctx.entry_id] = asyncio.Event()
        if ctx.lost:
            event.set()
        return event

    def make_batch_lease_lost(self, batch: BatchContext) -> asyncio.Event:
        """Return the event of a batch one of whose entries may be taken over."""
        assert self._batches is not None
        return self._batches.make_lease_lost(batch)

    def after_ack(self, ctx: Context, callback: Callable[[], object]) -> None:
        """Call `callback` once the server has answered the delivery's ack."""
        self._callbacks.setdefault(ctx.entry_id, []).append(callback)
        self.consumer_core.watch(ctx)

    def publish(
        self, _ctx: Context | BatchContext, message: object, stream: str | None = None, **options: Any
    ) -> Coroutine[Any, Any, EntryId]:
        """Publish through the broker that the delivery came from."""
        return self._broker.publish(message, stream, **options)

    # What the bell tells.

    def wake(self) -> None:
        """Let one idle lane look. It wakes the next one if its handler waits."""
        while self._idle:
            future = self._idle.popleft()
            if not future.done():
                future.set_result(None)
                return

    def lost(self, ids: list[EntryId]) -> None:
        """Tell the handlers of entries that someone else owns now."""
        for entry_id in ids:
            self._callbacks.pop(entry_id, None)
            if (event := self._lost_events.get(entry_id)) is not None:
                event.set()
        if self._batches is not None:
            self._batches.lost(ids)

    def acked(self, ids: list[EntryId]) -> None:
        """Call what waited for these acks."""
        for entry_id in ids:
            for callback in self._callbacks.pop(entry_id, ()):
                try:
                    callback()
                except Exception:  # noqa: BLE001 - the user's function: it must not silence the bell
                    _log.exception("subscription %s: after_ack of entry %s failed", self.name, entry_id)

    def alarm(self) -> None:
        """End the handlers that have run too long."""
        if self._timeout is not None:
            self._timeout.rung(self._lanes)

    def refused(self, ids: list[EntryId]) -> None:
        """Forget what waited for these acks: the entries stay pending."""
        for entry_id in ids:
            self._callbacks.pop(entry_id, None)

    def asked(self, ticket: int) -> None:
        """Answer what the core asks of the user's store, or of the function that computes keys."""
        if self._marking is not None:
            self._marking.asked(ticket)

    def changed(self, state: str, error: BaseException | None) -> None:
        """Note what the reader does."""
        self.state = state
        self.error = None if error is None else str(error)
        if state == "failed" and not self._failure.done():
            self._failure.set_result(error or RustStreamError(f"subscription {self.name} failed"))

    def _wake_all(self) -> None:
        while self._idle:
            self.wake()

    def _lane_ended(self, task: asyncio.Task[None]) -> None:
        if self._failure.done() or self.draining:
            return
        if task.cancelled():
            error: BaseException | None = RustStreamError(
                f"a lane of subscription {self.name} was cancelled from outside"
            )
        else:
            error = task.exception()
        if error is not None:
            self._failure.set_result(error)

    def where(self, ctx: Context) -> str:
        """Name a delivery, for the log."""
        return (
            f"subscription {self.name}, stream {ctx.stream}, group {ctx.group}, consumer {ctx.consumer}, "
            f"entry {ctx.entry_id}, delivery {ctx.delivery_count}"
        )


def _ids(running: Context | BatchContext) -> tuple[EntryId, ...]:
    return running.entry_ids if isinstance(running, BatchContext) else (running.entry_id,)
