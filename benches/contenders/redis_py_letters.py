"""Move entries to a stream of dead letters by hand: the blocking client of redis-py, hiredis, msgspec, no framework.

One Lua script for each entry copies it and acknowledges it; the scripts of a read go out in one pipeline.
"""

from typing import Any

import hiredis  # noqa: F401 - redis-py parses with it where it is installed; here it must be
import redis

from benches.contenders.redis_py_drain import BODY, CONSUMER, batches, decode
from benches.measure import Job, Meter, main
from benches.payments import GROUP, LETTERS, beside

MOVE = """
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 3))
return redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
"""


async def move(job: Job) -> dict[str, Any]:
    """Read, decode, and move everything; the clock runs to the answer of the last pipeline."""
    meter = Meter(job)
    letters, handled = beside(job.stream, LETTERS), 0
    with redis.Redis.from_url(job.url) as client:
        script = client.script_load(MOVE)
        meter.start()
        while handled < job.messages:
            reply = client.xreadgroup(GROUP, CONSUMER, {job.stream: ">"}, count=job.count)
            pipeline = client.pipeline(transaction=False)
            for entries in batches(reply):
                for entry_id, fields in entries:
                    decode(fields[BODY])
                    flat = [part for field in fields.items() for part in field]
                    pipeline.evalsha(script, 2, job.stream, letters, GROUP, entry_id, *flat, "h:reason", "why")
                handled += len(entries)
            pipeline.execute()
        meter.stop()
    meter.witness_group(handled)
    meter.witness_keys()
    return meter.figures


if __name__ == "__main__":
    main(move)
