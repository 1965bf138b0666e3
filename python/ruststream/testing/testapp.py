"""`TestApp`: the app as it ships, on servers within the process, by a clock that moves when the test says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from ruststream._core import EntryId
from ruststream.app import RustStream
from ruststream.context import entry_id_text
from ruststream.errors import ConfigError, ConnectError
from ruststream.message import stream_of
from ruststream.option import Duration, shown, whole
from ruststream.option import seconds as checked_seconds
from ruststream.redis.address import read_address
from ruststream.redis.broker import RedisBroker
from ruststream.signature import Handler
from ruststream.stage import HERE
from ruststream.testing.pace import Budget, LivePace, ModelPace, Pace, alone, passing_seconds
from ruststream.testing.record import Call, SubscriberRecord
from ruststream.testing.stage import LiveStage, ModelStage
from ruststream.testing.view import Entry, PendingEntry, StreamView, pending_view, stream_view

_DRAIN: Final = 0.5
"""Seconds that handlers get to end when the test is over."""
_LOOK: Final = 0.002
"""Seconds of real time between two looks at what is still to be answered then."""
_STEP_NS: Final = 1_000_000_000
"""What passes of the model's time between them, at most."""
_FAULTS: Final = ("read", "ack", "publish")


class TestApp:
    """An app under test. Use it as `async with TestApp(app) as t:`; the app itself is left as it was.

    Without `live` every broker of the app stands on an empty stream server within the process, which refuses what a
    server refuses. Time stands still; `advance` moves it, and entry ids, idle times, delays and leases follow. What
    happens is the same in every run.

    With `live` the brokers stand on the server of that URL, which must hold nothing of what the app reads, and time is
    the server's: `advance` waits. At the end the streams that the app reads, those that the test looked at, and dead
    letters are deleted.
    """

    __test__ = False  # not a class of tests, whatever its name says to pytest

    def __init__(
        self, app: RustStream, *, live: str | None = None, max_calls: int = 10_000, patience: Duration = 5.0
    ) -> None:
        """Do nothing yet.

        Args:
            app: the app; it must not run, and no other TestApp may have it.
            live: the URL of a server to run on in place of the model.
            max_calls: handler calls at one time that are taken for an endless loop; ten times as many within one
                `advance`.
            patience: seconds of real time that a handler may take, or a server.

        Raises:
            ConfigError: an argument is wrong.
        """
        if not isinstance(app, RustStream):
            raise ConfigError(f"TestApp takes the app, a RustStream, not {app!r}")
        if live is not None and read_address(live).url.startswith("memory:"):
            raise ConfigError(
                "live= takes the URL of a real server; without it the app runs on a model within the process"
            )
        self.app = app
        self._live = live
        self._max_calls = whole(max_calls, "max_calls", 1, 1_000_000_000)
        self._patience = checked_seconds(patience, "patience", zero=False)
        self._stage = self._make_stage()
        self._pace: Pace | None = None
        self._published: set[tuple[str | None, EntryId]] = set()
        self._streams: set[str] = set()
        self._busy: list[str] = []

    # Its life.

    async def __aenter__(self) -> Self:
        """Start the app: hooks, brokers, groups, readers.

        Raises:
            ConfigError: the app runs, or another TestApp has it; on a real server: the app's streams are not empty.
        """
        if self._pace is not None:
            raise ConfigError("this TestApp is open already: make another one for another test")
        if self.app.stage is not HERE:
            raise ConfigError(
                f"another TestApp has the app {self.app.title!r} and was not left: "
                "one at a time, each as `async with TestApp(app) as t:`"
            )
        self._stage = self._make_stage()
        self.app.stage = self._stage
        try:
            await self.app.__aenter__()
        except BaseException:
            self.app.stage = HERE
            raise
        try:
            self._pace = self._begin()
            await self._pace.rest(set())
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the app. Handlers that still run get half a second to end."""
        patience, self.app.drain_timeout = self.app.drain_timeout, min(self.app.drain_timeout, _DRAIN)
        answering = asyncio.create_task(self._let_answers_come())
        try:
            await self.app.__aexit__(kind, error, traceback)
            if self._live is not None and self._pace is not None:
                await self._clean(self._live)
        finally:
            answering.cancel()
            self.app.drain_timeout = patience
            self.app.stage = HERE
            self._pace = None

    def __del__(self) -> None:
        """Let go of an app that was stopped without leaving the test. One that runs stays taken."""
        if getattr(self, "_pace", None) is not None and self.app.stage is self._stage and self.app.life is None:
            self.app.stage = HERE

    @property
    def is_open(self) -> bool:
        """Whether the app runs under it."""
        return self._pace is not None

    # What a test does.

    async def publish(
        self,
        message: object,
        stream: str | None = None,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        content_type: str | None = None,
        wait: bool = True,
    ) -> EntryId:
        """Publish a message as the outside world does, and return its id once the whole reaction has settled.

        Handlers that ran before the call are not waited for, unless the message has to wait for one of them itself.

        Args:
            message: what the broker's codec encodes; `bytes` go as they are.
            stream: the stream's key. None: the one that `@outgoing` names for the message's class.
            key: the partition key.
            headers: by name.
            content_type: instead of the codec's.
            wait: False returns as soon as the message is in a handler's hands, or waits for one.

        Raises:
            ConfigError: nobody reads the stream, or an argument is wrong.
            NotQuiescentError: handlers cause more and more calls, or one does not end.
            PublishError: the server refused the message.
        """
        pace = self._open()
        with alone(self._busy, "publish"):
            held = self._stage.suspended()
            stream = stream_of(type(message)) if stream is None else stream
            entry_id = await self._stage.reader_of(stream).publish(
                message, stream, key=key, headers=headers, content_type=content_type
            )
            self._published.add((stream, entry_id))
            self._streams.add(stream or "")
            if not wait:
                await pace.start_handlers()
                return entry_id
            await pace.rest(held)
            if held and any(one.stats()["queued"] for one in self._stage.subscriptions):
                # It stands behind handlers that ran before.
                await pace.rest(set())
            return entry_id

    async def advance(self, passing: Duration, *, wait: bool = True) -> None:
        """Let time pass: what falls due in it happens at its time, one thing after another, each to its end.

        Handlers that ran before the call are not waited for, and their entries are renewed. Time stops where there
        seems to be no end to it: after ten times `max_calls` handler calls, or where something fell due a million
        times.

        Args:
            passing: seconds, or a `timedelta`. On a real server at most ten seconds, which are waited for.
            wait: False waits for no handler, also for none that begins meanwhile.

        Raises:
            ConfigError: negative, not a number, or more than ten years.
            NotQuiescentError: handlers cause more and more calls, or one does not end.
        """
        pace = self._open()
        with alone(self._busy, "advance"):
            await pace.advance(passing_seconds(passing), self._stage.suspended() if wait else None)

    async def settle(self) -> None:
        """Return once nothing is left to do now: all handlers have ended and their outcomes are carried out.

        Raises:
            NotQuiescentError: there is no end to it.
        """
        pace = self._open()
        with alone(self._busy, "settle"):
            await pace.rest(set())

    async def crash(self, subscription: Handler | str) -> None:
        """Do to a subscription what `kill -9` does, and start it anew as its supervisor would.

        What it had in hand stays pending under the name of a consumer that is gone; its handlers are cancelled and
        their outcomes sent nowhere.

        Raises:
            ConfigError: there is no such subscription.
        """
        pace = self._open()
        name = self._stage.named(subscription)
        with alone(self._busy, "crash"):
            gone = next(one for one in self._stage.subscriptions if one.name == name)
            life = self.app.life
            assert life is not None
            fresh = self._stage.again(gone)
            life.replace(gone, fresh)
            await fresh.open()
            fresh.start()
            with suppress(TimeoutError):
                await asyncio.wait_for(gone.finished(), _DRAIN)
            await pace.rest(self._stage.suspended())

    def steal(self, entry: Call | EntryId | str) -> None:
        """Let another consumer take an entry over, as one does whose `min_idle` is too short.

        Whoever handles the entry here finds out at the next renewal.

        Args:
            entry: a call, or the id of its entry: an `EntryId`, or as Redis writes it.

        Raises:
            ConfigError: not an entry, or no subscription has it pending.
        """
        self._open()
        found = entry.entry_id if isinstance(entry, Call) else entry
        entry_id = found if isinstance(found, EntryId) else EntryId.parse(entry_id_text(found, "steal(entry)"))
        if not self._stage.steal(entry_id):
            raise ConfigError(f"entry {entry_id} is not pending in any group of the app: nothing is left to steal")

    def fail_next(self, operation: str, error: BaseException | None = None) -> None:
        """Let the next such operation of a subscription or publisher fail.

        Args:
            operation: `"read"`, `"ack"` (carrying outcomes out), or `"publish"`. Nothing of it happens.
            error: a `ConnectionError`, such as `ConnectError`, is a lost connection; anything else is refused by the
                server with that text. None is a lost connection.

        Raises:
            ConfigError: no such operation, `error` is no exception, or the test runs on a real server.
        """
        self._open()
        if error is not None and not isinstance(error, BaseException):
            raise ConfigError(
                "fail_next takes an exception: a ConnectError(...) is a lost connection, a PublishError(...) with the "
                f"server's text a refusal; not {shown(error)}"
            )
        if operation not in _FAULTS:
            raise ConfigError(f"fail_next takes one of {', '.join(map(repr, _FAULTS))}, not {operation!r}")
        if not isinstance(self._stage, ModelStage) or self._stage.made is None:
            raise ConfigError("fail_next is for the model: a real server can't be told to fail")
        failure = ConnectError("the connection was lost (fail_next)") if error is None else error
        self._stage.made.engine.fail_next(operation, isinstance(failure, (ConnectionError, OSError)), str(failure))

    # What a test looks at.

    def subscriber(self, subscription: Handler | str) -> SubscriberRecord:
        """Return what a handler was called with.

        Args:
            subscription: the handler, or the subscription's name.

        Raises:
            ConfigError: there is no such subscription, or the handler has several.
        """
        self._open()
        return self._stage.records[self._stage.named(subscription)]

    def published(self, stream: str) -> list[Entry]:
        """Return what the app has published to a stream, the oldest first: all that is there but for the test's own."""
        return [entry for entry in self.stream(stream) if (stream, entry.entry_id) not in self._published]

    def stream(self, name: str) -> StreamView:
        """Return a stream as it is now."""
        self._open()
        self._streams.add(name)
        return stream_view(self._stage.client_of(name, self.app.brokers[0]), name)

    def pending(self, stream: str, group: str) -> list[PendingEntry]:
        """Return what was delivered to a group and is not settled, by id."""
        self._open()
        return pending_view(self._stage.client_of(stream, self.app.brokers[0]), stream, group)

    @property
    def now(self) -> float:
        """The time of day by the test's clock, in seconds since the epoch. On a real server, this machine's."""
        self._open()
        made = self._stage.made if isinstance(self._stage, ModelStage) else None
        now_ms = None if made is None else made.engine.now_ms()
        return time.time() if now_ms is None else now_ms / 1000

    # Its own.

    def _make_stage(self) -> ModelStage | LiveStage:
        return ModelStage() if self._live is None else LiveStage(self._live)

    def _begin(self) -> Pace:
        budget = Budget(self._stage, self._max_calls, self._patience)
        if isinstance(self._stage, ModelStage):
            assert self._stage.made is not None
            return ModelPace(self._stage, self._stage.made, budget)
        for subscription in self._stage.subscriptions:
            self._streams.add(subscription.subscriber.stream)
        return LivePace(self._stage, budget)

    async def _let_answers_come(self) -> None:
        """Let time pass for outcomes that are sent once more after a pause: where the clock stands, it never ends."""
        made = self._stage.made if isinstance(self._stage, ModelStage) else None
        while made is not None:
            await asyncio.sleep(_LOOK)
            stopped = all(one.finished_reading for one in self._stage.subscriptions)
            owed = any(one.stats()["unsettled"] for one in self._stage.subscriptions)
            if stopped and owed and not self._stage.suspended():
                made.engine.step(_STEP_NS, 1)

    async def _clean(self, live: str) -> None:
        read = [one.subscriber for one in self._stage.subscriptions]
        letters = {one.dead_letter for one in read if one.dead_letter is not None}
        keys = {*self._streams, *letters, *(one.delay_key for one in read)}
        async with RedisBroker(live) as broker:
            broker.client.delete(sorted(keys))

    def _open(self) -> Pace:
        if self._pace is None:
            raise ConfigError("this TestApp is not open: use it as `async with TestApp(app) as t:`")
        return self._pace
