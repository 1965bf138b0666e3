"""A subscriber: a source, a handler, and the options that say how the two go together; all of it checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ruststream.codec import Codec
from ruststream.context import Context
from ruststream.handler import HandlerPlan
from ruststream.idempotency import Idempotent
from ruststream.outcome import Outcome
from ruststream.policy import Backoff, ErrorPolicy
from ruststream.reply import Replies

if TYPE_CHECKING:
    from ruststream.redis.stream import RedisStream
    from ruststream.redis.trim import Trim


@dataclass(frozen=True, slots=True, eq=False)
class Subscriber:
    """A subscription as a broker runs it: everything checked, every default filled in."""

    name: str
    """Unique on its broker."""
    source: RedisStream
    """The stream. Its `group` and `delay_key` are filled in."""
    stream: str
    """The stream's key."""
    group: str
    """The consumer group."""
    delay_key: str
    """The sorted set of delayed entries."""
    plan: HandlerPlan
    """How the handler is called."""
    workers: int
    """Handlers that run at once."""
    by_key: bool
    """Whether entries of one key run one after another."""
    strict: bool
    """Whether later entries of a key wait while its head is being retried."""
    key_of: Callable[[Context], bytes | None] | None
    """Computes a delivery's key, where it is not the one in its header. None for an entry that does not decode."""
    max_in_flight: int
    """Entries read and not settled yet, at most."""
    batch: int | None
    """Messages in a full batch; None for a handler that takes one by one."""
    batch_wait: float
    """Seconds that a worker waits for a batch to fill up."""
    codec: Codec
    """Decodes the payloads."""
    on_error: ErrorPolicy
    """The outcome of an exception."""
    on_decode_error: Outcome
    """The outcome of a delivery that raises `DecodeError` before its handler is called."""
    timeout: float | None
    """Seconds a handler may run; None for as long as it takes."""
    dead_letter: str | None
    """The stream of dead letters."""
    max_attempts: int | None
    """How often the handler is started for one entry, at most."""
    on_exhausted: Outcome
    """What becomes of an entry whose attempts are used up."""
    backoff: Backoff | None
    """The wait before a `retry()` without a delay; None leaves it to the mode."""
    renew_stalled: float | None
    """Seconds the loop may stand still; None where nothing is renewed."""
    replies: Replies
    """Where the handler's return values go."""
    idempotency: Idempotent | None
    """How messages are marked; None: they are not."""

    def renewed(self, min_idle: float) -> Subscriber:
        """Return it with the `min_idle`, in seconds, that another subscription recovers the group with."""
        renew_stalled = 20 * min_idle if self.renew_stalled is None else self.renew_stalled
        if self.idempotency is not None:
            self.idempotency.check(min_idle, self.name)
        return replace(self, source=self.source.renewed(min_idle), renew_stalled=renew_stalled)

    def bounded(self, trim: Trim | None) -> Subscriber:
        """Return it with what its stream is kept within.

        Raises:
            ConfigError: its marks are forgotten before that.
        """
        if trim is not None and self.idempotency is not None:
            self.idempotency.check(self.source.min_idle, self.name, trim.retention)
        return replace(self, source=self.source.bounded(trim))

    def starting_at(self, start_id: str) -> Subscriber:
        """Return it with the place where its group begins."""
        return replace(self, source=self.source.starting_at(start_id))
