"""Where a tested app runs: on models by a stopped clock, or on a real server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, TypeAlias

from ruststream._core import BatchContext, Context, Engine, EntryId, RedisClient
from ruststream.errors import ConfigError
from ruststream.loop import Bell
from ruststream.redis.broker import RedisBroker
from ruststream.signature import Handler
from ruststream.stage import Stage
from ruststream.subscriber import Subscriber
from ruststream.subscription import Subscription
from ruststream.testing.record import SubscriberRecord
from ruststream.testing.subscription import RecordedSubscription
from ruststream.testing.view import pending_view, stream_view

Running: TypeAlias = Context | BatchContext
"""What a handler has in its hands."""
START_MS: Final = 1_767_225_600_000
"""Where the clock stands when a test begins: the first of January 2026, UTC."""
_THIEF: Final = "thief"


class RecordedStage(Stage):
    """The base of both: subscriptions that are recorded."""

    def __init__(self) -> None:
        """Do nothing yet."""
        self.records: dict[str, SubscriberRecord] = {}
        self.subscriptions: list[RecordedSubscription] = []
        self._numbers: dict[str, int] = {}
        self._owners: dict[str, tuple[str, RedisBroker]] = {}

    def subscription(self, subscriber: Subscriber, broker: RedisBroker, bell: Bell, state: Any) -> Subscription:
        """Make a subscription whose calls are written down."""
        unique = replace(subscriber, name=self._unique(subscriber.name, broker))
        return self._make(unique, broker, bell, state)

    def _make(self, subscriber: Subscriber, broker: RedisBroker, bell: Bell, state: Any) -> RecordedSubscription:
        name = subscriber.name
        record = self.records.setdefault(name, SubscriberRecord(name, subscriber.stream, subscriber.group))
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        made = RecordedSubscription(subscriber, broker, bell, state, record, number)
        self.subscriptions.append(made)
        return made

    def _unique(self, name: str, broker: RedisBroker) -> str:
        """Return the subscription's name; with a number where one of another broker has it already."""
        number, unique = 1, name
        while self._owners.setdefault(unique, (name, broker)) != (name, broker):
            number += 1
            unique = f"{name}-{number}"
        return unique

    def again(self, gone: RecordedSubscription) -> RecordedSubscription:
        """Make another one of a subscription, in place of it."""
        gone.abandon()
        self.subscriptions.remove(gone)
        fresh = self._make(gone.subscriber, gone.broker, gone.bell, gone.app_state)
        # Whoever watches the first one hears of the second one's end.
        fresh.inherit(gone)
        return fresh

    def hurry(self) -> bool:
        """Have batches handed over that are not full. Whether there are any."""
        return sum(subscription.hurry() for subscription in self.subscriptions) > 0

    def suspended(self) -> set[Running]:
        """Return the deliveries whose handlers wait for something."""
        return {ctx for subscription in self.subscriptions for ctx in subscription.suspended}

    def moves(self) -> bool:
        """Return whether something goes on besides handlers that wait."""
        return any(subscription.moves for subscription in self.subscriptions)

    def reader_of(self, stream: str | None) -> RedisBroker:
        """Return the broker whose subscribers read the stream.

        Raises:
            ConfigError: nobody reads it.
        """
        readers = [one for one in self.subscriptions if one.subscriber.stream == stream]
        if not readers:
            known = ", ".join(sorted({one.subscriber.stream for one in self.subscriptions})) or "nothing"
            raise ConfigError(f"no subscriber of the app reads stream {stream!r}: it reads {known}")
        return readers[0].broker

    def client_of(self, stream: str, other: RedisBroker) -> RedisClient:
        """Return the client of the broker whose subscribers read the stream; where nobody does, that of the other."""
        for one in self.subscriptions:
            if one.subscriber.stream == stream:
                return one.broker.client
        return other.client

    def steal(self, entry_id: EntryId) -> bool:
        """Let another consumer take an entry over. False: no subscription has it pending."""
        for one in self.subscriptions:
            where = one.subscriber
            pending = pending_view(one.broker.client, where.stream, where.group)
            if any(row.entry_id == entry_id for row in pending):
                one.broker.client.steal(where.stream, where.group, _THIEF, entry_id)
                return True
        return False

    def named(self, subscription: Handler | str) -> str:
        """Return the name of a subscription that is given by its handler, or by its name.

        Raises:
            ConfigError: there is no such subscription, or the handler has several.
        """
        known = self.subscriptions
        if isinstance(subscription, str):
            names = [one.name for one in known if one.name == subscription]
        else:
            names = [one.name for one in known if one.subscriber.plan.handler is subscription]
        what = subscription if isinstance(subscription, str) else getattr(subscription, "__name__", repr(subscription))
        if not names:
            there = ", ".join(one.name for one in known) or "none"
            raise ConfigError(f"{what} is no subscription of the app; there are: {there}")
        if len(names) > 1:
            raise ConfigError(f"{what} handles several subscriptions, give the name of one: {', '.join(names)}")
        return names[0]


class PumpedBell(Bell):
    """A bell whose engine does its work when it is asked to, on this thread."""

    def turn(self) -> None:
        """Let the core do what it can do now, and tell everyone what came of it."""
        self._rung()


class ModelStage(RecordedStage):
    """Models in place of the brokers' servers, one per address, empty at the start."""

    def __init__(self) -> None:
        """Do nothing yet."""
        super().__init__()
        self.made: PumpedBell | None = None

    def bell(self) -> PumpedBell:
        """Return a bell whose engine has a clock that stands still."""
        self.made = PumpedBell(Engine(stopped_at_ms=START_MS))
        return self.made


class LiveStage(RecordedStage):
    """A real server in place of the brokers' own."""

    def __init__(self, url: str) -> None:
        """Take the server's URL."""
        super().__init__()
        self.url: Final = url

    async def connect(self, broker: RedisBroker, bell: Bell) -> None:
        """Connect a broker to the server of the test, and see that nothing of what it reads is there.

        Raises:
            ConnectError: it can't be reached.
            ConfigError: a stream holds entries, which are not the test's to handle.
        """
        await broker.connect(bell, self.url)
        for stream in {subscriber.stream for subscriber in broker.subscribers}:
            if held := len(stream_view(broker.client, stream)):
                await broker.close()
                raise ConfigError(
                    f"the server holds {held} entries in stream {stream}, which the app reads: "
                    "live= needs a server, or a database, of the test's own"
                )
