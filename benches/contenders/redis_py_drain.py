"""Drain a stream with a loop written by hand: redis.asyncio, hiredis and msgspec, no framework.

Three ways to acknowledge: one XACK per batch, one XACK per batch in the round trip of the next read, one per entry.
"""

from collections.abc import Callable, Coroutine
from typing import Any

import hiredis  # noqa: F401 - redis-py parses with it where it is installed; here it must be
import msgspec
import redis.asyncio

from benches.measure import Job, Meter, main
from benches.payments import GROUP, PAYLOAD, Payment

CONSUMER = "bench"
BLOCK_MS = 2000
BODY = PAYLOAD.encode()

Fields = dict[bytes, bytes]
Handler = Callable[[Payment, Fields], Coroutine[Any, Any, None]]

decode = msgspec.json.Decoder(Payment).decode


async def ack_per_batch(client: redis.asyncio.Redis, job: Job, handle: Handler) -> None:
    """Read, handle all, acknowledge all by one command."""
    left, streams = job.messages, {job.stream: ">"}
    while left:
        reply = await client.xreadgroup(GROUP, CONSUMER, streams, count=job.count, block=BLOCK_MS)
        for entries in batches(reply):
            ids = []
            for entry_id, fields in entries:
                await handle(decode(fields[BODY]), fields)
                ids.append(entry_id)
            await client.xack(job.stream, GROUP, *ids)
            left -= len(ids)


async def ack_with_next_read(client: redis.asyncio.Redis, job: Job, handle: Handler) -> None:
    """The same, the acks of a batch and the next read in one pipeline: half the round trips."""
    left, streams, ids = job.messages, {job.stream: ">"}, []
    while left or ids:
        pipeline = client.pipeline(transaction=False)
        if ids:
            pipeline.xack(job.stream, GROUP, *ids)
        if left:
            pipeline.xreadgroup(GROUP, CONSUMER, streams, count=job.count, block=BLOCK_MS)
        replies = await pipeline.execute()
        ids = []
        for entries in batches(replies[-1]) if left else ():
            for entry_id, fields in entries:
                await handle(decode(fields[BODY]), fields)
                ids.append(entry_id)
        left -= len(ids)


async def ack_per_entry(client: redis.asyncio.Redis, job: Job, handle: Handler) -> None:
    """Read, then handle and acknowledge one by one, as most frameworks do."""
    left, streams = job.messages, {job.stream: ">"}
    while left:
        reply = await client.xreadgroup(GROUP, CONSUMER, streams, count=job.count, block=BLOCK_MS)
        for entries in batches(reply):
            for entry_id, fields in entries:
                await handle(decode(fields[BODY]), fields)
                await client.xack(job.stream, GROUP, entry_id)
            left -= len(entries)


def batches(reply: Any) -> list[list[tuple[bytes, Fields]]]:
    """Return the entries of each stream of a reply, which RESP3 gives as a map of lists and RESP2 as pairs."""
    if isinstance(reply, dict):
        return [chunk for chunks in reply.values() for chunk in chunks]
    return [entries for _, entries in reply or ()]


WAYS = {"batch": ack_per_batch, "next-read": ack_with_next_read, "entry": ack_per_entry}


async def drain(job: Job) -> dict[str, Any]:
    """Handle and acknowledge everything; the clock runs from before the first read to the answer of the last ack."""
    meter = Meter(job)
    handled = 0

    async def handle(payment: Payment, fields: Fields) -> None:  # noqa: ARG001 - a handler's form
        nonlocal handled
        handled += 1

    async with redis.asyncio.Redis.from_url(job.url) as client:
        await client.ping()
        meter.start()
        await WAYS[job.options.get("ack", "batch")](client, job, handle)
        meter.stop()
    meter.witness_group(handled)
    return meter.figures


if __name__ == "__main__":
    main(drain)
