"""A test on a real server: it touches nothing that is not its own."""

import pytest
import redis

from backend import Backend
from ruststream.errors import ConfigError
from ruststream.redis import RedisStream, StreamStart


@pytest.mark.parametrize("backend", ["redis-8.10", "redis-7.0"], indirect=True)
async def test_streams_that_hold_entries_are_refused_before_anything_is_read(backend: Backend):
    """No group is made and no handler called: the entries are somebody's."""
    called = []

    async def handle(body: bytes):
        called.append(body)

    source = RedisStream.recovering("s", min_idle=0.5, group="g", start_id=StreamStart.BEGINNING)
    with redis.Redis.from_url(backend.url) as witness:
        for _ in range(100):
            witness.xadd("s", {"_payload": "x"})
        with pytest.raises(ConfigError, match="holds 100 entries in stream s"):
            await backend(backend.app(handle, source)).__aenter__()
        assert (called, witness.xinfo_groups("s")) == ([], [])
        witness.delete("s")
