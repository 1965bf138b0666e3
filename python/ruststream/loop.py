"""The doorbell on asyncio: one descriptor per loop, and who is told what when it rings."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, Protocol

from ruststream._core import ACKED, ALARM, ASKED, DONE, LOG, LOST, READY, REFUSED, STATE, Engine, EntryId
from ruststream.errors import ShutDownError

_log: Final = logging.getLogger("ruststream")


class Listener(Protocol):
    """A subscription, as the bell sees it."""

    def wake(self) -> None:
        """Entries wait: let an idle lane look."""

    def lost(self, ids: list[EntryId]) -> None:
        """Someone else owns these entries now."""

    def acked(self, ids: list[EntryId]) -> None:
        """The server answered the acks of these entries."""

    def alarm(self) -> None:
        """A wait that it asked for is over."""

    def refused(self, ids: list[EntryId]) -> None:
        """The server refused the acks of these entries, which stay pending."""

    def asked(self, ticket: int) -> None:
        """The core asks something."""

    def changed(self, state: str, error: BaseException | None) -> None:
        """The subscription's state changed."""


class Bell:
    """The core's bell on the running loop. Works on any loop that has `add_reader`."""

    def __init__(self, engine: Engine | None = None) -> None:
        """Watch the descriptor of an engine, of a new one where none is given. To be called inside the running loop."""
        self.loop = asyncio.get_running_loop()
        self.engine = Engine() if engine is None else engine
        self._listeners: dict[int, Listener] = {}
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._open = True
        self.loop.add_reader(self.engine.fileno(), self._rung)

    def listen(self, consumer_id: int, listener: Listener) -> None:
        """Tell `listener` of this consumer's events."""
        self._listeners[consumer_id] = listener

    def forget(self, consumer_id: int) -> None:
        """Tell nobody any more."""
        self._listeners.pop(consumer_id, None)

    def answer(self, ticket: int) -> asyncio.Future[Any]:
        """Return the future of what was queued under this ticket."""
        future = self._answers[ticket] = self.loop.create_future()
        return future

    def close(self) -> None:
        """Watch no more. Whoever waits for an answer still gets what has come, else `ShutDownError`."""
        if not self._open:
            return
        self._rung()
        self._open = False
        self.loop.remove_reader(self.engine.fileno())
        for future in self._answers.values():
            if not future.done():
                future.set_exception(ShutDownError("the broker was closed before the server answered"))
        self._answers.clear()
        self._listeners.clear()

    def _rung(self) -> None:
        ends: BaseException | None = None
        for event in self.engine.drain():
            try:
                self._heard(event)
            except (KeyboardInterrupt, SystemExit) as error:
                # It ends the loop, once the others were told: drained events do not come again.
                ends = error
            except BaseException:  # noqa: BLE001 - whatever it is, the other events of this ring do not come again
                _log.exception("an event of a subscription was not dealt with; the others are")
        if ends is not None:
            raise ends

    def _heard(self, event: tuple[Any, ...]) -> None:
        kind = event[0]
        if kind == READY:
            if (listener := self._listeners.get(event[1])) is not None:
                listener.wake()
        elif kind == DONE:
            self._answered(event[1], event[2])
        elif kind == LOG:
            _log.log(event[1], event[2])
        elif (listener := self._listeners.get(event[1])) is not None:
            self._tell(listener, event)

    def _answered(self, ticket: int, result: object) -> None:
        future = self._answers.pop(ticket, None)
        if future is None or future.done():
            return
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

    @staticmethod
    def _tell(listener: Listener, event: tuple[Any, ...]) -> None:
        kind = event[0]
        if kind == LOST:
            listener.lost(event[2])
        elif kind == ACKED:
            listener.acked(event[2])
        elif kind == ALARM:
            listener.alarm()
        elif kind == REFUSED:
            listener.refused(event[2])
        elif kind == ASKED:
            listener.asked(event[2])
        elif kind == STATE:
            listener.changed(event[2], event[3])
