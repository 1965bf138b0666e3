"""What the behaviour tests share: a broker on the test's server, its subscribers, its stream as redis-py sees it."""

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import redis

from ruststream import RustStream
from ruststream.redis import RedisBroker, RedisStream, StreamStart
from servers import Server

RECOVERERS = ["recovering", "reclaim"]
FILL = """
for number = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  redis.call('XADD', KEYS[1], '*', '_payload', number, 'h:redis-partition-key', 'key-' .. number % tonumber(ARGV[3]))
end
"""


class Stream:
    """A stream and its groups, seen from outside. The group is ``g`` unless a method is told another one."""

    def __init__(self, client: redis.Redis, name: str = "s") -> None:
        self.client = client
        self.name = name

    def add(self, body: bytes | str = b"", /, **headers: bytes | str) -> str:
        """Append an entry in the wire form; return its id. A header's ``_`` becomes ``-``."""
        fields = {"_payload": body} | {f"h:{name.replace('_', '-')}": value for name, value in headers.items()}
        return self.add_fields(fields)

    def add_fields(self, fields: dict[Any, Any]) -> str:
        """Append an entry of these fields, as a foreign producer would."""
        return self.client.xadd(self.name, fields).decode()

    def add_numbered(self, first: int, last: int, keys: int = 1) -> None:
        """Append entries whose bodies are the numbers from ``first`` to ``last``, with so many keys in turn."""
        self.client.eval(FILL, 1, self.name, first, last, keys)

    def create_group(self, group: str = "g", start: str = "0") -> None:
        """Make the group, and the stream with it."""
        self.client.xgroup_create(self.name, group, id=start, mkstream=True)

    def deliver(self, consumer: str = "gone", count: int = 100_000, group: str = "g") -> list[str]:
        """Read new entries as another consumer, which then never settles them. Return their ids."""
        reply = self.client.execute_command(
            "XREADGROUP", "GROUP", group, consumer, "COUNT", count, "STREAMS", self.name, ">"
        )
        streams = reply.items() if isinstance(reply, dict) else reply or []
        return [entry[0].decode() for _, entries in streams for entry in _flat(entries)]

    def claim(self, consumer: str, *ids: str, group: str = "g") -> None:
        """Take entries over as another consumer, as XCLAIM does it: the count goes up, the idle time starts again."""
        self.client.xclaim(self.name, group, consumer, 0, list(ids))

    def pending(self, group: str = "g", count: int = 100_000) -> list[dict[str, Any]]:
        """Return the pending list: message_id, consumer, time_since_delivered, times_delivered."""
        rows = self.client.xpending_range(self.name, group, "-", "+", count)
        return [{**row, "message_id": row["message_id"].decode(), "consumer": row["consumer"].decode()} for row in rows]

    def pending_ids(self, group: str = "g") -> list[str]:
        """Return the ids of the pending list, lowest first."""
        return [row["message_id"] for row in self.pending(group)]

    def length(self) -> int:
        """Return XLEN."""
        return self.client.xlen(self.name)

    def entries(self) -> list[tuple[str, dict[bytes, bytes]]]:
        """Return all entries, oldest first."""
        return [(entry_id.decode(), fields) for entry_id, fields in self.client.xrange(self.name)]

    def group(self, group: str = "g") -> dict[str, Any]:
        """Return the group's row of XINFO GROUPS."""
        rows = self.client.xinfo_groups(self.name)
        return next(row for row in rows if row["name"] == group.encode())

    def consumers(self, group: str = "g") -> dict[str, dict[str, Any]]:
        """Return the rows of XINFO CONSUMERS by name."""
        return {row["name"].decode(): row for row in self.client.xinfo_consumers(self.name, group)}


def _flat(entries: Iterable[Any]) -> list[Any]:
    """RESP3 replies of redis-py wrap the entries once more."""
    found = list(entries)
    return found[0] if found and found[0] and isinstance(found[0][0], (list, tuple)) else found


def collect(broker, source, **options):
    """Subscribe a handler that keeps the bodies it gets."""
    seen = []

    async def handle(body: bytes):
        seen.append(body)

    broker.add_subscriber(source, handle, **options)
    return seen


def recoverer(mode: str, min_idle: float, **options: object) -> RedisStream:
    """A subscription of the group that takes over what is idle for ``min_idle`` seconds."""
    return getattr(RedisStream, mode)("s", group="g", min_idle=min_idle, start_id=StreamStart.BEGINNING, **options)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server:
    """The server of the test: ``any_server`` if it asks for that, else the shared Redis 8.10; emptied."""
    if "any_server" in request.fixturenames:
        return request.getfixturevalue("any_server")
    request.getfixturevalue("redis_url")
    return request.getfixturevalue("redis_server")


@pytest.fixture
def stream(witness: redis.Redis) -> Stream:
    """The stream ``s`` on the server of the test."""
    return Stream(witness)


@pytest.fixture
def letters(stream) -> Stream:
    """The stream of dead letters."""
    return Stream(stream.client, "s.dlq")


@pytest.fixture
def broker(server: Server) -> RedisBroker:
    """A broker of the server of the test."""
    return RedisBroker(server.url)


@pytest.fixture
def make_broker(server: Server) -> Callable[[], RedisBroker]:
    """More brokers of the same server, one for each app."""
    return lambda: RedisBroker(server.url)


@pytest.fixture
def stream_of(make_witness: Callable[[Server], redis.Redis]) -> Callable[..., Stream]:
    """A stream of a server of the test's own: ``stream_of(server, "name")``."""
    return lambda server, name="s": Stream(make_witness(server), name)


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str, str], None]:
    """Note a measured figure: printed (seen with ``-s`` or ``-rP``), and kept in the report file."""

    def note(name: str, value: str) -> None:
        record_property(name, value)
        sys.stdout.write(f"{name}: {value}\n")

    return note


@pytest.fixture
def beside() -> Callable[[RustStream], contextlib.AbstractContextManager[None]]:
    """Run an app on a loop of its own, in a thread: ``with beside(app):``. The test's loop may block meanwhile."""

    @contextlib.contextmanager
    def run(app: RustStream) -> Iterator[None]:
        ready, stop = threading.Event(), threading.Event()

        async def main() -> None:
            async with app:
                ready.set()
                await asyncio.to_thread(stop.wait)

        thread = threading.Thread(target=asyncio.run, args=(main(),), name="beside")
        thread.start()
        try:
            assert ready.wait(10), "the app beside did not start"
            yield
        finally:
            stop.set()
            thread.join()

    return run
