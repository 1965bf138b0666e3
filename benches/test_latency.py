"""How old a message is when its handler begins, at a steady pace of 2,000 a second."""

from collections.abc import Iterator
from functools import partial

import pytest

from benches.conftest import Record
from benches.payments import empty_with_group
from benches.rounds import REPLAY, SCALE, Contender, Rounds

pytestmark = [pytest.mark.benchmark(timer=REPLAY.time), pytest.mark.timeout(0)]

PER_SECOND = 2000
SECONDS = 1 if SCALE.quick else 5
BY_HAND = "redis-py, ack per batch"


def contenders() -> Iterator[Contender]:
    """Return who takes part."""
    entry = partial(
        Contender,
        "latency",
        f"{PER_SECOND:,}/s",
        stream="paced",
        prepare=empty_with_group,
        messages=PER_SECOND * SECONDS,
        options={"per_second": PER_SECOND, "max_in_flight": 2000},
    )
    for loop, suffix in (("asyncio", ""), ("uvloop", ", uvloop")):
        by_hand = BY_HAND + suffix
        yield entry(f"ruststream recovering{suffix}", "ruststream_latency", baseline=by_hand, loop=loop)
        yield entry(by_hand, "redis_py_latency", baseline=by_hand, loop=loop)


@pytest.mark.parametrize("contender", [pytest.param(each, id=each.name) for each in contenders()])
def test_latency(contender: Contender, rounds: Rounds, record: Record) -> None:
    """Every message that was sent is handled once and acknowledged."""
    measured = rounds.of(contender)
    for figures in measured:
        assert figures["handled"] == contender.messages
        assert figures["entries_read"] == contender.messages
        assert figures["pending"] == 0
    record(contender, measured)
