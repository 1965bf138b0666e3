"""From publish to handler with a loop written by hand, at a steady pace: one XACK per batch."""

from typing import Any

import msgspec
import redis.asyncio

from benches.contenders.pace import Latencies, paced
from benches.contenders.redis_py_drain import BLOCK_MS, BODY, CONSUMER, Fields, batches
from benches.measure import Job, Meter, main
from benches.payments import GROUP, Probe

decode = msgspec.json.Decoder(Probe).decode


async def receive(job: Job) -> dict[str, Any]:
    """Handle and acknowledge everything that the paced publisher sends."""
    meter = Meter(job)
    latencies = Latencies(job)

    async def handle(probe: Probe, fields: Fields) -> None:  # noqa: ARG001 - a handler's form
        latencies.note(probe)

    async def consume(client: redis.asyncio.Redis) -> None:
        streams = {job.stream: ">"}
        while not latencies.full.is_set():
            reply = await client.xreadgroup(GROUP, CONSUMER, streams, count=job.count, block=BLOCK_MS)
            for entries in batches(reply):
                ids = []
                for entry_id, fields in entries:
                    await handle(decode(fields[BODY]), fields)
                    ids.append(entry_id)
                await client.xack(job.stream, GROUP, *ids)

    async with redis.asyncio.Redis.from_url(job.url) as client:
        await client.ping()
        with paced(job):
            await consume(client)
    meter.witness_group(latencies.figures()["handled"])
    return latencies.figures() | meter.figures


if __name__ == "__main__":
    main(receive)
