"""Batch handlers under test: the jobs they are given, and an app that runs until all is settled."""

import logging

import msgspec

from eventually import eventually_async
from ruststream import RustStream
from ruststream.redis import RedisStream, StreamStart


class Job(msgspec.Struct):
    number: int


def recovering(min_idle: float = 30, **options: object) -> RedisStream:
    return RedisStream.recovering("s", group="g", min_idle=min_idle, start_id=StreamStart.BEGINNING, **options)


def add_jobs(stream, *numbers, **headers):
    return [stream.add(msgspec.json.encode(Job(number)), **headers) for number in numbers]


def counts_of(app):
    return app.health().subscriptions[0].counts


async def settled(app, read):
    """Wait until so many were read and nothing is left to do; return the counts."""
    await eventually_async(lambda: counts_of(app)["read"] >= read and counts_of(app)["in_flight"] == 0, timeout=15)
    return counts_of(app)


async def handled(broker, read, handler, source=None, **options):
    """Run an app with this batch handler until what was read is settled; return its counts."""
    broker.add_subscriber(source or recovering(), handler, **{"batch": 100, **options})
    app = RustStream("test", broker)
    async with app:
        return await settled(app, read)


def errors(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
