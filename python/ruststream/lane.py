"""The lane: one long-lived task that runs one handler at a time, each message in a context of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import Context as Variables
from typing import Any, Final, Protocol

from ruststream._core import RAISED, RETURNED, SUSPENDED, BatchContext, Consumer, Context
from ruststream.timeouts import Timeout


class Feed(Protocol):
    """What a lane takes its work from: its subscription."""

    consumer_core: Consumer
    """The native side."""
    draining: bool
    """Whether to start nothing more."""
    finished_reading: bool
    """Whether nothing more will come."""

    def idle(self) -> asyncio.Future[None]:
        """Return a future that is done once there may be work."""

    def pass_on(self) -> None:
        """This lane is about to wait for its handler: let another one take what is ready."""


class Judge(Protocol):
    """What settles the deliveries, or the batches, that a lane runs. `ctx` is what the native side called them by."""

    def where(self, ctx: Any) -> str:
        """Name them, for the log."""

    def returned(self, ctx: Any, value: object) -> None:
        """The handler returned this."""

    def raised(self, ctx: Any, error: BaseException) -> None:
        """The handler raised this."""


class Resumed:
    """Continues a coroutine that was first stepped inside its own context, from the task that awaits this."""

    __slots__ = ("_coroutine", "_variables", "_yielded")

    def __init__(self, variables: Variables, coroutine: Coroutine[Any, Any, Any], yielded: object) -> None:
        """Take over after the first step, which yielded this."""
        self._variables = variables
        self._coroutine = coroutine
        self._yielded = yielded

    def __await__(self) -> Generator[Any, Any, Any]:
        """Hand what the coroutine waits for to the task, and its results back, each step in the context."""
        run, coroutine, yielded = self._variables.run, self._coroutine, self._yielded
        while True:
            try:
                value = yield yielded
            except BaseException as error:  # noqa: BLE001 - all of them are the coroutine's to handle
                try:
                    yielded = run(coroutine.throw, error)
                except StopIteration as stop:
                    return stop.value
            else:
                try:
                    yielded = run(coroutine.send, value)
                except StopIteration as stop:
                    return stop.value


class Lane:
    """Takes deliveries one after another until its subscription drains."""

    def __init__(self, subscription: Feed, judge: Judge, name: str, timeout: Timeout | None = None) -> None:
        """Start the task."""
        self._subscription = subscription
        self._judge = judge
        self._timeout = timeout
        self._cancelled = False
        self.due = 0.0
        """When the handler that waits has run long enough, where there is a timeout."""
        self.overran = 0
        """How often its timeout took notice of it."""
        self.context: Context | BatchContext | None = None
        """The delivery, or the batch, whose handler waits for something."""
        self.task: Final = asyncio.create_task(self._run(), name=name)

    def wind_up(self) -> None:
        """Cancel the handler that runs, and end. Its entry is not settled."""
        self._cancelled = True
        self.task.cancel()

    def expire(self) -> None:
        """Cancel the handler that runs: it has taken too long."""
        self.task.cancel()

    @property
    def waits(self) -> bool:
        """Whether its handler waits for something."""
        return self.context is not None

    @property
    def broken_off(self) -> bool:
        """Whether its handler was cancelled: a None that it returns all the same acks nothing."""
        return self._cancelled or (self._timeout is not None and self._timeout.ended(self))

    def where(self) -> str:
        """Name the delivery, or the batch, that it runs."""
        return self._judge.where(self.context)

    async def _run(self) -> None:
        subscription = self._subscription
        drive, cancelling = subscription.consumer_core.drive, self.task.cancelling
        while not (subscription.draining or self._cancelled):
            stop = drive(cancelling)
            if isinstance(stop, tuple):
                await self._care(stop)
            if cancelling():
                await self._take_back()
            elif stop is True:
                await asyncio.sleep(0)
            elif stop is False:
                if subscription.finished_reading:
                    return
                # Nothing is ready: the bell, or a lane that waits for its handler, says when.
                await subscription.idle()

    async def _care(self, stop: tuple[Any, ...]) -> None:
        """Deal with a delivery that the native loop could not finish by itself."""
        subscription, ctx = self._subscription, stop[1]
        try:
            if stop[0] == SUSPENDED:
                await self._resume(ctx, Resumed(*stop[2:]))
            elif stop[0] == RETURNED:
                self._judge.returned(ctx, stop[2])
            elif stop[0] == RAISED:
                self._failed(ctx, stop[2])
        finally:
            self.context, self.overran = None, 0
            subscription.consumer_core.finish(ctx)

    async def _resume(self, ctx: Any, rest: Resumed) -> None:
        self.context = ctx
        self._subscription.pass_on()
        timeout = self._timeout
        if timeout is not None:
            timeout.begin(self)
        try:
            value = await rest
        except BaseException as error:  # noqa: BLE001 - the handler's
            self._failed(ctx, error)
        else:
            if self._cancelled:
                # It swallowed the cancellation. Nobody knows how far it came, so its entry stays pending.
                return
            if value is None and timeout is not None and timeout.ended(self):
                # The same; only an outcome of its own says that it knew what it did.
                self._judge.raised(ctx, timeout.error(None))
                return
            self._judge.returned(ctx, value)

    def _failed(self, ctx: Any, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            if self._cancelled:
                return
            if self._timeout is not None and self._timeout.ended(self):
                error = self._timeout.error(error)
        self._judge.raised(ctx, error)

    async def _take_back(self) -> None:
        """Take back the cancellation that a handler left behind for its task: the next message must not get it."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self._cancelled:
                return
        while self.task.uncancel():
            pass
