"""Drain a stream with this package, every entry ending in the way that the job's `outcome` names.

With `within`, the stream is one of a server within the process, and its backlog is published before the clock starts.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from benches.contenders.ruststream_drain import options, source
from benches.measure import Job, Meter, main, settled
from benches.payments import GROUP, LETTERS, PIPELINE, REPLIES, Payment, beside, payment
from ruststream import BatchContext, Context, Idempotent, Outcome, RustStream, dead_letter, retry
from ruststream.redis import RedisBroker, RedisStream, Trim
from ruststream.registration import SubscriberOptions

TEN_MINUTES = 600
SOON = 0.05
TWICE = frozenset({"retry", "again"})
"""Outcomes that have each message handled twice."""
ATTEMPTS = 5
BATCH = 200
MARKING_WORKERS = 64
HANDLED_TIMEOUT = 60.0
WITHIN = "memory://bench"
OF_A_SERVER = ("server_busy", "commands_per_message", "commands")

Handler = Callable[..., Any]


class Tally:
    """Counts deliveries, and says when the last one is handled and, where it is acked, the server has answered."""

    __slots__ = ("handled", "last", "settled")

    def __init__(self, last: int) -> None:
        self.handled = 0
        self.last = last
        self.settled = asyncio.Event()

    def count(self, ctx: Context, more: int = 1) -> None:
        """Count so many."""
        self.handled += more
        if self.handled == self.last:
            ctx.after_ack(self.settled.set)

    def ended(self) -> None:
        """Count one whose outcome is no ack."""
        self.handled += 1
        if self.handled == self.last:
            self.settled.set()


def acks(tally: Tally) -> Handler:
    """Return the handler of the drain. It counts for itself, as a call for that would be a part of what it costs."""

    async def handle(payment: Payment, ctx: Context) -> None:  # noqa: ARG001 - a handler's form
        tally.handled += 1
        if tally.handled == tally.last:
            ctx.after_ack(tally.settled.set)

    return handle


def acks_batches(tally: Tally) -> Handler:
    """Return one that takes lists."""

    async def handle(payments: list[Payment], batch: BatchContext) -> None:
        tally.count(batch.contexts[-1], len(payments))

    return handle


def replies(tally: Tally) -> Handler:
    """Return one that answers with what it was given."""

    async def handle(payment: Payment, ctx: Context) -> Payment:
        tally.count(ctx)
        return payment

    return handle


def gives_up(tally: Tally) -> Handler:
    """Return one that makes dead letters. These are no acks: nothing but the server tells that they are written."""

    async def handle(payment: Payment, ctx: Context) -> Outcome:  # noqa: ARG001 - a handler's form
        tally.ended()
        return dead_letter("why")

    return handle


def parks(tally: Tally) -> Handler:
    """Return one that asks for a delay longer than the bench. The same holds for these."""

    async def handle(payment: Payment, ctx: Context) -> Outcome:  # noqa: ARG001 - a handler's form
        tally.ended()
        return retry(after=TEN_MINUTES)

    return handle


def retries_once(tally: Tally, after: float | None = None) -> Handler:
    """Return one that asks for each message once more."""

    async def handle(payment: Payment, ctx: Context) -> Outcome | None:  # noqa: ARG001 - a handler's form
        tally.count(ctx)
        return retry(after=after) if ctx.delivery_count == 1 else None

    return handle


def retries_soon(tally: Tally) -> Handler:
    """Return one that asks for each message once more, a little later."""
    return retries_once(tally, SOON)


HANDLERS = {
    "ack": acks,
    "batch": acks_batches,
    "reply": replies,
    "dead letter": gives_up,
    "park": parks,
    "retry": retries_once,
    "again": retries_soon,
}


def settings(job: Job) -> SubscriberOptions:
    """Return the drain's options, and those that the job adds."""
    of_drain, asked, key = options(job), job.options, job.stream
    if asked.get("capped"):
        of_drain |= {"max_attempts": ATTEMPTS, "dead_letter": beside(key, LETTERS)}
    if asked.get("marked"):
        of_drain |= {"idempotency": Idempotent(ttl=TEN_MINUTES), "workers": MARKING_WORKERS}
    match asked["outcome"]:
        case "batch":
            of_drain |= {"batch": BATCH}
        case "reply":
            of_drain |= {"reply_to": beside(key, REPLIES)}
        case "dead letter":
            of_drain |= {"dead_letter": beside(key, LETTERS)}
    return of_drain


def stream(job: Job) -> RedisStream:
    """Return the drain's source, trimmed if the job says so."""
    return source(job).bounded(Trim.acked() if job.options.get("trimmed") else None)


async def drain(job: Job) -> dict[str, Any]:
    """Settle everything; the clock runs from before the first read to the answer of the last outcome."""
    asked = job.options
    deliveries = 2 if asked["outcome"] in TWICE else 1
    tally, meter = Tally(job.messages * deliveries), Meter(job)
    broker = RedisBroker(WITHIN if asked.get("within") else job.url)
    app = RustStream("bench", broker)
    broker.add_subscriber(stream(job), HANDLERS[asked["outcome"]](tally), **settings(job))

    @app.after_startup
    async def begin() -> None:
        if asked.get("within"):
            await publish_backlog(broker, job)
        meter.start()

    async with app:
        async with asyncio.timeout(HANDLED_TIMEOUT):
            await tally.settled.wait()
        if asked.get("within"):
            await drained_within(broker, job)
        elif asked["outcome"] == "park":
            await meter.parked()
        else:
            await meter.drained()
        meter.stop()
        if asked.get("within"):
            return await figures_within(broker, job, meter, tally.handled)
    meter.witness_group(tally.handled)
    meter.witness_keys()
    return meter.figures


async def publish_backlog(broker: RedisBroker, job: Job) -> None:
    """Publish the payments. The group is there, and nothing reads yet."""
    for begin in range(0, job.messages, PIPELINE):
        chunk = [payment(number) for number in range(begin, min(begin + PIPELINE, job.messages))]
        await broker.publish_many(chunk, job.stream, key=lambda message: message.account)


async def drained_within(broker: RedisBroker, job: Job) -> None:
    """Return once nothing is pending there."""

    async def pending() -> int:
        return len(await broker.client.list_pending(job.stream, GROUP, 1))

    await settled(pending, 0, "pending")


async def figures_within(broker: RedisBroker, job: Job, meter: Meter, handled: int) -> dict[str, Any]:
    """Return what was measured without what was asked of the meter's server, which had no part in it."""
    groups = await broker.client.list_groups(job.stream)
    (group,) = groups or ()
    figures = {name: value for name, value in meter.figures.items() if name not in OF_A_SERVER}
    return figures | {
        "handled": handled,
        "pending": group["pending"],
        "entries_read": job.messages - group["lag"],
    }


if __name__ == "__main__":
    main(drain)
