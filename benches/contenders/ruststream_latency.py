"""From publish to handler with this package, at a steady pace."""

from typing import Any

from benches.contenders.pace import Latencies, paced
from benches.contenders.ruststream_drain import options, source
from benches.measure import Job, Meter, main
from benches.payments import Probe
from ruststream import Context, RustStream
from ruststream.redis import RedisBroker


async def receive(job: Job) -> dict[str, Any]:
    """Handle and acknowledge everything that the paced publisher sends."""
    meter = Meter(job)
    latencies = Latencies(job)
    broker = RedisBroker(job.url)
    app = RustStream("bench", broker)

    @broker.subscriber(source(job), **options(job))
    async def handle(probe: Probe, ctx: Context) -> None:  # noqa: ARG001 - a handler's form
        latencies.note(probe)

    async with app:
        with paced(job):
            await latencies.full.wait()
        await meter.drained()
    meter.witness_group(latencies.figures()["handled"])
    return latencies.figures() | meter.figures


if __name__ == "__main__":
    main(receive)
