"""One life of an app's subscriptions: opened, read, worked off, closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ruststream.agreement import resolved
from ruststream.health import SubscriptionHealth
from ruststream.stage import HERE, Stage
from ruststream.subscription import Subscription

if TYPE_CHECKING:
    from ruststream._core import EntryId
    from ruststream.loop import Bell
    from ruststream.redis.broker import RedisBroker
    from ruststream.subscriber import Subscriber

Action: TypeAlias = Callable[[Subscription], Coroutine[Any, Any, object]]

_log: Final = logging.getLogger("ruststream.app")

_GRACE: Final = 1.0
"""Seconds for what must be tried even where no time is left: cancelled handlers, last acks, closing connections."""
_MOST_LISTED: Final = 50


class Life:
    """The connected brokers and open subscriptions of one start of an app."""

    def __init__(self, brokers: Iterable[RedisBroker], state: object, stage: Stage = HERE) -> None:
        """Do nothing yet.

        Args:
            brokers: whose subscribers to run.
            state: what handlers see as `Context.state`.
            stage: where it runs.
        """
        self._stage = stage
        self._brokers = tuple(brokers)
        self._state = state
        self._bell: Bell | None = None
        self._connected: list[RedisBroker] = []
        self._running: list[tuple[Subscriber, Subscription]] = []
        self.stuck = False
        """Whether handlers ran on when it was closed: deaf to being cancelled, or in threads."""

    @property
    def names(self) -> list[str]:
        """The names of its subscriptions."""
        return [subscriber.name for subscriber, _ in self._running]

    async def open(self) -> None:
        """Connect the brokers and open every subscription; nothing is read yet. `close` undoes it, also halfway.

        Raises:
            ConnectError: a server can't be reached, or refuses the credentials.
            ServerTooOldError: a server lacks what a subscription needs.
            SubscribeError: a group can't be read.
        """
        self._bell = bell = self._stage.bell()
        for broker in self._brokers:
            await self._stage.connect(broker, bell)
            self._connected.append(broker)
        for broker, subscriber in resolved(self._brokers):
            subscription = self._stage.subscription(subscriber, broker, bell, self._state)
            self._running.append((subscriber, subscription))
            await subscription.open()

    def start(self) -> None:
        """Begin to read."""
        for _, subscription in self._running:
            subscription.start()

    def replace(self, gone: Subscription, fresh: Subscription) -> None:
        """Go on with another subscription in place of one that is gone."""
        self._running = [(who, fresh if what is gone else what) for who, what in self._running]

    async def failure(self) -> tuple[str, BaseException]:
        """Return the name and the error of the first subscription that can't go on."""
        watches = {
            asyncio.ensure_future(subscription.failure()): subscriber.name for subscriber, subscription in self._running
        }
        if not watches:
            await asyncio.Event().wait()
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            first = done.pop()
            return watches[first], first.exception() or first.result()
        finally:
            for watch in watches:
                watch.cancel()

    async def drain(self, deadline: float) -> bool:
        """Stop reading, let handlers end and their outcomes be answered, and give back what was never started.

        Args:
            deadline: the loop's time at which handlers that still run are cancelled.

        Returns:
            Whether everything was worked off. If not, what is left is logged; it stays pending.
        """
        began = asyncio.get_running_loop().time()
        clean = await self._each("stop reading", deadline, lambda subscription: subscription.stop_reading())
        late: dict[str, list[EntryId]] = {}
        if not await self._each("finish", deadline, lambda subscription: subscription.finished()):
            clean = False
            late = {subscriber.name: subscription.running() for subscriber, subscription in self._running}
            self._cancel()
            await self._each("end when cancelled", self._soon(deadline), lambda subscription: subscription.finished())
        clean &= await self._each("release", self._soon(deadline), lambda subscription: subscription.release())
        clean &= await self._each("flush acks", self._soon(deadline), lambda subscription: subscription.flush())
        took = asyncio.get_running_loop().time() - began
        if clean:
            _log.info("drain complete in %.2f s: %s", took, self._counts())
        else:
            self._list_unfinished(late)
            _log.error("drain incomplete after %.2f s: %s", took, self._counts())
        return clean

    def cut_short(self) -> None:
        """Cancel what runs, and log what is left; it stays pending."""
        late = {subscriber.name: subscription.running() for subscriber, subscription in self._running}
        self._cancel()
        self._list_unfinished(late)
        _log.error("stopped at once: %s", self._counts())

    async def close(self) -> None:
        """Close subscriptions and connections. Errors are logged, and nothing is waited for longer than a second."""
        await self._each("close", self._soon(0), lambda subscription: subscription.close())
        self.stuck = any(
            subscription.running() or (subscriber.plan.threads is not None and subscriber.plan.threads.busy)
            for subscriber, subscription in self._running
        )
        for subscriber, _ in self._running:
            if subscriber.plan.threads is not None:
                subscriber.plan.threads.close()
        for broker in reversed(self._connected):
            try:
                async with asyncio.timeout(_GRACE):
                    await broker.close()
            except Exception:  # noqa: BLE001 - the others must be closed too
                _log.exception("%r did not close", broker)
        if self._bell is not None:
            self._bell.close()
        self._bell, self._connected, self._running = None, [], []

    def health(self) -> list[SubscriptionHealth]:
        """Return what each subscription does now."""
        return [
            SubscriptionHealth(
                name=subscriber.name,
                stream=subscriber.stream,
                group=subscriber.group,
                consumer=subscription.consumer,
                state=subscription.state,
                error=subscription.error,
                counts=subscription.stats(),
            )
            for subscriber, subscription in self._running
        ]

    async def _each(self, what: str, deadline: float, action: Action) -> bool:
        """Do this with all subscriptions at once. Whether all of it was done in time and without an error."""
        tasks = {
            asyncio.ensure_future(action(subscription)): subscriber.name for subscriber, subscription in self._running
        }
        if not tasks:
            return True
        try:
            left = deadline - asyncio.get_running_loop().time()
            done, late = await asyncio.wait(tasks, timeout=max(0.0, left))
        finally:
            for task in tasks:
                task.cancel()
        failed = [(tasks[task], task.exception()) for task in done if not task.cancelled() and task.exception()]
        for name, error in failed:
            _log.error("subscription %s did not %s: %s", name, what, error, exc_info=error)
        for task in late:
            _log.warning("subscription %s did not %s in time", tasks[task], what)
        return not late and not failed

    def _cancel(self) -> None:
        for _, subscription in self._running:
            subscription.cancel()

    def _soon(self, deadline: float) -> float:
        return max(deadline, asyncio.get_running_loop().time() + _GRACE)

    def _list_unfinished(self, late: dict[str, list[EntryId]]) -> None:
        for subscriber, subscription in self._running:
            ids = list(dict.fromkeys([*late.get(subscriber.name, []), *subscription.unsettled()]))
            if ids:
                more = f" and {len(ids) - _MOST_LISTED} more" if len(ids) > _MOST_LISTED else ""
                _log.error(
                    "subscription %s (stream %s, group %s) did not finish %d of its entries, which stay pending: %s%s",
                    subscriber.name,
                    subscriber.stream,
                    subscriber.group,
                    len(ids),
                    ", ".join(str(entry_id) for entry_id in ids[:_MOST_LISTED]),
                    more,
                )

    def _counts(self) -> str:
        parts = []
        for subscriber, subscription in self._running:
            stats, left = subscription.stats(), subscription.left_pending()
            parts.append(
                f"{subscriber.name}: acked {stats.get('acked', 0)}, dropped {stats.get('dropped', 0)}, "
                f"dead-lettered {stats.get('dead_lettered', 0)}, "
                f"retried {stats.get('retried', 0)}, "
                f"released {stats.get('released', 0)}, left pending {left}"
            )
        return "; ".join(parts) or "no subscriptions"
