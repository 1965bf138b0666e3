"""How a test lets its app run until nothing is left to do, and how its time passes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, Protocol

from ruststream._core import BatchContext, EntryId
from ruststream.errors import ConfigError, NotQuiescentError
from ruststream.testing.stage import LiveStage, ModelStage, PumpedBell, RecordedStage, Running
from ruststream.testing.subscription import RecordedSubscription

_MOST_SECONDS: Final = 10 * 366 * 86_400.0
MOST_LIVE: Final = 10.0
"""Seconds that a test on a real server may wait for its time to pass."""
ADVANCE_CALLS: Final = 10
"""Handler calls that one `advance` may lead to: so many times those that may happen at one time."""
ADVANCE_TIMES: Final = 1_000_000
"""Times at which something falls due within one `advance`: where it is more, the core renews, or tries, without end."""
_TURNS: Final = 100_000
"""Turns of the loop without a call and without rest: something spins."""
_AT_A_STRETCH: Final = 256
"""Times at which something falls due that the core goes through between two turns of the loop, at most."""
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
    """Handler calls that may happen at one time and within one `advance`, and real time without any progress."""

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
        self._set_out: Counter[str] = Counter()
        self._times = 0
        self._turns = 0
        self._since: float | None = None

    def set_out(self) -> None:
        """Time begins to pass: count what happens in all of it."""
        self._set_out = self._calls()
        self._times = 0

    def pass_by(self, times: int, gone: float, seconds: float) -> None:
        """Count so many times at which something fell due. Raises `NotQuiescentError` where it is too much.

        Args:
            times: since the last call.
            gone: seconds that have passed.
            seconds: that are to pass.
        """
        self._times += times
        most = self._max_calls * ADVANCE_CALLS
        where = f"advance({seconds:g}) stopped {gone:g} s on"
        if self._total() - self._set_out.total() > most:
            name, called = (self._calls() - self._set_out).most_common(1)[0]
            raise NotQuiescentError(
                f"{where}: subscription {name} was called {called} times, and more than {most} calls are taken for "
                f"endless. Advance in smaller steps, make the delay of its retries or {self._longer(name)}, or raise "
                f"TestApp(max_calls={self._max_calls}): an advance may lead to {ADVANCE_CALLS} times as many"
            )
        if self._times > ADVANCE_TIMES:
            held = [one.name for one in self._stage.subscriptions if one.suspended]
            what = " and ".join(f"the handler of {name} is held open: make {self._longer(name)}" for name in held)
            raise NotQuiescentError(
                f"{where}: something fell due more than {ADVANCE_TIMES} times, {what or self.state()}. "
                "Or advance in smaller steps"
            )

    def _longer(self, name: str) -> str:
        """Say what sets how often a subscription takes its entries back, or renews them."""
        source = next(one.subscriber.source for one in self._stage.subscriptions if one.name == name)
        return "the min_idle of its group longer" if source.min_idle is None else f"min_idle={source.min_idle:g} longer"

    def renew(self) -> None:
        """Time has passed: count anew."""
        self._before = self._calls()
        self._turns = 0
        self._since = None

    def spend(self) -> None:
        """Count a turn in which something went on. Raises `NotQuiescentError` where it is one too many."""
        self._since = None
        self._turns += 1
        if self._turns % 16 == 0 and self._total() - self._before.total() > self._max_calls:
            name, most = (self._calls() - self._before).most_common(1)[0]
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

    def _total(self) -> int:
        return sum(len(record.deliveries) for record in self._stage.records.values())


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
        self._budget.set_out()
        whole = left = round(seconds * 1e9)
        # What falls due for the core alone, such as the renewal of what a handler holds, needs no turn of the loop.
        # Handlers that have just got something to do get theirs before long.
        stretch = 1
        while left > 0:
            moved, times = self._bell.engine.step(left, stretch)
            left -= moved
            if moved > 0:
                self._budget.renew()
            stretch = 1 if await self._rest(held) else min(stretch * 2, _AT_A_STRETCH)
            self._budget.pass_by(times, (whole - left) / 1e9, seconds)

    async def _rest(self, held: set[Running] | None) -> bool:
        """Come to rest. Whether anything went on before."""
        loop, quiet, waited, moved = asyncio.get_running_loop(), 0, 0, False
        # A second look: a task that a handler left behind may have begun something in its turn.
        while quiet < 2:
            if self._turned():
                quiet, moved = 0, True
                await asyncio.sleep(0)
                continue
            running = set() if held is None else self._stage.suspended() - held
            if not running:
                quiet = 0 if self._stage.hurry() else quiet + 1
                await asyncio.sleep(0)
                continue
            quiet, moved = 0, True
            waited += 1
            self._budget.wait(loop.time(), running)
            await asyncio.sleep(0 if waited < _EAGER else _LOOK)
        return moved

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
            mine = sum(len(ids(ctx)) for ctx in subscription.suspended & held)
            # What waits for a mark may wait for one of the handlers that are not waited for.
            waiting = stats["waiting"] if mine else 0
            if stats["queued"] > waiting or stats["unsettled"] > 0 or stats["running"] > mine:
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


def passing_seconds(passing: object) -> float:
    """Return what is to pass, in seconds.

    Raises:
        ConfigError: negative, not a number, or more than ten years.
    """
    value = passing.total_seconds() if isinstance(passing, timedelta) else passing
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _MOST_SECONDS:
        return float(value)
    raise ConfigError(
        f"advance takes seconds or a timedelta from 0 to ten years, not {passing!r}; time does not go back"
    )
