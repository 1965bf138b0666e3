"""Idempotency: a mark for each message, *working* while it is handled and *done* for a time afterwards."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from ruststream.errors import ConfigError
from ruststream.option import Duration, seconds

__all__ = ["IdempotencyStore", "Idempotent", "MarkState", "MessageKey"]

MessageKey: TypeAlias = Callable[[Any], str | bytes | int]
"""Computes what a message is known by from its decoded payload."""

UNRECOVERED_LEASE: Final = 60.0
"""Seconds that a working mark lasts without a renewal where no `min_idle` is known."""

_CALLS: Final = ("begin", "finish", "release", "renew")


class MarkState(Enum):
    """What `IdempotencyStore.begin` found."""

    STARTED = "started"
    """The mark is this owner's now, or was before: handle the message."""
    WORKING = "working"
    """Another owner handles the message, and its lease has not ended."""
    DONE = "done"
    """The message was handled."""


@runtime_checkable
class IdempotencyStore(Protocol):
    """Where marks are kept. Each call is one atomic step; what it raises counts as a failure of the store.

    A table `marks(key primary key, owner, until, done)` is enough. Calls run side by side, may be repeated, and may
    reach the store after their owner's process has ended.
    """

    async def begin(self, key: str, owner: str, lease: float) -> MarkState:
        """Make the mark this owner's for `lease` seconds, unless the message is done or another owner's lease runs."""

    async def finish(self, key: str, owner: str, ttl: float) -> None:
        """Make the mark done for `ttl` seconds, if it is this owner's or nobody's. Leave any other as it is."""

    async def release(self, key: str, owner: str) -> None:
        """Remove the mark if it is this owner's and not done."""

    async def renew(self, keys: Sequence[str], owner: str, lease: float) -> None:
        """Let those of these marks that are this owner's, or nobody's, last `lease` seconds from now."""


@dataclass(frozen=True, slots=True, init=False)
class Idempotent:
    """Have a message's handler called once, as far as marks can tell.

    A message is known by its `message-id` header, else by the id of the entry it was first, which retried copies and
    replayed dead letters carry in the header `x-original-entry-id`. A duplicate of a message that is done is
    acknowledged without a call; one of a message that is being handled waits for that.
    """

    ttl: float
    """Seconds that a done mark is kept: as long as a duplicate may still come."""
    key: MessageKey | None
    """Computes what a message is known by instead."""
    lease: float | None
    """Seconds that a working mark lasts without a renewal. None: `min_idle` of the group."""
    store: IdempotencyStore | None
    """Where marks are kept. None: the server that the stream is on."""

    def __init__(
        self,
        ttl: Duration,
        key: MessageKey | None = None,
        lease: Duration | None = None,
        store: IdempotencyStore | None = None,
    ) -> None:
        """Check the options.

        Args:
            ttl: seconds, or a `timedelta`: how long a message is known to be handled. Not shorter than entries are kept
                in the stream, or a late duplicate is handled again.
            key: a function of the decoded payload.
            lease: seconds, or a `timedelta`, after which the mark of a process that died is another one's to take.
            store: a `RedisIdempotencyStore`, or an `IdempotencyStore` of your own.

        Raises:
            ConfigError: an option is wrong.
        """
        kept = seconds(ttl, "Idempotent(ttl)", zero=False)
        leased = None if lease is None else seconds(lease, "Idempotent(lease)", zero=False)
        if leased is not None and kept < leased:
            raise ConfigError(f"Idempotent(ttl) must be at least the lease ({leased:g} s), but is {kept:g} s")
        if key is not None and not callable(key):
            raise ConfigError(f"Idempotent(key) must be a function of the decoded payload, not {key!r}")
        if store is not None:
            _check_store(store)
        object.__setattr__(self, "ttl", kept)
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "lease", leased)
        object.__setattr__(self, "store", store)

    def check(self, min_idle: float | None, name: str, retention: float | None = None) -> None:
        """Refuse a `ttl` that is known to be too short.

        Args:
            min_idle: seconds after which the group's entries are recovered, where that is known.
            name: the subscription's.
            retention: seconds that entries stay in the stream, where that is known.

        Raises:
            ConfigError: a duplicate can come when its mark is forgotten.
        """
        if retention is not None and self.ttl < retention:
            raise ConfigError(
                f"subscription {name}: Idempotent(ttl) is {self.ttl:g} s, but the stream keeps entries for "
                f"{retention:g} s, and a duplicate can come as long; make ttl at least that"
            )
        needed = max(min_idle or 0.0, self.leased(min_idle))
        if self.ttl < needed:
            raise ConfigError(
                f"subscription {name}: Idempotent(ttl) is {self.ttl:g} s, but an entry whose ack was lost comes back "
                f"after min_idle and the lease, {needed:g} s; make ttl longer, and as long as entries are kept"
            )

    def leased(self, min_idle: float | None) -> float:
        """Return the seconds that a working mark lasts without a renewal.

        Args:
            min_idle: seconds after which the group's entries are recovered, where that is known.
        """
        if self.lease is not None:
            return self.lease
        return min(self.ttl, UNRECOVERED_LEASE) if min_idle is None else min_idle


def _check_store(store: object) -> None:
    for name in _CALLS:
        if not inspect.iscoroutinefunction(getattr(store, name, None)):
            raise ConfigError(f"Idempotent(store) must be an IdempotencyStore, and {store!r} has no `async def {name}`")
