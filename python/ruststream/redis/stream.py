"""Where entries come from: one Redis stream, the group it is read through, and how."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, ParamSpec, Self, TypeAlias, TypedDict, TypeVar, Unpack

from ruststream.context import EntryId, entry_id_text
from ruststream.errors import ConfigError
from ruststream.option import Duration, name_text, refuse_unknown, seconds, whole, yes_or_no
from ruststream.redis.trim import Trim

Mode: TypeAlias = Literal["new", "reclaim", "claiming", "recovering"]
MissingGroup: TypeAlias = Literal["recreate", "fail"]

P = ParamSpec("P")
R = TypeVar("R")

_MOST_PER_READ: Final = 100_000
_FORGET_AFTER: Final = 300.0
"""Seconds without a sign of life before the consumer of an ended process is deleted, at least."""
_HASH_TAG: Final = re.compile(r"[^{]*\{[^}]+\}")


class StreamStart(StrEnum):
    """Where a group begins to read when it is created. An existing group keeps its cursor."""

    NEW = "$"
    """Entries added after the group was created."""
    BEGINNING = "0"
    """Everything the stream holds."""


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """Where to move the cursor of a group, for all its consumers."""

    position: str
    """`0`, `$`, or the id that the next entry read comes after."""

    @classmethod
    def beginning(cls) -> Self:
        """Before the first entry of the stream."""
        return cls("0")

    @classmethod
    def end(cls) -> Self:
        """After the last entry of the stream."""
        return cls("$")

    @classmethod
    def after(cls, entry_id: EntryId | str) -> Self:
        """After this entry, which need not exist.

        Raises:
            ConfigError: not an entry id.
        """
        return cls(entry_id_text(entry_id, "GroupPosition.after"))


class StreamOptions(TypedDict, total=False):
    """The options that all four constructors of `RedisStream` share."""

    consumer: str | None
    """Consumer name, fixed. Default: made at start as `ruststream-<host>-<pid>-<random>`."""
    start_id: StreamStart | str
    """Where a group begins that is created now: `StreamStart.NEW` (default), `.BEGINNING`, or after `"ms-seq"`."""
    start_at: GroupPosition | None
    """Moves the group's cursor at every start, for all its consumers. Default None: it stays where it is."""
    count: int
    """Entries asked for in one read. Default 200."""
    block: Duration
    """Seconds a read waits for entries at the server. Default 2.0."""
    fields: str | None
    """How an entry without a `_payload` field is read: `"auto"` (default) field by field into the handler's type,
    `"envelope"` not at all, any other name from the field of that name."""
    create_group: bool
    """Create the group, and the stream with it, where it is missing at start. Default True."""
    on_missing_group: MissingGroup
    """When the group disappears while it is read: `"recreate"` it from the beginning (default), or `"fail"`."""
    delay_key: str | None
    """Sorted set of the due times of delayed entries. Default `{<stream>}:<group>:delayed`."""
    trim: Trim | None
    """What the stream is kept within: `Trim.acked()`, `.max_length(n)` or `.max_age(d)`. Default None: nothing is
    removed."""


def _needs_min_idle(make: Callable[P, R]) -> Callable[P, R]:
    """Have a call without `min_idle`, which type checkers refuse, say what it is and what to add."""

    @functools.wraps(make)
    def made(*args: P.args, **options: P.kwargs) -> R:
        options.setdefault("min_idle", None)
        return make(*args, **options)

    return made


@dataclass(frozen=True, init=False, slots=True)
class RedisStream:
    """A stream and how it is read. Construction does no I/O.

    `RedisStream(stream, group=...)` is `RedisStream.new(stream, group=...)`. What the options mean, and their
    defaults, is in `StreamOptions`.
    """

    stream: str
    """The stream's key."""
    mode: Mode
    """Which entries are read; named like the constructor."""
    group: str | None
    """The consumer group. None: the `default_group` of the broker."""
    min_idle: float | None
    """Seconds an entry lies pending before it is taken over. With `new`: what renewal keeps entries under."""
    consumer: str | None
    start_id: str
    start_at: GroupPosition | None
    count: int
    block: float
    fields: str
    create_group: bool
    on_missing_group: MissingGroup
    delay_key: str | None
    trim: Trim | None

    def __init__(
        self,
        stream: str,
        *,
        group: str | None = None,
        min_idle: Duration | None = None,
        **options: Unpack[StreamOptions],
    ) -> None:
        """Read entries that were never delivered, as `RedisStream.new` does."""
        self._fill("new", stream, group, min_idle, options)

    @classmethod
    def new(
        cls,
        stream: str,
        *,
        group: str | None = None,
        min_idle: Duration | None = None,
        **options: Unpack[StreamOptions],
    ) -> Self:
        """Read entries that were never delivered to the group. Any server.

        Args:
            stream: the stream's key.
            group: the consumer group; None takes the broker's `default_group`.
            min_idle: seconds (or `timedelta`) below which renewal keeps entries that are being handled. None: the
                value of the app's subscription that recovers the group.
            options: see `StreamOptions`.

        Raises:
            ConfigError: an option is wrong; its name is in the message.
        """
        return cls(stream, group=group, min_idle=min_idle, **options)

    @classmethod
    @_needs_min_idle
    def reclaim(
        cls, stream: str, *, min_idle: Duration, group: str | None = None, **options: Unpack[StreamOptions]
    ) -> Self:
        """Take over pending entries that lay idle at least `min_idle`, and nothing else (Redis 6.2, XAUTOCLAIM).

        Args:
            stream: the stream's key.
            min_idle: seconds (or `timedelta`) an entry lies pending before it is taken over.
            group: the consumer group; None takes the broker's `default_group`.
            options: see `StreamOptions`.

        Raises:
            ConfigError: an option is wrong; its name is in the message.
        """
        return cls._made("reclaim", stream, group, min_idle, options)

    @classmethod
    @_needs_min_idle
    def claiming(
        cls, stream: str, *, min_idle: Duration, group: str | None = None, **options: Unpack[StreamOptions]
    ) -> Self:
        """Read idle pending entries first, then new ones, in one command (Redis 8.4, `XREADGROUP ... CLAIM`).

        On an older server the start fails with `ServerTooOldError`; `recovering` works there too.

        Args:
            stream: the stream's key.
            min_idle: seconds (or `timedelta`) an entry lies pending before it is taken over.
            group: the consumer group; None takes the broker's `default_group`.
            options: see `StreamOptions`.

        Raises:
            ConfigError: an option is wrong; its name is in the message.
        """
        return cls._made("claiming", stream, group, min_idle, options)

    @classmethod
    @_needs_min_idle
    def recovering(
        cls, stream: str, *, min_idle: Duration, group: str | None = None, **options: Unpack[StreamOptions]
    ) -> Self:
        """Read new entries and take over idle ones, by what the server has (Redis 6.2, Valkey).

        Args:
            stream: the stream's key.
            min_idle: seconds (or `timedelta`) an entry lies pending before it is taken over.
            group: the consumer group; None takes the broker's `default_group`.
            options: see `StreamOptions`.

        Raises:
            ConfigError: an option is wrong; its name is in the message.
        """
        return cls._made("recovering", stream, group, min_idle, options)

    @property
    def recovers(self) -> bool:
        """Whether it takes over what other consumers left pending."""
        return self.mode != "new"

    def attached(self, default_group: str | None = None, prefix: str = "") -> Self:
        """Return it as a broker reads it: prefixed, with group and delay key filled in.

        Raises:
            ConfigError: there is neither a group nor a default one, or `delay_key` is the stream.
        """
        group = self.group if self.group is not None else default_group
        if group is None:
            raise ConfigError(
                f"the subscription of {self.stream!r} needs a consumer group: "
                f"give its RedisStream group=, or the RedisBroker default_group="
            )
        stream = prefix + self.stream
        _check_delay_key(self.delay_key, stream)
        return self._copy(stream=stream, group=group, delay_key=self.delay_key or group_key(stream, group, "delayed"))

    def renewed(self, min_idle: float) -> Self:
        """Return it with the `min_idle`, in seconds, that the group is recovered with elsewhere."""
        return self._copy(min_idle=min_idle)

    def starting_at(self, start_id: str) -> Self:
        """Return it with the place where a group that is created begins."""
        return self._copy(start_id=start_id)

    def bounded(self, trim: Trim | None) -> Self:
        """Return it with what its stream is kept within."""
        return self._copy(trim=trim)

    @property
    def forget_after(self) -> float:
        """Seconds without a sign of life after which a consumer of an ended process is deleted.

        Five minutes, or ten times `min_idle` and `block` together where that is more: by then a living process has
        spoken for its consumers ten times.
        """
        return max(_FORGET_AFTER, 10 * ((self.min_idle or 0.0) + self.block))

    def consumer_name(self) -> str:
        """Return the name to read under: `consumer`, or one made for this process and this call alone.

        The environment variable `RUSTSTREAM_CONSUMER` replaces the `ruststream-<host>` part of a made one.
        """
        if self.consumer is not None:
            return self.consumer
        prefix = os.environ.get("RUSTSTREAM_CONSUMER") or f"ruststream-{socket.gethostname()}"
        return f"{prefix}-{os.getpid()}-{secrets.token_hex(4)}"

    def _copy(self, **changes: object) -> Self:
        other = type(self).__new__(type(self))
        for part in dataclasses.fields(self):
            object.__setattr__(other, part.name, changes.get(part.name, getattr(self, part.name)))
        return other

    @classmethod
    def _made(
        cls, mode: Mode, stream: str, group: str | None, min_idle: Duration | None, options: StreamOptions
    ) -> Self:
        self = cls.__new__(cls)
        self._fill(mode, stream, group, min_idle, options)
        return self

    def _fill(
        self, mode: Mode, stream: str, group: str | None, min_idle: Duration | None, options: StreamOptions
    ) -> None:
        refuse_unknown(options, StreamOptions.__optional_keys__ | {"group", "min_idle"}, f"RedisStream.{mode}")
        if mode != "new" and min_idle is None:
            raise ConfigError(
                f"RedisStream.{mode} needs min_idle, for example min_idle=30: the seconds that an entry lies pending "
                "before it is taken over, longer than a handler that stands still may take"
            )
        start_at = options.get("start_at")
        if start_at is not None and not isinstance(start_at, GroupPosition):
            raise ConfigError(f"start_at must be a GroupPosition such as GroupPosition.end(), not {start_at!r}")
        trim = options.get("trim")
        if trim is not None and not isinstance(trim, Trim):
            raise ConfigError(f"trim must be Trim.acked(), Trim.max_length(n) or Trim.max_age(d), not {trim!r}")
        on_missing_group = options.get("on_missing_group", "recreate")
        if on_missing_group not in ("recreate", "fail"):
            raise ConfigError(f'on_missing_group must be "recreate" or "fail", not {on_missing_group!r}')
        values = {
            "stream": name_text(stream, "stream"),
            "mode": mode,
            "group": None if group is None else name_text(group, "group"),
            "min_idle": None if min_idle is None else seconds(min_idle, "min_idle", zero=False),
            "consumer": _optional_name(options.get("consumer"), "consumer"),
            "start_id": _start_id(options.get("start_id", StreamStart.NEW)),
            "start_at": start_at,
            "count": whole(options.get("count", 200), "count", 1, _MOST_PER_READ),
            # 0 means "for ever" to the server, and a read that waits for ever can't be stopped.
            "block": seconds(options.get("block", 2.0), "block", zero=False),
            "fields": _optional_name(options.get("fields"), "fields") or "auto",
            "create_group": yes_or_no(options.get("create_group", True), "create_group"),
            "on_missing_group": on_missing_group,
            "delay_key": _optional_name(options.get("delay_key"), "delay_key"),
            "trim": trim,
        }
        _check_delay_key(values["delay_key"], stream)
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _check_delay_key(delay_key: object, stream: str) -> None:
    if delay_key == stream:
        raise ConfigError(
            f"delay_key must be a key of its own, not the stream {stream!r}: it holds the sorted set of delayed entries"
        )


def _optional_name(value: object, option: str) -> str | None:
    return None if value is None else name_text(value, option)


def _start_id(value: object) -> str:
    if value in tuple(StreamStart):
        return str(value)
    return entry_id_text(value, "start_id (StreamStart.NEW, StreamStart.BEGINNING or an id)")


def group_key(stream: str, group: str, what: str) -> str:
    """Return the key of what is kept of a group beside its stream, named so that a cluster keeps both in one slot."""
    tagged = _HASH_TAG.match(stream) is not None
    return f"{stream}:{group}:{what}" if tagged else f"{{{stream}}}:{group}:{what}"
