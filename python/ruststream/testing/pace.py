"""How a test lets its app run until nothing is left to do, and how its time passes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from ruststream._core import BatchContext, EntryId
from ruststream.errors import ConfigError, NotQuiescentError
from ruststream.testing.stage import LiveStage, ModelStage, PumpedBell, RecordedStage, Running
from ruststream.testing.subscription import RecordedSubscription

MOST_LIVE: Final = 10.0
"""Seconds that a test on a real server may wait for its time to pass."""
_TURNS: Final = 100_000
"""Turns of the loop without a call and without rest: something spins."""
_EAGER: Final = 50
"""Turns that a handler gets before it is waited for with pauses."""
_LOOK: Final = 0.002
_LIVE_LOOK: Final = 0.005
_SOON: Final = 0.5
"""Seconds that a server gets to deliver what is not waited for."""


class Pace(Protocol):
    """One way for the time of a test to pass."""

    async def rest(self, held: set[Running]) -> None:
        """Return once nothing is left to do now, but for the handlers of these deliveries.

        Raises:
            NotQuiescentError: there is no end to it.
        """

    async def start_handlers(self) -> None:
        """Return once what has come is in its handlers' hands, however long they take."""

    async def advance(self, seconds: float, held: set[Running] | None) -> None:
        """Let the time pass, and what falls due in it happen. None: no handler is waited for.

        Raises:
            NotQuiescentError: there is no end to it.
        """


class Budget:
    """Handler calls that may happen without any time passing, and real time without any progress."""

    def __init__(self, stage: RecordedStage, max_calls: int, patience: float) -> None:
        """Begin to count at the first `renew`.

        Args:
            stage: whose calls to count.
            max_calls: calls at one time.
            patience: seconds.
        """
        self._stage = stage
        self._max_calls = max_calls
        self._patience = patience
        self._before: Counter[str] = Counter()
        self._turns = 0
        self._since: float | None = None

    def renew(self) -> None:
        """Time has passed: count anew."""
        self._before = self._calls()
        self._turns = 0
        self._since = None

    def spend(self) -> None:
        """Count a turn in which something went on. Raises `NotQuiescentError` where it is one too many."""
        self._since = None
        self._turns += 1
        if self._turns % 16 == 0 and sum((calls := self._calls()).values()) - self._before.total() > self._max_calls:
            name, most = (calls - self._before).most_common(1)[0]
            raise NotQuiescentError(
                f"subscription {name} was called {most} times and there is no end to it: does its handler publish to "
                f"its own stream? TestApp(max_calls={self._max_calls}) sets how much is too much"
            )
        if self._turns > _TURNS:
            raise NotQuiescentError(f"the app does not come to rest after {_TURNS} turns of the loop, {self.state()}")

    def wait(self, now: float, running: set[Running]) -> None:
        """Note that handlers are waited for. Raises `NotQuiescentError` where it takes too long."""
        if self._since is None:
            self._since = now
        elif now - self._since > self._patience:
            names = ", ".join(sorted(f"{ctx.subscription} of entry {min(ids(ctx))}" for ctx in running))
            raise NotQuiescentError(
                f"handlers have not ended in {self._patience:g} s: {names}. Publish with wait=False what is to be "
                f"looked at while its handler runs; TestApp(patience=) waits longer"
            )

    def late(self, now: float, what: str) -> None:
        """Note that something else is waited for. Raises `NotQuiescentError` where it takes too long."""
        if self._since is None:
            self._since = now
        elif now - self._since > self._patience:
            raise NotQuiescentError(f"the app did not come to rest in {self._patience:g} s: {what}")

    def state(self) -> str:
        """Describe what the subscriptions are at."""
        return "; ".join(
            f"{subscription.name}: {subscription.state}, {subscription.stats()}"
            for subscription in self._stage.subscriptions
        )

    def _calls(self) -> Counter[str]:
        return Counter({name: len(record.deliveries) for name, record in self._stage.records.items()})


class ModelPace:
    """Time stands still until it is moved; the core works on the loop's own thread."""

    def __init__(self, stage: ModelStage, bell: PumpedBell, budget: Budget) -> None:
        """Take what runs."""
        self._stage = stage
        self._bell = bell
        self._budget = budget

    async def rest(self, held: set[Running]) -> None:
        """Return once nothing is left to do now, but for these handlers."""
        self._budget.renew()
        await self._rest(held)

    async def start_handlers(self) -> None:
        """Return once what has come is in its handlers' hands."""
        self._budget.renew()
        while self._turned():  # noqa: ASYNC110 - it is the loop's turns that are waited for
            await asyncio.sleep(0)

    async def advance(self, seconds: float, held: set[Running] | None) -> None:
        """Go from one time at which something falls due to the next, and to rest at each."""
        self._budget.renew()
        await self._rest(held)
        left = round(seconds * 1e9)
        while left > 0:
            moved = self._bell.engine.step(left)
            left -= left if moved is None else moved
            if moved != 0:
                self._budget.renew()
            await self._rest(held)

    async def _rest(self, held: set[Running] | None) -> None:
        loop, quiet, waited = asyncio.get_running_loop(), 0, 0
        # A second look: a task that a handler left behind may have begun something in its turn.
        while quiet < 2:
            if self._turned():
                quiet = 0
                await asyncio.sleep(0)
                continue
            running = set() if held is None else self._stage.suspended() - held
            if not running:
                quiet = 0 if self._stage.hurry() else quiet + 1
                await asyncio.sleep(0)
                continue
            quiet = 0
            waited += 1
            self._budget.wait(loop.time(), running)
            await asyncio.sleep(0 if waited < _EAGER else _LOOK)

    def _turned(self) -> bool:
        """Let the core work. Whether something went on, or is about to."""
        busy = self._bell.engine.busy()
        if busy:
            self._bell.turn()
        if busy or self._stage.moves():
            self._budget.spend()
            return True
        return False


class LivePace:
    """A real server's time: it is waited for, and what is left to do is asked of the server."""

    def __init__(self, stage: LiveStage, budget: Budget) -> None:
        """Take what runs."""
        self._stage = stage
        self._budget = budget

    async def rest(self, held: set[Running]) -> None:
        """Return once nothing is left to do now, but for these handlers."""
        self._budget.renew()
        loop, quiet = asyncio.get_running_loop(), 0
        while quiet < 2:
            running = self._stage.suspended() - held
            owed = None if running else next(self._owed(held), None)
            if running:
                self._budget.wait(loop.time(), running)
            elif owed is not None or self._stage.moves():
                self._budget.late(loop.time(), owed or self._budget.state())
            quiet = quiet + 1 if owed is None and not running and not self._stage.moves() else 0
            await asyncio.sleep(_LIVE_LOOK)

    async def start_handlers(self) -> None:
        """Return once what has come is in its handlers' hands, or waits for them; soon in any case."""
        self._budget.renew()
        loop = asyncio.get_running_loop()
        until, quiet = loop.time() + _SOON, 0
        while quiet < 2 and loop.time() < until:
            moves = self._stage.moves() or any(map(self._is_behind, self._stage.subscriptions))
            quiet = 0 if moves else quiet + 1
            await asyncio.sleep(_LIVE_LOOK)

    async def advance(self, seconds: float, held: set[Running] | None) -> None:
        """Wait for real."""
        if seconds > MOST_LIVE:
            raise ConfigError(
                f"advance({seconds:g}) on a real server would wait for real, and {MOST_LIVE:g} s are the most: "
                "use a smaller min_idle, or the model"
            )
        await asyncio.sleep(seconds)
        await (self.start_handlers() if held is None else self.rest(held))

    def _owed(self, held: set[Running]) -> Iterator[str]:
        """Say what is left to do."""
        for subscription in self._stage.subscriptions:
            subscriber = subscription.subscriber
            stats = subscription.stats()
            if (
                stats["queued"] > 0
                or stats["unsettled"] > 0
                or stats["running"] > sum(len(ids(ctx)) for ctx in subscription.suspended & held)
            ):
                yield f"{subscription.name} has {stats}"
            if subscription.state != "reading":
                yield f"{subscription.name} is {subscription.state}: {subscription.error}"
            behind, due = subscription.broker.client.owed(subscriber.stream, subscriber.group, subscriber.delay_key)
            if behind and subscriber.source.mode != "reclaim":
                yield f"{subscription.name} has not read all of stream {subscriber.stream}"
            if due:
                yield f"{due} delayed entries of {subscription.name} are due"
            yield from self._ripe(subscription, held)

    @staticmethod
    def _is_behind(subscription: RecordedSubscription) -> bool:
        """Whether it has room for entries and nobody has read them, or workers for them and nobody has started them."""
        subscriber, stats = subscription.subscriber, subscription.stats()
        if stats["queued"] > 0 and len(subscription.suspended) < subscriber.workers:
            return True
        full = stats["in_flight"] + subscriber.source.count // 2 >= subscriber.max_in_flight
        behind, _ = subscription.broker.client.owed(subscriber.stream, subscriber.group, subscriber.delay_key)
        return behind and not full and subscriber.source.mode != "reclaim"

    @staticmethod
    def _ripe(subscription: RecordedSubscription, held: set[Running]) -> Iterator[str]:
        subscriber = subscription.subscriber
        min_idle = subscriber.source.min_idle
        if min_idle is None or not subscriber.source.recovers:
            return
        mine = {entry_id for ctx in held for entry_id in ids(ctx)}
        for entry_id, _, idle_ms, _ in subscription.broker.client.pending(subscriber.stream, subscriber.group):
            if entry_id not in mine and (idle_ms < 0 or idle_ms >= min_idle * 1000):
                yield f"entry {entry_id} is to be recovered by {subscription.name}"


def ids(running: Running) -> tuple[EntryId, ...]:
    """Return the entries that a handler has in its hands."""
    return running.entry_ids if isinstance(running, BatchContext) else (running.entry_id,)


@contextmanager
def alone(busy: list[str], what: str) -> Iterator[None]:
    """Refuse to do two of these at once: the order of what happens would be nobody's."""
    if busy:
        raise ConfigError(f"{what}() while {busy[0]}() is under way: await one after another")
    busy.append(what)
    try:
        yield
    finally:
        busy.pop()
