"""What unit tests share: deliveries made by hand, stand-ins for connections and subscriptions, an app on them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from ruststream.app import RustStream
from ruststream.context import EntryId, HeadersView
from ruststream.redis import RedisBroker, RedisStream
from ruststream.wire import Outgoing, OutgoingMany


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
        if self.refuses is not None:
            raise self.refuses
        self.connected += 1
        return {"server": "redis", "version": "8.10.2", "claim": True, "xnack": True, "xackdel": True}

    async def close(self) -> None:
        self.closed += 1


class StandInPublishing:
    """Notes what is published."""

    def __init__(self, client: object, bell: object) -> None:
        self.client, self.bell = client, bell
        self.calls: list[Any] = []

    async def publish(self, message: Outgoing) -> EntryId:
        self.calls.append(message)
        return EntryId.parse("7-0")

    async def publish_many(self, messages: OutgoingMany | None) -> list[EntryId]:
        self.calls.append(messages)
        return [EntryId.parse("7-0") for _ in messages.payloads] if messages else []


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> type[StandInClient]:
    """Let brokers connect to a stand-in."""
    StandInBell.made.clear()
    StandInClient.made.clear()
    StandInClient.refuses = None
    monkeypatch.setattr("ruststream.redis.broker.Bell", StandInBell)
    monkeypatch.setattr("ruststream.redis.broker.RedisClient", StandInClient)
    monkeypatch.setattr("ruststream.redis.broker.Publishing", StandInPublishing)
    return StandInClient


@pytest.fixture
def bells() -> list[StandInBell]:
    """The bells that were made in this test."""
    return StandInBell.made


class StandInSubscription:
    """A subscription whose handlers, queue and server are what the test says."""

    made: "list[StandInSubscription]" = []  # noqa: RUF012 - emptied by the fixture
    log: "list[str]" = []  # noqa: RUF012 - emptied by the fixture; what happened, in order
    refuses: BaseException | None = None
    deaf = False
    """Whether handlers ignore being cancelled."""
    answers = True
    """Whether the server answers acks."""
    handlers: "tuple[str, ...]" = ()
    """Ids of the entries whose handlers run from the start."""

    def __init__(self, subscriber: Any, broker: Any, bell: Any, state: Any) -> None:
        self.subscriber, self.broker, self.bell, self.app_state = subscriber, broker, bell, state
        self.name, self.consumer = subscriber.name, f"consumer-of-{subscriber.name}"
        self.state, self.error = "starting", None
        self.ids = [EntryId.parse(text) for text in self.handlers]
        self.idle = asyncio.Event()
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.made.append(self)
        if not self.ids:
            self.idle.set()

    def note(self, what: str) -> None:
        self.log.append(f"{what} {self.name}")

    def end_handlers(self) -> None:
        self.ids = []
        self.idle.set()

    async def open(self) -> None:
        self.note("open")
        if self.refuses is not None:
            raise self.refuses

    def start(self) -> None:
        self.note("start")
        self.state = "reading"

    async def stop_reading(self) -> None:
        self.note("stop_reading")

    async def finished(self) -> None:
        await self.idle.wait()

    def running(self) -> list[EntryId]:
        return list(self.ids)

    def cancel(self) -> None:
        self.note("cancel")
        if not self.deaf:
            self.end_handlers()

    async def release(self) -> int:
        self.note("release")
        return 3

    async def flush(self) -> None:
        self.note("flush")
        if not self.answers:
            await asyncio.Event().wait()

    async def close(self) -> None:
        self.note("close")
        self.state = "stopped"

    async def failure(self) -> BaseException:
        return await asyncio.shield(self.failed)

    def stats(self) -> dict[str, int]:
        return {"acked": 10, "retried": 2, "released": 3}

    def left_pending(self) -> int:
        return 1

    def unsettled(self) -> list[EntryId]:
        return list(self.ids) if self.answers else [*self.ids, EntryId.parse("9-9")]


@pytest.fixture
def subscriptions(no_server: object, monkeypatch: pytest.MonkeyPatch) -> type[StandInSubscription]:
    """Let apps run stand-ins for subscriptions, on brokers that connect to nothing."""
    StandInSubscription.made.clear()
    StandInSubscription.log.clear()
    for name, value in (("refuses", None), ("deaf", False), ("answers", True), ("handlers", ())):
        monkeypatch.setattr(StandInSubscription, name, value)
    monkeypatch.setattr("ruststream.stage.Subscription", StandInSubscription)
    monkeypatch.setattr("ruststream.stage.Bell", StandInBell)
    monkeypatch.setattr("ruststream.lifecycle._GRACE", 0.05)
    return StandInSubscription


class Payment(msgspec.Struct):
    id: int


async def handler(payment: Payment): ...


@pytest.fixture
def broker(subscriptions: object) -> RedisBroker:
    """A broker of one subscription, ``handler``, which is a stand-in."""
    broker = RedisBroker("redis://localhost")
    broker.add_subscriber(RedisStream.claiming("payments", min_idle=30, group="ledger"), handler)
    return broker


@pytest.fixture
def app(broker: RedisBroker) -> RustStream:
    """An app of that broker."""
    return RustStream("payments", broker, drain_timeout=0.2)


@pytest.fixture
def hooked(app: RustStream, subscriptions: type[StandInSubscription]) -> RustStream:
    """An app whose hooks note that they were called."""
    for name in ("on_startup", "after_startup", "on_shutdown", "after_shutdown"):
        getattr(app, name)(lambda name=name: subscriptions.log.append(name))
    return app
