"""Drain a stream with FastStream: its stream subscriber with a group, in the settings that are fastest for it.

msgspec instead of pydantic, no logger, one worker (8 are slower where the handler does nothing).
"""

import asyncio
from typing import Any

from fast_depends.msgspec import MsgSpecSerializer
from faststream.redis import RedisBroker, StreamSub

from benches.measure import Job, Meter, main
from benches.payments import GROUP, Payment

CONSUMER = "bench"
BLOCK_MS = 2000


async def drain(job: Job) -> dict[str, Any]:
    """Handle and acknowledge everything; the clock runs from before the first read to the answer of the last ack."""
    meter = Meter(job)
    broker = RedisBroker(job.url, logger=None, serializer=MsgSpecSerializer())
    source = StreamSub(
        job.stream, group=GROUP, consumer=CONSUMER, max_records=job.count, polling_interval=BLOCK_MS, last_id=">"
    )
    last = job.messages
    handled = 0
    all_handled = asyncio.Event()

    @broker.subscriber(stream=source)
    async def handle(payment: Payment) -> None:  # noqa: ARG001 - a handler's form
        nonlocal handled
        handled += 1
        if handled == last:
            all_handled.set()

    await broker.connect()
    meter.start()
    await broker.start()
    await all_handled.wait()
    await meter.drained()
    meter.stop()
    await broker.stop()
    meter.witness_group(handled)
    return meter.figures


if __name__ == "__main__":
    main(drain)
