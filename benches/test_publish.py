"""The same messages published by both: in pipelines of 1,000, by 64 tasks at once, by one task."""

from collections.abc import Iterator
from functools import partial

import msgspec
import pytest

from benches.conftest import Record
from benches.payments import CONTENT_TYPE, KEY, PAYLOAD, PIPELINE, empty, payment
from benches.rounds import REPLAY, SCALE, Contender, Rounds

pytestmark = [pytest.mark.benchmark(timer=REPLAY.time), pytest.mark.timeout(0)]

BY_HAND = "redis.asyncio"
WAYS = {
    f"pipelines of {PIPELINE:,}": ({"chunk": PIPELINE}, SCALE.messages),
    "64 tasks": ({"tasks": 64}, SCALE.messages // 4),
    "one task": ({"tasks": 1}, SCALE.few),
}


def contenders() -> Iterator[Contender]:
    """Return who takes part."""
    for way, (options, messages) in WAYS.items():
        entry = partial(
            Contender, "publish", way, stream="published", prepare=empty, messages=messages, options=options
        )
        yield entry("ruststream", "ruststream_publish", baseline=BY_HAND)
        yield entry("ruststream, uvloop", "ruststream_publish", baseline=f"{BY_HAND}, uvloop", loop="uvloop")
        yield entry(BY_HAND, "redis_py_publish", baseline=BY_HAND)
        yield entry(f"{BY_HAND}, uvloop", "redis_py_publish", baseline=f"{BY_HAND}, uvloop", loop="uvloop")
        if "chunk" in options:
            blocking = options | {"blocking": True}
            yield entry("redis, the blocking client", "redis_py_publish", baseline=BY_HAND, options=blocking)


@pytest.mark.parametrize("contender", [pytest.param(each, id=f"{each.group}-{each.name}") for each in contenders()])
def test_publish(contender: Contender, rounds: Rounds, record: Record) -> None:
    """Every message is in the stream, with the same fields whoever sent it."""
    first = payment(0)
    fields = {
        PAYLOAD: msgspec.json.encode(first).decode(),
        CONTENT_TYPE: "application/json",
        KEY: first.account,
    }
    measured = rounds.of(contender)
    for figures in measured:
        assert figures["length"] == contender.messages
        assert figures["fields"] == fields
    record(contender, measured)
