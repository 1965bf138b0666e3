"""Parked entries under test: a source that parks, the server's clock, and what lies in the set."""

import msgspec.msgpack

from ruststream.redis import RedisStream

DELAYED = "{s}:g:delayed"
SLACK = 0.1
"""How late an entry may come on a quiet machine; the tests allow five times as much."""


def recovering(min_idle: float = 1, **options: object) -> RedisStream:
    return RedisStream.recovering("s", group="g", min_idle=min_idle, start_id="0", **options)


def clock(stream) -> float:
    """The server's time."""
    seconds, micros = stream.client.time()
    return seconds + micros / 1e6


def parked(stream, key: str = DELAYED) -> dict[str, tuple[int, float]]:
    """The parked entries by id: the delivery count they were parked at, and the time they are due."""
    members = [
        (msgspec.msgpack.decode(member), score) for member, score in stream.client.zrange(key, 0, -1, withscores=True)
    ]
    return {entry: (int(count), int(score) / 1000) for (entry, _, count), score in members}
