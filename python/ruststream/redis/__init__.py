"""Redis Streams: the broker, and the descriptors of what it reads."""

from ruststream.redis.broker import RedisBroker
from ruststream.redis.idempotency import RedisIdempotencyStore
from ruststream.redis.stream import GroupPosition, RedisStream, StreamOptions, StreamStart
from ruststream.redis.trim import Trim

__all__ = [
    "GroupPosition",
    "RedisBroker",
    "RedisIdempotencyStore",
    "RedisStream",
    "StreamOptions",
    "StreamStart",
    "Trim",
]
