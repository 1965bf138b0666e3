"""Drain a stream with this package: typed handler with a `Context`, 8 workers, by key."""

import asyncio
from typing import Any

from benches.measure import Job, Meter, main
from benches.payments import GROUP, Payment
from ruststream import Context, RustStream
from ruststream.redis import RedisBroker, RedisStream, StreamOptions
from ruststream.registration import SubscriberOptions

WORKERS = 8
MIN_IDLE = 30


def source(job: Job) -> RedisStream:
    """Return the subscription that the job names: `mode`, and `count` unless it asks for the defaults."""
    reads: StreamOptions = {} if job.options.get("defaults") else {"count": job.count}
    match job.options.get("mode", "recovering"):
        case "new":
            return RedisStream.new(job.stream, group=GROUP, **reads)
        case "claiming":
            return RedisStream.claiming(job.stream, group=GROUP, min_idle=MIN_IDLE, **reads)
        case "recovering":
            return RedisStream.recovering(job.stream, group=GROUP, min_idle=MIN_IDLE, **reads)
        case mode:
            raise ValueError(mode)


def options(job: Job) -> SubscriberOptions:
    """Return how the handler is run; `max_in_flight` unless the job asks for the defaults."""
    always: SubscriberOptions = {"workers": WORKERS, "by_key": True}
    return always if job.options.get("defaults") else {**always, "max_in_flight": job.options["max_in_flight"]}


async def drain(job: Job) -> dict[str, Any]:
    """Handle and acknowledge everything; the clock runs from before the first read to the answer of the last ack."""
    meter = Meter(job)
    broker = RedisBroker(job.url)
    app = RustStream("bench", broker)
    app.after_startup(meter.start)
    last = job.messages
    handled = 0
    acked = asyncio.Event()

    @broker.subscriber(source(job), **options(job))
    async def handle(payment: Payment, ctx: Context) -> None:  # noqa: ARG001 - a handler's form
        nonlocal handled
        handled += 1
        if handled == last:
            ctx.after_ack(acked.set)

    async with app:
        await acked.wait()
        await meter.drained()
        meter.stop()
    meter.witness_group(handled)
    return meter.figures


if __name__ == "__main__":
    main(drain)
