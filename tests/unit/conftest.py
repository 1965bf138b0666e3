"""What unit tests share: deliveries made by hand, and stand-ins for modules that are not built."""

import asyncio
import importlib.util
import re
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import total_ordering
from typing import Any

import pytest


@total_ordering
@dataclass(frozen=True)
class StandInEntryId:
    """What tests need of `EntryId` where the native module is not built."""

    ms: int
    seq: int = 0

    @staticmethod
    def parse(text: str | bytes) -> "StandInEntryId":
        given = text.decode() if isinstance(text, bytes) else text
        if not re.fullmatch(r"[0-9]+(-[0-9]+)?", given, re.ASCII):
            raise ValueError(given)
        numbers = [int(part) for part in given.split("-")]
        if max(numbers) >= 2**64:
            raise ValueError(given)
        return StandInEntryId(*numbers)

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"

    def __lt__(self, other: "StandInEntryId") -> bool:
        return (self.ms, self.seq) < (other.ms, other.seq)


def stand_in(name: str, **members: Any) -> None:
    """Put a module in the place of one that is not there."""
    if importlib.util.find_spec(name) is None:
        module = types.ModuleType(name)
        vars(module).update(members)
        sys.modules[name] = module


stand_in(
    "ruststream._core",
    EntryId=StandInEntryId,
    Context=type("Context", (), {}),
    Engine=type("Engine", (), {}),
    RedisClient=type("RedisClient", (), {}),
    __version__="0.0.0",
)
stand_in("ruststream.loop", Bell=type("Bell", (), {}))
stand_in("ruststream.publisher", Publishing=type("Publishing", (), {}))
stand_in("ruststream.subscription", Subscription=type("Subscription", (), {}))

from ruststream.context import Context, EntryId, HeadersView  # noqa: E402 - after the stand-ins


@dataclass
class Delivery:
    """A delivery with the attributes of `Context` that handlers and codecs look at."""

    payload: bytes = b""
    fields: list[tuple[bytes, bytes]] = field(default_factory=list)
    stream: str = "payments"
    group: str = "ledger"
    entry_id: EntryId = field(default_factory=lambda: EntryId.parse("5-1"))
    delivery_count: int = 1
    idle: float = 0.0
    mode: str = "new"

    @property
    def headers(self) -> HeadersView:
        return HeadersView.of(self, self.mode)  # type: ignore[arg-type]


MakeDelivery = Callable[..., Any]


@pytest.fixture
def envelope() -> MakeDelivery:
    """Make a delivery as our own publishers write it: `envelope(b"body", {"name": "value"})`."""

    def make(payload: bytes, headers: dict[str, str] | None = None, **attributes: Any) -> Delivery:
        fields = [(b"_payload", payload)]
        fields += [(f"h:{name}".encode(), value.encode()) for name, value in (headers or {}).items()]
        return Delivery(payload=payload, fields=fields, **attributes)

    return make


@pytest.fixture
def foreign() -> MakeDelivery:
    """Make a delivery as a foreign producer writes it: `foreign((b"id", b"1"), (b"account", b"a"))`."""

    def make(*fields: tuple[bytes, bytes], **attributes: Any) -> Delivery:
        return Delivery(fields=list(fields), **attributes)

    return make


class StandInBell:
    """Counts how often it was closed."""

    made: "list[StandInBell]" = []  # noqa: RUF012 - emptied by the fixture

    def __init__(self) -> None:
        asyncio.get_running_loop()
        self.engine = object()
        self.closed = 0
        self.made.append(self)

    def close(self) -> None:
        self.closed += 1


class StandInClient:
    """Stands for the native client: notes what it was asked, and fails where told to."""

    made: "list[StandInClient]" = []  # noqa: RUF012 - emptied by the fixture
    refuses: BaseException | None = None

    def __init__(self, engine: object, url: str, **options: Any) -> None:
        self.engine, self.url, self.options = engine, url, options
        self.connected = self.closed = 0
        self.made.append(self)

    async def connect(self) -> dict[str, Any]:
        if StandInClient.refuses is not None:
            raise StandInClient.refuses
        self.connected += 1
        return {"server": "redis", "version": "8.10.2", "claim": True, "xnack": True, "xackdel": True}

    async def close(self) -> None:
        self.closed += 1


class StandInPublishing:
    """Notes what is published."""

    def __init__(self, client: object, bell: object, default_codec: object) -> None:
        self.client, self.bell, self.default_codec = client, bell, default_codec
        self.calls: list[tuple[object, str, dict[str, Any]]] = []

    async def publish(self, message: object, stream: str, **options: Any) -> EntryId:
        self.calls.append((message, stream, options))
        return EntryId.parse("7-0")

    async def publish_many(self, messages: Iterable[object], stream: str, **options: Any) -> list[EntryId]:
        self.calls.append((messages, stream, options))
        return [EntryId.parse("7-0") for _ in messages]


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> type[StandInClient]:
    """Let brokers connect to a stand-in."""
    StandInBell.made, StandInClient.made, StandInClient.refuses = [], [], None
    monkeypatch.setattr("ruststream.redis.broker.Bell", StandInBell)
    monkeypatch.setattr("ruststream.redis.broker.RedisClient", StandInClient)
    monkeypatch.setattr("ruststream.redis.broker.Publishing", StandInPublishing)
    return StandInClient


__all__ = ["Context", "Delivery", "StandInBell", "StandInClient"]
