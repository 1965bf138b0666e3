"""The options of a subscriber as users give them, and what a decorator notes of them until a broker is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypedDict, runtime_checkable

from ruststream.codec import Codec, CodecName, codec_of, key_bytes
from ruststream.context import Context
from ruststream.errors import ConfigError, DecodeError
from ruststream.handler import HandlerPlan, make_plan
from ruststream.idempotency import Idempotent
from ruststream.option import Duration, name_text, refuse_unknown, seconds, whole
from ruststream.outcome import Outcome, dead_letter, drop, leave
from ruststream.policy import Backoff, ErrorPolicy, available
from ruststream.publisher import Publishes
from ruststream.reply import ReplyRule
from ruststream.signature import Handler, Signature, read_signature
from ruststream.subscriber import Subscriber

if TYPE_CHECKING:
    from ruststream.redis.stream import RedisStream

OrderKind: TypeAlias = Literal["relaxed", "strict"]
KeyFunction: TypeAlias = Callable[[Any], bytes | str | int | None]

_MOST_WORKERS: Final = 100_000
_MOST_IN_FLIGHT: Final = 10_000_000
_LARGEST_BATCH: Final = 100_000
_BATCH_WAIT: Final = 0.05
_MOST_ATTEMPTS: Final = 1_000_000
_EXHAUSTED: Final = ("dead_letter", "drop")


@runtime_checkable
class Source(Protocol):
    """What a decorator takes for a source before its broker is known: a stream's descriptor."""

    @property
    def stream(self) -> str:
        """The stream's name."""

    @property
    def count(self) -> int:
        """Entries asked for in one read."""


class SubscriberOptions(TypedDict, total=False):
    """The options of `@broker.subscriber(source, ...)`."""

    workers: int
    """Handlers that run at once. Default 1: one after another, in order."""
    by_key: bool | KeyFunction
    """True: entries of one partition key run one after another in the order they were added, different keys side by
    side. A callable computes the key from the decoded payload. Default False."""
    order: OrderKind
    """With `by_key`: `"relaxed"` (default), or `"strict"`: later entries of a key wait while its head is retried."""
    max_in_flight: int | None
    """Entries read and not settled yet, at most. Default: four times `count` or `workers`, whichever is more; with
    `batch` also room for a batch per worker and one that gathers."""
    batch: int | None
    """The handler takes `list[T]` of up to so many, and returns one outcome, or a list of one per element. With
    `by_key` entries of one key are in one batch at a time. Default None: one by one."""
    batch_wait: Duration
    """Seconds that a free worker waits for a batch to fill up, from when it finds something. Default 0.05."""
    codec: CodecName | Codec | None
    """`"json"`, `"msgpack"`, `"auto"` (by `content-type`) or a `Codec`. Default: the broker's."""
    on_error: Mapping[type[Exception], Outcome] | Outcome | None
    """The outcome of an exception, by class. Default: `leave()`."""
    on_decode_error: Outcome | None
    """The outcome of a payload, or of a header asked for by type, that does not decode. Default: `dead_letter()` where
    there is a stream for it, else `leave()`."""
    timeout: Duration | None
    """Seconds a handler may run; then it is cancelled, and `TimeoutError` goes through `on_error`. A `def` handler
    can't be cancelled: its entry is held until it returns. Default None: as long as it takes."""
    dead_letter: str | None
    """The stream that takes what is given up: copied there and acknowledged in one step. Default None."""
    max_attempts: int | None
    """How often the handler is started for one entry, the first time included. Default None: no limit."""
    on_exhausted: Outcome | None
    """What becomes of an entry whose attempts are used up: `dead_letter()`, the default where there is a stream of dead
    letters, or `drop()`."""
    backoff: Backoff | None
    """The wait before a `retry()` without a delay, by how often the entry was delivered. Default None: what the
    source's mode says."""
    renew_stalled: Duration | None
    """Seconds the event loop may stand still before its entries are given up. Default: 20 times `min_idle`."""
    reply_to: str | None
    """The stream that takes what the handler returns; the entry is acked in the same step."""
    reply: bool
    """True: what the handler returns goes to the stream that `@outgoing` names for its class. Default False."""
    idempotency: Idempotent | None
    """Handle each message once, as far as marks in a store can tell: see `Idempotent`. Default None."""
    name: str | None
    """The subscription's name in logs, errors and health. Default: the handler's."""


def check_source(source: object) -> None:
    """Refuse what is no source; above all the handler of a decorator that was used without being called.

    Raises:
        ConfigError: neither a descriptor nor a name.
    """
    if isinstance(source, (str, Source)):
        return
    if callable(source):
        name = getattr(source, "__name__", repr(source))
        raise ConfigError(
            f'name the stream of handler {name}: @broker.subscriber(RedisStream("payments", group="..."))'
        )
    raise ConfigError(f"a subscriber reads a stream's descriptor or a stream's name, not {source!r}")


class Registration:
    """What a decorator noted: checked as far as it can be before a broker is known."""

    def __init__(self, source: Source | str, handler: Handler, options: Mapping[str, Any]) -> None:
        """Check source, handler and options.

        Raises:
            ConfigError: what is wrong; the message names the option, or the handler and its parameter.
        """
        refuse_unknown(options, SubscriberOptions.__optional_keys__, "a subscriber")
        check_source(source)
        self.source: Source | str = source
        self.signature: Signature = read_signature(handler)
        self.name: str | None = None if options.get("name") is None else name_text(options["name"], "name")
        self._workers = whole(options.get("workers", 1), "workers", 1, _MOST_WORKERS)
        batch = options.get("batch")
        self._batch = None if batch is None else whole(batch, "batch", 1, _LARGEST_BATCH)
        self._batch_wait = seconds(options.get("batch_wait", _BATCH_WAIT), "batch_wait")
        if self._batch is None and "batch_wait" in options:
            raise ConfigError("batch_wait is how long a batch fills up, and there is no batch=")
        self._max_in_flight = _in_flight(options.get("max_in_flight"), self._workers, self._batch or 1)
        self._by_key = _by_key(options.get("by_key", False))
        self._strict = _strict(options.get("order", "relaxed"), self._by_key, self._batch)
        codec = options.get("codec")
        self._codec = None if codec is None else codec_of(codec)
        self._on_error = ErrorPolicy(options.get("on_error"))
        given = options.get("dead_letter")
        self._dead_letter = None if given is None else name_text(given, "dead_letter")
        self._on_decode_error = dead_letter() if self._dead_letter is not None else leave()
        if (on_decode_error := options.get("on_decode_error")) is not None:
            self._on_decode_error = available(on_decode_error, "on_decode_error")
        _check_paths(self._dead_letter, on_error=self._on_error.outcomes(), on_decode_error=[self._on_decode_error])
        self._timeout = _above_zero(options, "timeout")
        self._max_attempts, self._on_exhausted = _cap(
            options.get("max_attempts"), options.get("on_exhausted"), self._dead_letter
        )
        self._backoff = _backoff(options.get("backoff"))
        self._renew_stalled = _above_zero(options, "renew_stalled")
        if self._batch is not None and (options.get("reply_to") is not None or options.get("reply")):
            raise ConfigError("reply_to and reply are for single messages: a batch handler publishes by itself")
        self._replies = ReplyRule(options.get("reply_to"), options.get("reply"), self.signature)
        self._idempotency = options.get("idempotency")
        if self._idempotency is not None and not isinstance(self._idempotency, Idempotent):
            raise ConfigError(f"idempotency must be Idempotent(ttl=...), not {self._idempotency!r}")
        if self._strict and self._idempotency is not None:
            raise ConfigError('order="strict" does not go together with idempotency in this version')

    def subscriber(
        self, name: str, source: RedisStream, codec: Codec, prefix: str = "", broker: Publishes | None = None
    ) -> Subscriber:
        """Return what a broker runs.

        Args:
            name: unique on the broker.
            source: the stream, with its group.
            codec: the codec of a subscription that names none.
            prefix: the router's, put before the name of the stream that replies go to.
            broker: what a `Publisher` parameter publishes through.

        Raises:
            ConfigError: the codec can't decode into the handler's type.
        """
        if self._dead_letter is not None and self._dead_letter in (source.stream, source.delay_key):
            raise ConfigError(
                f"dead_letter must be a stream of its own, not {self._dead_letter!r}, which the subscriber uses"
            )
        chosen = self._codec or codec
        batch = self._batch is not None
        plan = make_plan(self.signature, chosen, source.fields, self._workers, batch=batch, broker=broker)
        renew_stalled = self._renew_stalled
        if renew_stalled is None and source.min_idle is not None:
            renew_stalled = 20 * source.min_idle
        if self._idempotency is not None:
            self._idempotency.check(source.min_idle, name, None if source.trim is None else source.trim.retention)
        return Subscriber(
            name=name,
            source=source,
            stream=source.stream,
            group=source.group or "",
            delay_key=source.delay_key or "",
            plan=plan,
            workers=self._workers,
            by_key=self._by_key is not False,
            strict=self._strict,
            key_of=None if isinstance(self._by_key, bool) else _key_of(self._by_key, plan),
            max_in_flight=self._max_in_flight or self._default_in_flight(source.count),
            batch=self._batch,
            batch_wait=self._batch_wait,
            codec=chosen,
            on_error=self._on_error,
            on_decode_error=self._on_decode_error,
            timeout=self._timeout,
            dead_letter=self._dead_letter,
            max_attempts=self._max_attempts,
            on_exhausted=self._on_exhausted,
            backoff=self._backoff,
            renew_stalled=renew_stalled,
            replies=self._replies.of(chosen, prefix),
            idempotency=self._idempotency,
        )

    def _default_in_flight(self, count: int) -> int:
        # The reader waits for room for half a read, so a batch fills up only where that is left beside it.
        gathering = 0 if self._batch is None else (self._workers + 1) * self._batch + count
        return min(max(4 * count, 4 * self._workers, gathering), _MOST_IN_FLIGHT)


def _in_flight(value: object, workers: int, batch: int) -> int | None:
    if value is None:
        return None
    in_flight = whole(value, "max_in_flight", 1, _MOST_IN_FLIGHT)
    if in_flight < workers:
        raise ConfigError(f"max_in_flight ({in_flight}) must be at least workers ({workers})")
    if in_flight < batch:
        raise ConfigError(f"max_in_flight ({in_flight}) must be at least batch ({batch})")
    return in_flight


def _above_zero(options: Mapping[str, Any], name: str) -> float | None:
    value = options.get(name)
    return None if value is None else seconds(value, name, zero=False)


def _check_paths(stream: str | None, **outcomes: list[Outcome]) -> None:
    """Refuse options that name `dead_letter()` where there is no stream for it."""
    for option, named in outcomes.items():
        if stream is None and any(outcome.kind == "dead_letter" for outcome in named):
            raise ConfigError(f'{option} names dead_letter(): say where to, for example dead_letter="payments.dlq"')


def _by_key(value: object) -> bool | KeyFunction:
    if isinstance(value, bool) or callable(value):
        return value
    raise ConfigError(f"by_key must be True, False, or a function of the decoded payload, not {value!r}")


def _cap(max_attempts: object, on_exhausted: object, stream: str | None) -> tuple[int | None, Outcome]:
    """Return the most attempts, and what follows the last of them."""
    if on_exhausted is not None and (not isinstance(on_exhausted, Outcome) or on_exhausted.kind not in _EXHAUSTED):
        raise ConfigError(
            f"on_exhausted must be dead_letter() or drop(), not {on_exhausted!r}: an entry whose attempts are used "
            "up is not run again, so it can't stay"
        )
    if max_attempts is None:
        if on_exhausted is not None:
            raise ConfigError("on_exhausted says what follows the last attempt: it needs max_attempts")
        return None, drop()
    most = whole(max_attempts, "max_attempts", 1, _MOST_ATTEMPTS)
    if on_exhausted is None and stream is None:
        raise ConfigError(
            "max_attempts needs to know what becomes of an entry that has used them up: "
            'give dead_letter="payments.dlq", or on_exhausted=drop()'
        )
    exhausted = dead_letter() if on_exhausted is None else on_exhausted
    _check_paths(stream, on_exhausted=[exhausted])
    return most, exhausted


def _strict(order: object, by_key: bool | KeyFunction, batch: int | None) -> bool:
    if order not in ("relaxed", "strict"):
        raise ConfigError(f'order must be "relaxed" or "strict", not {order!r}')
    if order == "relaxed":
        return False
    if by_key is False:
        raise ConfigError('order="strict" keeps the entries of one key in order: it needs by_key')
    if batch is not None:
        raise ConfigError('order="strict" is for handlers that take one message: leave batch out')
    return True


def _backoff(value: object) -> Backoff | None:
    if value is None or isinstance(value, Backoff):
        return value
    raise ConfigError(f"backoff must be a Backoff, not {value!r}")


def _key_of(key: KeyFunction, plan: HandlerPlan) -> Callable[[Context], bytes | None]:
    def key_of(ctx: Context) -> bytes | None:
        try:
            message = plan.extract(ctx)
        except DecodeError:
            # The call that follows says so; in any lane, since nobody can tell its key.
            return None
        return key_bytes(key(message), "what by_key returns")

    return key_of
