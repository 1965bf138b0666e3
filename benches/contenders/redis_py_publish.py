"""Publish the same messages with redis-py and msgspec: the same fields on the wire, the same three ways.

Pipelines go through redis.asyncio, or through the blocking client where the job says so; that one does without a loop.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import hiredis  # noqa: F401 - redis-py parses with it where it is installed; here it must be
import msgspec
import redis
import redis.asyncio

from benches.measure import Job, Meter, main
from benches.payments import CONTENT_TYPE, KEY, PAYLOAD, Payment, payment

encode = msgspec.json.Encoder().encode


def entry(message: Payment) -> dict[str, str | bytes]:
    """Return the fields of a message, as this package writes them."""
    return {PAYLOAD: encode(message), CONTENT_TYPE: "application/json", KEY: message.account}


async def pipelines(job: Job, messages: list[Payment], meter: Meter) -> None:
    """Publish in pipelines."""
    stream, chunk = job.stream, job.options["chunk"]
    async with redis.asyncio.Redis.from_url(job.url) as client:
        await client.ping()
        meter.start()
        for at in range(0, len(messages), chunk):
            pipeline = client.pipeline(transaction=False)
            for message in messages[at : at + chunk]:
                pipeline.xadd(stream, entry(message))
            await pipeline.execute()
        meter.stop()


def blocking_pipelines(job: Job, messages: list[Payment], meter: Meter) -> None:
    """Publish in pipelines of the blocking client."""
    stream, chunk = job.stream, job.options["chunk"]
    with redis.Redis.from_url(job.url) as client:
        client.ping()
        meter.start()
        for at in range(0, len(messages), chunk):
            pipeline = client.pipeline(transaction=False)
            for message in messages[at : at + chunk]:
                pipeline.xadd(stream, entry(message))
            pipeline.execute()
        meter.stop()


async def tasks(job: Job, messages: list[Payment], meter: Meter) -> None:
    """Publish from so many tasks, each awaiting its own answers; the client gives each a connection."""
    stream = job.stream
    async with redis.asyncio.Redis.from_url(job.url) as client:

        async def send(each: Iterator[Payment]) -> None:
            for message in each:
                await client.xadd(stream, entry(message))

        number = job.options["tasks"]
        await asyncio.gather(*(client.ping() for _ in range(number)))
        meter.start()
        shared = iter(messages)
        await asyncio.gather(*(send(shared) for _ in range(number)))
        meter.stop()


async def publish(job: Job) -> dict[str, Any]:
    """Publish all payments with their keys; the clock runs to the answer of the last one."""
    meter = Meter(job)
    messages = [payment(number) for number in range(job.messages)]
    if job.options.get("tasks"):
        await tasks(job, messages, meter)
    elif job.options.get("blocking"):
        blocking_pipelines(job, messages, meter)
    else:
        await pipelines(job, messages, meter)
    meter.witness_stream()
    return meter.figures


if __name__ == "__main__":
    main(publish)
