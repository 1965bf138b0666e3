"""One life of an app's subscriptions: opened, read, worked off, closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ruststream.errors import ConfigError
from ruststream.health import SubscriptionHealth
from ruststream.redis.stream import StreamStart
from ruststream.stage import HERE, Stage
from ruststream.subscriber import Subscriber
from ruststream.subscription import Subscription

if TYPE_CHECKING:
    from ruststream._core import EntryId
    from ruststream.loop import Bell
    from ruststream.redis.broker import RedisBroker
    from ruststream.redis.trim import Trim

Action: TypeAlias = Callable[[Subscription], Coroutine[Any, Any, object]]

_Where: TypeAlias = tuple[str, str]
"""A broker's address and a stream."""
_Way: TypeAlias = tuple[_Where, _Where, str]
"""From a stream to a stream, and the name of the subscription that leads there."""

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


def resolved(brokers: Iterable[RedisBroker]) -> list[tuple[RedisBroker, Subscriber]]:
    """Return all subscribers, each knowing what the others of its group say.

    Those of new entries get the `min_idle` that the app recovers their group with; a group of which the app recovers
    nothing gives a warning. All get the group's one `start_id`, whichever of them is opened first and creates it, and
    the stream's one `trim`.

    Raises:
        ConfigError: two subscriptions want their group to begin at different entries, or their stream to be trimmed in
            different ways, or replies or dead letters go round in a circle, or two streams have one `delay_key`.
    """
    pairs = [(broker, subscriber) for broker in brokers for subscriber in broker.subscribers]
    groups: dict[tuple[str, str, str], list[Subscriber]] = {}
    for broker, subscriber in pairs:
        groups.setdefault((broker.address, subscriber.stream, subscriber.group), []).append(subscriber)
    for group in groups.values():
        _warn_of_shares(group)
    _refuse_cycles(pairs)
    _refuse_shared_delays(pairs)
    known = {where: (_recovered_after(group), _start_id(group)) for where, group in groups.items()}
    trims = _trims(pairs)
    found = []
    for broker, subscriber in pairs:
        min_idle, start_id = known[broker.address, subscriber.stream, subscriber.group]
        bounded = subscriber.bounded(trims.get((broker.address, subscriber.stream)))
        found.append((broker, _with_min_idle(bounded.starting_at(start_id), min_idle)))
    return found


def _warn_of_shares(group: Iterable[Subscriber]) -> None:
    """Say so where handlers that differ share the new entries of one group: each of them sees but a part."""
    readers = {id(subscriber.plan.handler): subscriber for subscriber in group if subscriber.source.mode != "reclaim"}
    if len(readers) > 1:
        first, *others = readers.values()
        _log.warning(
            "subscriptions %s read the same group %s of stream %s with different handlers: each entry goes to one of "
            "them; give each a group of its own if each is to see every entry",
            ", ".join([first.name, *(other.name for other in others)]),
            first.group,
            first.stream,
        )


def _refuse_shared_delays(pairs: Iterable[tuple[RedisBroker, Subscriber]]) -> None:
    """Refuse streams whose delayed entries would lie in one sorted set. Groups of one stream may share it."""
    owners: dict[tuple[str, str], Subscriber] = {}
    for broker, subscriber in pairs:
        owner = owners.setdefault((broker.address, subscriber.delay_key), subscriber)
        if owner.stream != subscriber.stream:
            raise ConfigError(
                f"subscriptions {owner.name} (stream {owner.stream}) and {subscriber.name} (stream "
                f"{subscriber.stream}) have the same delay_key {subscriber.delay_key!r}, and one would hand over the "
                "other's delayed entries: leave it out, or give each stream a key of its own"
            )


def _refuse_cycles(pairs: Iterable[tuple[RedisBroker, Subscriber]]) -> None:
    """Refuse replies and dead letters that would come back to the stream they began in: they would never rest."""
    replies: list[_Way] = []
    letters: list[_Way] = []
    for broker, subscriber in pairs:
        start, name = (broker.address, subscriber.stream), subscriber.name
        replies += [(start, (broker.address, stream), name) for stream in sorted(subscriber.replies.known)]
        if subscriber.dead_letter is not None:
            letters.append((start, (broker.address, subscriber.dead_letter), name))
    for ways, what, then in (
        (
            replies,
            "replies",
            (
                "each message would be handled without end; send them elsewhere, or publish by ctx.publish where the "
                "handler knows when to stop"
            ),
        ),
        (
            letters,
            "dead letters",
            "one that nobody can handle would never rest; leave dead_letter out of one of them",
        ),
        (
            replies + letters,
            "replies and dead letters",
            "one that nobody can handle would never rest; let the dead letters go where nobody replies to them",
        ),
    ):
        if (found := _circle(ways)) is not None:
            raise ConfigError(f"the {what} of {found[0]} go round in a circle ({found[1]}): {then}")


def _circle(found: Iterable[_Way]) -> tuple[str, str] | None:
    """Return the names of subscriptions that lead round in a circle, and the circle; None where there is none."""
    ways: dict[_Where, list[tuple[_Where, str]]] = {}
    for start, where, name in found:
        ways.setdefault(start, []).append((where, name))
    clear: set[_Where] = set()
    for start, first in ways.items():
        # Depth first: what is on the path when it is met again is a circle.
        path = [start]
        names: list[str] = []
        waiting = [iter(first)] if start not in clear else []
        while waiting:
            step = next(waiting[-1], None)
            if step is None:
                waiting.pop()
                clear.add(path.pop())
                del names[-1:]
                continue
            where, name = step
            if where in path:
                at = path.index(where)
                circle = " -> ".join([stream for _, stream in path[at:]] + [where[1]])
                return ", ".join([*names[at:], name]), circle
            if where in ways and where not in clear:
                path.append(where)
                names.append(name)
                waiting.append(iter(ways[where]))
    return None


def _recovered_after(group: Iterable[Subscriber]) -> float | None:
    found = [subscriber.source.min_idle for subscriber in group if subscriber.source.recovers]
    return min((min_idle for min_idle in found if min_idle is not None), default=None)


def _start_id(group: Iterable[Subscriber]) -> str:
    """Return where a group begins that is created: where the one subscription says that says anything."""
    said = {subscriber.source.start_id: subscriber.name for subscriber in group}
    said.pop(StreamStart.NEW.value, None)
    if len(said) > 1:
        (first, one), (second, other), *_ = said.items()
        raise ConfigError(
            f"subscriptions {one} and {other} read the same group, but start_id is {first!r} in one and {second!r} in "
            "the other: a group begins in one place, give it to one of them"
        )
    return next(iter(said), StreamStart.NEW.value)


def _trims(pairs: Iterable[tuple[RedisBroker, Subscriber]]) -> dict[tuple[str, str], Trim]:
    """Return what each stream is kept within, where a subscription says that."""
    said: dict[tuple[str, str], tuple[Trim, str]] = {}
    for broker, subscriber in pairs:
        trim, where = subscriber.source.trim, (broker.address, subscriber.stream)
        if trim is None:
            continue
        known, name = said.setdefault(where, (trim, subscriber.name))
        if known != trim:
            raise ConfigError(
                f"subscriptions {name} and {subscriber.name} read the same stream {subscriber.stream}, but trim is "
                f"{known} in one and {trim} in the other: a stream is kept within one bound"
            )
    return {where: trim for where, (trim, _) in said.items()}


def _with_min_idle(subscriber: Subscriber, min_idle: float | None) -> Subscriber:
    source = subscriber.source
    if source.recovers:
        return subscriber
    if min_idle is None:
        _log.warning(
            "subscription %s reads group %s of stream %s, and nothing in this app recovers what a crashed consumer "
            "leaves pending there: add a RedisStream.reclaim of the group, or read it by RedisStream.recovering",
            subscriber.name,
            subscriber.group,
            subscriber.stream,
        )
        return subscriber
    return subscriber if source.min_idle is not None else subscriber.renewed(min_idle)
