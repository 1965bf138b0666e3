"""Dead letters under test: sources, what a letter says of itself, and what it says of its entry."""

import logging

from ruststream.redis import RedisStream, StreamStart

MARK = b"h:x-dead-letter-"


def source(mode: str = "recovering", min_idle: float = 4, **options: object) -> RedisStream:
    options = {"group": "g", "start_id": StreamStart.BEGINNING} | options
    return getattr(RedisStream, mode)("s", **options if mode == "new" else {"min_idle": min_idle} | options)


def bring(stream, mode: str, fields: dict) -> str:
    """Add an entry so that a subscription of this mode gets it: for a reclaim it has to be pending and old."""
    entry = stream.add_fields(fields)
    if mode == "reclaim":
        stream.deliver("dead", count=1)
        stream.client.xclaim("s", "g", "dead", 0, [entry], idle=60_000, justid=True)
    return entry


def marks(fields: dict[bytes, bytes]) -> dict[str, str]:
    """Return a letter's own headers by their short names."""
    return {name.removeprefix(MARK).decode(): value.decode() for name, value in fields.items() if MARK in name}


def rest(fields: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return a letter's other fields."""
    return {name: value for name, value in fields.items() if MARK not in name}


def counts(app) -> dict[str, int]:
    return app.health().subscriptions[0].counts


def errors(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
