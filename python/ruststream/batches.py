"""What becomes of a batch: what its handler returned or raised, spread over the elements."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from ruststream._core import BatchContext, Consumer, Context, EntryId
from ruststream.option import shown
from ruststream.outcome import Outcome, ack, leave, meaningless
from ruststream.policy import said_by

_log: Final = logging.getLogger("ruststream.subscription")

_POSSIBLE: Final = "return None to ack all, an outcome for all, or a list with None or an outcome for each element"


class Deliveries(Protocol):
    """The subscription, as its batches see it."""

    consumer_core: Consumer
    """The native side."""

    def returned(self, ctx: Context, value: object) -> None:
        """The handler returned this for one delivery."""

    def settle(self, ctx: Context, outcome: Outcome, error: BaseException | None = None) -> None:
        """Settle one delivery, because of this error where there is one."""

    def judged(self, where: str, error: BaseException, deliveries: Sequence[Context]) -> Outcome:
        """Log a failure of these deliveries, and return its outcome."""

    def follows(self, outcome: Outcome, deliveries: Sequence[Context]) -> str:
        """Say what becomes of deliveries with this outcome, for the log."""


class Batches:
    """The batches of one subscription. Whatever goes wrong with a batch, none of its elements is acked by it."""

    def __init__(self, subscription: Deliveries) -> None:
        """Watch nothing yet."""
        self._subscription = subscription
        self._lease_lost: WeakKeyDictionary[asyncio.Event, frozenset[EntryId]] = WeakKeyDictionary()

    def returned(self, batch: BatchContext, value: Any) -> None:
        """Settle the elements by what the handler returned. What it settled by hand stays so."""
        if value is None or value is ack():
            self._subscription.consumer_core.ack_batch(batch)
        elif isinstance(value, Outcome):
            self._settle_all(batch, value)
        elif (wrong := _unfit(batch, value)) is None:
            for ctx, outcome in zip(batch.contexts, value, strict=True):
                self._subscription.returned(ctx, outcome)
        else:
            follows = self._subscription.follows(leave(), batch.contexts)
            _log.error("%s: %s; %s. Outcome of all: %s", self.where(batch), wrong, _POSSIBLE, follows)
            self._settle_all(batch, leave(), wrong)

    def raised(self, batch: BatchContext, error: BaseException) -> None:
        """Settle the elements by what the handler raised."""
        said = said_by(error)
        if said is not None:
            self._settle_all(batch, said)
        elif batch.settled and isinstance(error, Exception):
            _log.error("%s: the handler failed after all was settled", self.where(batch), exc_info=error)
        else:
            outcome = self._subscription.judged(self.where(batch), error, batch.contexts)
            self._settle_all(batch, outcome, error)

    def where(self, batch: BatchContext) -> str:
        """Name a batch, for the log."""
        ids = batch.entry_ids
        return (
            f"subscription {batch.subscription}, stream {batch.stream}, group {batch.group}, "
            f"consumer {batch.consumer}, batch of {len(ids)} entries, {min(ids)} to {max(ids)}"
        )

    def make_lease_lost(self, batch: BatchContext) -> asyncio.Event:
        """Return the event of a batch one of whose entries may be taken over."""
        event = asyncio.Event()
        self._lease_lost[event] = frozenset(batch.entry_ids)
        if batch.lost:
            event.set()
        return event

    def lost(self, ids: Iterable[EntryId]) -> None:
        """Tell the handlers whose batches have entries that someone else owns now."""
        gone = set(ids)
        for event, own in list(self._lease_lost.items()):
            if not gone.isdisjoint(own):
                event.set()

    def _settle_all(self, batch: BatchContext, outcome: Outcome, error: BaseException | None = None) -> None:
        for ctx in batch.contexts:
            if not ctx.settled:
                self._subscription.settle(ctx, outcome, error)


def _unfit(batch: BatchContext, value: Any) -> Exception | None:
    """Return the failure of a handler that returned this, unless there is one outcome per element.

    If not, none of them counts: nobody can tell whose they are.
    """
    if not isinstance(value, (list, tuple)):
        return meaningless(value)
    if len(value) != len(batch):
        return ValueError(f"the handler returned a list of {len(value)} outcomes for {len(batch)} elements")
    wrong = next((each for each in value if each is not None and not isinstance(each, Outcome)), None)
    return None if wrong is None else TypeError(f"the handler returned {shown(wrong, 200)} among the outcomes")
