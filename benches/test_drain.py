"""The same backlog drained by everyone, at every COUNT."""

from collections.abc import Iterator
from functools import partial

import pytest
import redis

from benches.conftest import Record
from benches.payments import load, load_for_faststream, rewind
from benches.rounds import REPLAY, SCALE, Contender, Rounds

pytestmark = [pytest.mark.benchmark(timer=REPLAY.time), pytest.mark.timeout(0)]

MANY, FEW, FASTSTREAM = "payments", "payments:few", "payments:faststream"
BY_HAND = "redis-py, ack per batch"
BY_HAND_UVLOOP = "redis-py, ack per batch, uvloop"
IN_FLIGHT = {"max_in_flight": 2000}
DEFAULT_COUNT = 200


def contenders(count: int) -> Iterator[Contender]:
    """Return who takes part at this COUNT. Ratios are to redis-py with one ack per batch, on the same kind of loop."""
    entry = partial(Contender, "drain", str(count), prepare=rewind, count=count, baseline=BY_HAND)
    many = partial(entry, stream=MANY, messages=SCALE.messages)
    few = partial(entry, stream=FEW, messages=SCALE.few)
    ours = "ruststream_drain"
    yield many("ruststream recovering", ours, options=IN_FLIGHT | {"mode": "recovering"})
    yield many("ruststream claiming", ours, options=IN_FLIGHT | {"mode": "claiming"})
    yield many("ruststream new", ours, options=IN_FLIGHT | {"mode": "new"})
    if count == DEFAULT_COUNT:
        yield many("ruststream recovering, defaults", ours, options={"mode": "recovering", "defaults": True})
    yield many(
        "ruststream recovering, uvloop",
        ours,
        options=IN_FLIGHT | {"mode": "recovering"},
        loop="uvloop",
        baseline=BY_HAND_UVLOOP,
    )
    yield many(BY_HAND, "redis_py_drain", options={"ack": "batch"})
    yield many(BY_HAND_UVLOOP, "redis_py_drain", options={"ack": "batch"}, loop="uvloop", baseline=BY_HAND_UVLOOP)
    yield many("redis-py, ack with next read", "redis_py_drain", options={"ack": "next-read"})
    yield few("redis-py, ack per entry", "redis_py_drain", options={"ack": "entry"})
    yield few("FastStream", "faststream_drain", stream=FASTSTREAM)


@pytest.fixture(scope="module", autouse=True)
def backlogs(client: redis.Redis) -> Iterator[None]:
    """The streams, filled once; each round begins with its group made anew."""
    load(client, MANY, SCALE.messages)
    load(client, FEW, SCALE.few)
    load_for_faststream(client, FASTSTREAM, SCALE.few)
    yield
    client.unlink(MANY, FEW, FASTSTREAM)


@pytest.mark.parametrize(
    "contender", [pytest.param(each, id=f"{count}-{each.name}") for count in SCALE.counts for each in contenders(count)]
)
def test_drain(contender: Contender, rounds: Rounds, record: Record) -> None:
    """Every entry is read once, handled once and acknowledged."""
    measured = rounds.of(contender)
    for figures in measured:
        assert figures["handled"] == contender.messages
        assert figures["entries_read"] == contender.messages
        assert figures["pending"] == 0
    record(contender, measured)
