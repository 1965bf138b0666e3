"""Publish typed messages with this package: in lists, from many tasks at once, or one after another."""

import asyncio
from collections.abc import Iterator
from typing import Any

from benches.measure import Job, Meter, main
from benches.payments import Payment, payment
from ruststream.redis import RedisBroker


async def publish(job: Job) -> dict[str, Any]:
    """Publish all payments with their keys; the clock runs to the answer of the last one."""
    meter = Meter(job)
    stream, chunk, tasks = job.stream, job.options.get("chunk", 0), job.options.get("tasks", 0)
    messages = [payment(number) for number in range(job.messages)]

    async with RedisBroker(job.url) as broker:

        async def send(each: Iterator[Payment]) -> None:
            for message in each:
                await broker.publish(message, stream, key=message.account)

        meter.start()
        if chunk:
            for at in range(0, job.messages, chunk):
                await broker.publish_many(messages[at : at + chunk], stream, key=lambda message: message.account)
        else:
            shared = iter(messages)
            await asyncio.gather(*(send(shared) for _ in range(tasks)))
        meter.stop()
    meter.witness_stream()
    return meter.figures


if __name__ == "__main__":
    main(publish)
