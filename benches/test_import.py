"""What `import ruststream` costs, and what it brings in."""

import platform

import pytest

from benches.conftest import Record
from benches.rounds import REPLAY, Contender, Rounds

pytestmark = [pytest.mark.benchmark(timer=REPLAY.time), pytest.mark.timeout(0)]

STATEMENTS = {
    "import ruststream": "import ruststream",
    "all that a service needs": (
        "from ruststream import Context, RustStream, retry; from ruststream.redis import RedisBroker, RedisStream"
    ),
    "asyncio and msgspec alone": "import asyncio, msgspec",
    "redis.asyncio": "import redis.asyncio",
    "FastStream": "import faststream.redis",
}
PYTHON = ".".join(platform.python_version_tuple()[:2])
CONTENDERS = [
    Contender("import", PYTHON, name, "fresh_import", options={"statement": statement})
    for name, statement in STATEMENTS.items()
]


@pytest.mark.parametrize("contender", [pytest.param(each, id=each.name) for each in CONTENDERS])
def test_import(contender: Contender, rounds: Rounds, record: Record) -> None:
    """The import succeeds in an interpreter that has imported nothing yet."""
    measured = rounds.of(contender)
    for figures in measured:
        assert figures["modules"] > 0
    record(contender, measured)
