"""The same backlog, ended in every way there is."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from benches.conftest import Record
from benches.contenders.ruststream_outcomes import TWICE
from benches.payments import LETTERS, REPLIES, copy_of, load
from benches.rounds import REPLAY, SCALE, Contender, Rounds, untouched

pytestmark = [pytest.mark.benchmark(timer=REPLAY.time), pytest.mark.timeout(0)]

COUNT = 500
ALL, HALF, FEW = SCALE.messages, SCALE.messages // 2, SCALE.few
BACKLOGS = {ALL: "backlog", HALF: "backlog:half", FEW: "backlog:few"}
PLAIN = "ack"
BY_HAND = "redis-py, a script for each dead letter"


def contender(name: str, messages: int = ALL, *, baseline: str = PLAIN, **options: Any) -> Contender:
    """Return one of this package. It gets a copy of the backlog, as most of them leave it in another state."""
    return Contender(
        "outcomes",
        str(COUNT),
        name,
        "ruststream_outcomes",
        messages,
        "outcomes",
        prepare=untouched if options.get("within") else copy_of(BACKLOGS[messages]),
        baseline=baseline,
        count=COUNT,
        options={"outcome": "ack", "mode": "recovering", "max_in_flight": 2000} | options,
    )


CONTENDERS = [
    contender(PLAIN),
    contender("ack, max_attempts and dead_letter set", capped=True),
    contender("ack, batch=200", outcome="batch"),
    contender("ack, Trim.acked()", trimmed=True),
    contender("ack, memory://", within=True),
    contender("ack, idempotency, 64 workers", FEW, marked=True),
    contender("reply_to", FEW, outcome="reply"),
    contender("dead_letter(why)", HALF, outcome="dead letter", baseline=BY_HAND),
    replace(contender(BY_HAND, HALF, baseline=BY_HAND, outcome="dead letter"), module="redis_py_letters", count=1000),
    contender("retry(after=600)", HALF, outcome="park"),
    contender("retry(after=0.05), then ack", HALF, outcome="again"),
    contender("retry(after=0.05), then ack, max_attempts set", HALF, outcome="again", capped=True),
    contender("retry(), mode new", HALF, outcome="retry", mode="new"),
    contender("retry(), mode new, max_attempts set", HALF, outcome="retry", mode="new", capped=True),
]


@pytest.fixture(scope="module", autouse=True)
def backlogs(client: redis.Redis) -> Iterator[None]:
    """The streams that each round gets a copy of."""
    for messages, stream in BACKLOGS.items():
        load(client, stream, messages)
    yield
    client.unlink(*BACKLOGS.values())


def expected(contender: Contender) -> dict[str, int]:
    """Return what the server, and the handler, must say at the end."""
    messages, options = contender.messages, contender.options
    outcome = options["outcome"]
    entries = messages * (2 if outcome == "retry" else 1)  # a copy is an entry more
    ended = {
        "handled": messages * (2 if outcome in TWICE else 1),
        "entries_read": entries,
        "pending": messages if outcome == "park" else 0,
    }
    if options.get("within"):
        return ended
    return ended | {
        "length": 0 if options.get("trimmed") else entries,
        "parked": messages if outcome == "park" else 0,
        LETTERS: messages if outcome == "dead letter" else 0,
        REPLIES: messages if outcome == "reply" else 0,
    }


@pytest.mark.parametrize("contender", [pytest.param(each, id=each.name) for each in CONTENDERS])
def test_outcomes(contender: Contender, rounds: Rounds, record: Record) -> None:
    """Every entry is handled once, twice where that is asked for, and ends where its outcome says."""
    measured, ends = rounds.of(contender), expected(contender)
    for figures in measured:
        assert {name: figures[name] for name in ends} == ends
    record(contender, measured)
