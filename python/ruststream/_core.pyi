"""The native core: stream reads, reply walking, dispatch, settlement, leases and publishing.

Everything here is private to `ruststream` except `Context` and `EntryId`, which `ruststream` exports.
Durations are seconds (`float`) unless a name ends in `_ms`. Nothing here is safe to call from another
thread than the one whose loop watches `Engine.fileno()`.
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, final

__all__ = [
    "ACK",
    "ACKED",
    "ALARM",
    "ASKED",
    "BUILD_PROFILE",
    "DEAD_LETTER",
    "DONE",
    "DROP",
    "LEAVE",
    "LOG",
    "LOST",
    "PARTITIONS",
    "RAISED",
    "READY",
    "REFUSED",
    "RETRY",
    "RETURNED",
    "STATE",
    "SUSPENDED",
    "BatchContext",
    "Consumer",
    "Context",
    "Engine",
    "EntryId",
    "Letters",
    "RedisClient",
    "__version__",
    "partition",
]

__version__: Final[str]
BUILD_PROFILE: Final[str]
"""`release` or `debug`; a debug build warns at import."""

PARTITIONS: Final[int]
"""How many partitions the keys of one subscription fall into: 1,024."""

# What `Engine.drain` returns: the first element of each event.
READY: Final[int]
"""`(READY, consumer_id)`: entries wait and a lane of this consumer is idle."""
DONE: Final[int]
"""`(DONE, ticket, result)`: a publish was answered; `result` is an `EntryId`, an exception, or a list of these."""
LOST: Final[int]
"""`(LOST, consumer_id, [EntryId, ...])`: these entries are owned by someone else now."""
ACKED: Final[int]
"""`(ACKED, consumer_id, [EntryId, ...])`: the server answered the outcomes of watched deliveries."""
REFUSED: Final[int]
"""`(REFUSED, consumer_id, [EntryId, ...])`: the server refused the outcomes of these watched deliveries."""
STATE: Final[int]
"""`(STATE, consumer_id, state, error)`: `reading`, `retrying`, `stopped` or `failed`, and the exception or None."""
LOG: Final[int]
"""`(LOG, level, message, {field: value})`: for `logging`."""
ALARM: Final[int]
"""`(ALARM, consumer_id)`: a wait that was asked for by `Consumer.alarm` is over."""
ASKED: Final[int]
"""`(ASKED, consumer_id, ticket)`: this consumer's core asks something; see `Consumer.asked`."""

# How `Consumer.drive` came to a stop: the first element of its tuple.
SUSPENDED: Final[int]
"""`(SUSPENDED, context, contextvars_context, coroutine, yielded)`: the handler waits for `yielded`."""
RETURNED: Final[int]
"""`(RETURNED, context, value)`: the handler returned something that is not None."""
RAISED: Final[int]
"""`(RAISED, context, exception)`: the handler, or what prepared its call, raised."""

# Outcomes as the core knows them.
ACK: Final[int]
DROP: Final[int]
RETRY: Final[int]
LEAVE: Final[int]
DEAD_LETTER: Final[int]

def partition(key: bytes) -> int:
    """Return the partition of a key: `xxh3_64(key) % 1024`."""

@final
class EntryId:
    """The id of a stream entry: milliseconds and a sequence within them. `str()` gives Redis's own form."""

    def __new__(cls, ms: int, seq: int = 0) -> EntryId: ...
    @staticmethod
    def parse(text: str | bytes) -> EntryId:
        """Read `ms-seq` or a bare `ms`. Raises `ValueError` for anything else."""
    @property
    def ms(self) -> int:
        """Milliseconds since the epoch, by the server's clock."""
    @property
    def seq(self) -> int:
        """The sequence within the millisecond."""
    def previous(self) -> EntryId:
        """The greatest id below this one; `0-0` stays."""
    def next(self) -> EntryId:
        """The smallest id above this one."""
    def __lt__(self, value: EntryId, /) -> bool: ...
    def __le__(self, value: EntryId, /) -> bool: ...
    def __gt__(self, value: EntryId, /) -> bool: ...
    def __ge__(self, value: EntryId, /) -> bool: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Context:
    """One delivery as its handler sees it: where it came from, how often, and how to settle it by hand."""

    @property
    def entry_id(self) -> EntryId:
        """The entry's id. A retry in a claiming or recovering subscription keeps it."""
    @property
    def stream(self) -> str:
        """The stream the entry was read from."""
    @property
    def group(self) -> str:
        """The consumer group."""
    @property
    def consumer(self) -> str:
        """The consumer name this process reads under."""
    @property
    def subscription(self) -> str:
        """The subscription's name."""
    @property
    def payload(self) -> bytes:
        """The entry's body, undecoded; empty for an entry without one."""
    @property
    def partition_key(self) -> bytes | None:
        """The `redis-partition-key` header, or what `by_key` computed; None without one."""
    @property
    def delivery_count(self) -> int:
        """How often the entry was delivered, this delivery included: 1 for a fresh one, in every mode."""
    @property
    def idle(self) -> float:
        """Seconds the entry lay pending before this delivery; 0 for a fresh one and for one that was handed back."""
    @property
    def timestamp(self) -> float:
        """When the entry was added: seconds since the epoch, from its id."""
    @property
    def lag(self) -> float:
        """Seconds since the entry was added, by the server's clock."""
    @property
    def headers(self) -> Any:
        """The headers: a case-insensitive mapping of `str` values, `.raw` for bytes."""
    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        """All fields of the entry, in order, repeated ones kept."""
    @property
    def lease_lost(self) -> Any:
        """An `asyncio.Event`, set once someone else owns the entry."""
    @property
    def lost(self) -> bool:
        """Whether someone else owns the entry by now."""
    @property
    def state(self) -> Any:
        """What the app's startup made."""
    @property
    def settled(self) -> bool:
        """Whether an outcome was given."""
    def settle(self, outcome: Any) -> None:
        """Settle now. A second settle raises `AlreadySettledError`."""
    def after_ack(self, callback: Callable[[], object]) -> None:
        """Call `callback` once the server has answered this entry's ack."""
    def publish(self, message: object, stream: str | None = None, **options: Any) -> Coroutine[Any, Any, EntryId]:
        """Publish through the broker this entry came from. Same options as `RedisBroker.publish`."""

@final
class BatchContext:
    """The deliveries that one call of a batch handler has in its hands."""

    def __len__(self) -> int: ...
    @property
    def contexts(self) -> tuple[Context, ...]:
        """One `Context` per element, in the order of the list."""
    @property
    def entry_ids(self) -> tuple[EntryId, ...]:
        """The entries' ids, in the order of the list."""
    @property
    def stream(self) -> str:
        """The stream the entries were read from."""
    @property
    def group(self) -> str:
        """The consumer group."""
    @property
    def consumer(self) -> str:
        """The consumer name this process reads under."""
    @property
    def subscription(self) -> str:
        """The subscription's name."""
    @property
    def lease_lost(self) -> Any:
        """An `asyncio.Event`, set once someone else owns one of the entries; `lost` of its context tells which."""
    @property
    def lost(self) -> bool:
        """Whether someone else owns one of the entries by now."""
    @property
    def settled(self) -> bool:
        """Whether every element was given an outcome."""
    @property
    def state(self) -> Any:
        """What the app's startup made."""
    def settle(self, which: int | Context, outcome: Any) -> None:
        """Settle one element now; it keeps this outcome whatever the handler returns for the batch.

        Args:
            which: its index in the list, or its context.
            outcome: such as `ack()` or `retry()`.

        Raises:
            AlreadySettledError: it was settled before.
            IndexError: there is no such element.
            ValueError: the context is of another batch.
            TypeError: neither an index nor a context, or no outcome.
        """
    def publish(self, message: object, stream: str | None = None, **options: Any) -> Coroutine[Any, Any, EntryId]:
        """Publish through the broker these entries came from. Same options as `RedisBroker.publish`."""

@final
class Engine:
    """One loop's side of the core: the doorbell, and what happened since it last rang.

    With `stopped_at_ms` all clients stand on models in this process, by one clock that stands at that time of day until
    `step` moves it, and the core's tasks run where `drain` is called.
    """

    def __new__(cls, *, threads: int = 1, stopped_at_ms: int | None = None) -> Engine: ...
    def fileno(self) -> int:
        """The descriptor to watch for reading."""
    def drain(self) -> list[tuple[Any, ...]]:
        """Silence the bell and return the events since the last call. With a stopped clock, run the tasks first."""
    def busy(self) -> bool:
        """Whether the core has something to do or to tell. Only of an engine with a stopped clock."""
    def step(self, limit_ns: int, most: int) -> tuple[int, int]:
        """Move a stopped clock on to where something falls due, and let the core do it.

        Goes further for as long as that leads to nothing to tell, so many nanoseconds and so many times at most.
        Returns how far the clock was moved, and how often something fell due.
        """
    def now_ms(self) -> int | None:
        """The time of day by a stopped clock, in milliseconds since the epoch; None where it runs by itself."""
    def fail_next(self, operation: str, lost: bool, text: str) -> None:
        """Let the next `read`, `ack` or `publish` fail: its connection is lost, or the server refuses it.

        Only with a stopped clock. Raises `ValueError` for another operation.
        """

@final
class RedisClient:
    """Connections to one Redis or Valkey server, or to one within the process (`memory://name`).

    Construction does no I/O.
    """

    def __new__(
        cls,
        engine: Engine,
        url: str,
        *,
        username: str | None = None,
        password: str | None = None,
        reconnect_initial: float = 0.05,
        reconnect_maximum: float = 1.0,
    ) -> RedisClient: ...
    def connect(self) -> Awaitable[dict[str, Any]]:
        """Connect, check the password, and ask what the server can do.

        Returns `{"server": str, "version": str, "claim": bool, "xnack": bool, "xackdel": bool,
        "idempotent": bool}`.
        Raises `ConnectError`.
        """
    def publish(
        self,
        stream: str,
        payload: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        maxlen: int | None = None,
        minid: str | None = None,
        approximate: bool = True,
    ) -> int:
        """Queue one entry; `headers` are (lower-case name, value). Returns the ticket of its `DONE` event."""
    def publish_many(
        self,
        stream: str,
        payloads: Sequence[bytes],
        headers: Sequence[tuple[bytes, bytes]],
        keys: Sequence[bytes | None] | None = None,
        maxlen: int | None = None,
        minid: str | None = None,
        approximate: bool = True,
    ) -> int:
        """Queue many entries under one ticket.

        Its `DONE` event carries a list, with an exception in place of each failure.
        """
    def entries(self, stream: str) -> list[tuple[EntryId, list[tuple[bytes, bytes]]]]:
        """All entries of a stream, and their fields in order. This and what follows wait for the server: for tests."""
    def pending(self, stream: str, group: str) -> list[tuple[EntryId, str, int, int]]:
        """A group's pending list: id, consumer, milliseconds since the last delivery, deliveries."""
    def steal(self, stream: str, group: str, consumer: str, id: EntryId) -> bool:
        """Take an entry over as another consumer. False: it is not pending."""
    def owed(self, stream: str, group: str, delay_key: str) -> tuple[bool, int]:
        """Whether entries wait that the group has not given out, and how many delayed ones are due."""
    def delete(self, keys: Sequence[str]) -> None:
        """Delete keys."""
    def list_groups(self, stream: str) -> Awaitable[list[dict[str, Any]] | None]:
        """Return the groups of a stream by name; None where there is no stream.

        Each: `group`, `consumers`, `pending`, `lag` (None: unknown), `last_delivered_id`.
        """
    def list_pending(self, stream: str, group: str, count: int) -> Awaitable[list[dict[str, Any]]]:
        """Return pending entries of a group, the lowest ids first.

        Each: `id`, `consumer`, `idle` in seconds (None: handed back), `deliveries`.
        """
    def list_consumers(self, stream: str, group: str) -> Awaitable[list[dict[str, Any]]]:
        """Return the consumers of a group by name.

        Each: `consumer`, `pending`, `idle` and `inactive` in seconds (None: unknown).
        """
    def mark(self, step: str, owner: str, keys: list[str], lives: float) -> Awaitable[list[int]]:
        """Do the same with several marks: `begin`, `finish` or `release`, for `lives` seconds.

        Returns 1 (carried out), 0 (another owner's) or 2 (done) for each.
        """
    def publish_together(
        self,
        messages: Sequence[tuple[str, bytes, Sequence[tuple[bytes, bytes]], int | None, str | None, bool]],
    ) -> int:
        """Queue entries that are added at once or not at all.

        Of each: stream, payload, headers, maxlen, minid, approximate. The ticket's `DONE` event carries a list.
        """
    def close(self) -> Awaitable[None]:
        """Answer what is queued, then close every connection."""

@final
class Letters:
    """One stream of dead letters, as an operator's command reads them and puts them back."""

    def __new__(cls, client: RedisClient, stream: str) -> Letters: ...
    def length(self) -> Awaitable[int]:
        """How many entries the stream has."""
    def last_id(self) -> Awaitable[EntryId | None]:
        """The id last given out in the stream; None where there never was one."""
    def has_group(self, stream: str, group: str) -> Awaitable[bool]:
        """Whether there is such a group."""
    def after(self, cursor: EntryId, count: int) -> Awaitable[list[tuple[EntryId, list[tuple[bytes, bytes]]]]]:
        """Entries behind an id, oldest first."""
    def replay(
        self, letters: Sequence[tuple[EntryId, Sequence[tuple[bytes, bytes]], str, str | None]]
    ) -> Awaitable[list[EntryId | Exception | None]]:
        """Put letters back, each in one step: its id and fields, the stream it goes into, the group it is for alone.

        One result each: the new id, None where it is not there any more, or why the server refused it.
        """

@final
class Consumer:
    """One subscription: a consumer of its group, its partitions, and the outcomes of its entries."""

    def __new__(
        cls,
        engine: Engine,
        client: RedisClient,
        *,
        name: str,
        stream: str,
        group: str,
        consumer: str,
        mode: str,
        min_idle: float | None,
        count: int,
        block: float,
        start_id: str,
        start_at: str | None,
        create_group: bool,
        recreate_group: bool,
        max_in_flight: int,
        by_key: bool,
        renew_stalled: float | None,
        delay_key: str,
        fixed_consumer: bool,
        strict: bool,
        forget_after: float,
        trim: tuple[str, float] | None,
        workers: int,
        attempts_key: str,
        max_attempts: int | None,
        on_exhausted: int,
        dead_letter: str | None = None,
        marks: tuple[str, str, float, float, RedisClient | None, bool] | None = None,
    ) -> Consumer:
        """Make one; no I/O.

        `marks`, of an idempotent subscription: what all keys begin with, the owner, seconds of the lease, seconds that
        a done mark is kept, the client whose server keeps them (None: Python is asked), whether Python computes keys.
        """
    @property
    def id(self) -> int:
        """The `consumer_id` of this consumer's events."""
    def bind(
        self,
        owner: Any,
        invoke: Callable[..., Coroutine[Any, Any, Any]],
        key_of: Callable[[Context], bytes | None] | None = None,
        direct: tuple[Callable[[bytes], Any], Callable[..., Any], bool] | None = None,
        batch: tuple[int, float, Callable[[Context], Any], Callable[[bytes], Any] | None] | None = None,
    ) -> None:
        """Give the subscription its Python side.

        `invoke` prepares one call and returns its coroutine. `direct` is (decode, handler, with_context) of a handler
        that is called as `handler(decode(payload)[, ctx])`; where that does not decode, `invoke` is asked.
        `owner` serves what `Context` leaves to Python:
        `make_headers(ctx)`, `make_lease_lost(ctx)`, `settle(ctx, outcome)`, `after_ack(ctx, callback)`,
        `publish(ctx, message, stream, **options)` and the attribute `app_state`.
        `batch` is (entries, seconds, extract, decode) of a handler that takes batches: `invoke(messages, batch)` is
        asked instead, once so many are ready or have been ready for so long. What neither `decode` nor `extract`
        takes goes to `raised(ctx, error)` of the owner, alone. `make_batch_lease_lost(batch)` is asked there too.
        """
    def open(self) -> Awaitable[None]:
        """Check the server, create the group, move its cursor. Raises `ServerTooOldError` or `SubscribeError`."""
    def start(self) -> None:
        """Begin to read."""
    def drive(self, cancelling: Callable[[], int]) -> tuple[Any, ...] | bool:
        """Run ready deliveries until one needs Python's care.

        `cancelling` is that of the lane's task: a handler that leaves a cancellation behind ends the drive.
        Returns False when nothing is ready (the next entry rings the bell), True when the lane should let
        others run, else a tuple that begins with `SUSPENDED`, `RETURNED` or `RAISED`. Where the handler takes
        batches, the context in it is a `BatchContext`.
        """
    def ready(self) -> bool:
        """Whether a delivery could be taken at once. If not, the next batch rings the bell."""
    def now(self) -> float:
        """Seconds of the core's clock, from an arbitrary beginning."""
    def alarm(self, after: float) -> None:
        """Ask for an `ALARM` event in so many seconds of the core's clock."""
    def watch(self, ctx: Context) -> None:
        """Ask for an `ACKED` event once this delivery's outcome is answered."""
    def settle(
        self,
        ctx: Context,
        outcome: int,
        delay: float | None = None,
        reason: str | None = None,
        error: bytes | None = None,
    ) -> bool:
        """Give one delivery its outcome. False: it is not ours any more. Raises `AlreadySettledError`.

        `delay` is of a retry. `reason` is that of a dead letter, `max-attempts`, `rejected`, `decode-error` or
        `deleted`, and `error` what its header `x-dead-letter-error` says, cut at 512 bytes.
        """
    def ack_batch(self, batch: BatchContext) -> None:
        """Acknowledge every element of a batch that was not settled yet."""
    def finish(self, ctx: Context | BatchContext) -> None:
        """The handler of this delivery, or batch, has ended: the next of its partitions may start."""
    def reply(
        self,
        ctx: Context,
        stream: str,
        payload: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        maxlen: int | None = None,
        minid: str | None = None,
        approximate: bool = True,
    ) -> bool:
        """Ack one delivery and publish its reply in the same step.

        A `correlation-id` is added where there is none. False: it is not ours any more, and nothing is published.
        Raises `AlreadySettledError`.
        """
    def attempts(self, ctx: Context) -> int:
        """How often the handler was started for this delivery's entry, this time included; needs `max_attempts`."""
    def stop_reading(self) -> Awaitable[None]:
        """Read no more; returns once the last reply has been taken in."""
    def unkeep(self) -> None:
        """Keep no head of a key any more: each is retried as where no order is kept, and its key goes on."""
    def let_through(self) -> Awaitable[None]:
        """Return once no redelivered entry waits for its turn before the lanes."""
    def release(self) -> Awaitable[int]:
        """Give back what was never started, without costing an attempt. Returns how many."""
    def flush(self) -> Awaitable[None]:
        """Return once every outcome given so far has been answered by the server."""
    def close(self) -> Awaitable[None]:
        """Stop timers and connections. What is unsettled stays pending."""
    def hurry(self) -> bool:
        """Hand the next batch over as it is, without waiting for it to fill. False: nothing waits."""
    def abandon(self, client: RedisClient) -> None:
        """Be gone as a killed process is: nothing more is sent, and nothing is handed back."""
    def asked(self, ticket: int) -> tuple[str, list[Any]] | None:
        """Return what was asked: `keys` and contexts, or a step (`begin`, `renew`, `finish`, `release`) and keys.

        None: it was answered.
        """
    def answer(self, ticket: int, answers: list[Any]) -> None:
        """Answer it, one element each: a key or error; of a step True (carried out), False, None (done) or an error."""
    def stats(self) -> dict[str, int]:
        """Counters since the start, and gauges.

        Counters: `read`, `claimed`, `acked`, `dropped`, `dead_lettered`, `retried`, `exhausted`, `replied`, `refused`,
        `left`, `lost`, `released`, `duplicates`, `duplicates_done`, `duplicates_waiting`, `mark_errors`,
        `foreign_copies`, `deleted`, `reads`, `settles`, `read_errors`, `reconnects`.
        Gauges: `queued`, `waiting` (of these, for the mark of their message), `running`, `unsettled` (outcomes without
        an answer), `in_flight`.
        """
    def unsettled(self) -> list[EntryId]:
        """Ids of the entries that are queued, running or whose outcome has not been answered, oldest first."""
    def left_pending(self) -> int:
        """How many entries it leaves pending, as far as this process knows."""
