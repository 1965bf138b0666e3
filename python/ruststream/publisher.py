"""A publisher of one stream or of one type of message, made once and used often."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict, TypeVar, Unpack

from ruststream.codec import type_name
from ruststream.errors import PublishError

if TYPE_CHECKING:
    from ruststream.context import EntryId
    from ruststream.wire import PublishOptions

M = TypeVar("M")


class ManyOptions(TypedDict, total=False):
    """What may be said of many messages at once."""

    key: Callable[[Any], bytes | str | int | None] | None
    """Computes each message's partition key."""
    headers: Mapping[str, str | bytes] | None
    """Of every message, by name."""
    content_type: str | None
    """Instead of the codec's."""
    maxlen: int | None
    """Trim the stream to so many entries."""
    minid: EntryId | str | None
    """Trim the entries below this id."""
    approximate: bool
    """Let the server trim a little later, which costs it less. Default True."""


class Publishes(Protocol):
    """What a publisher needs of its broker."""

    @property
    def publish(self) -> Callable[..., Coroutine[Any, Any, EntryId]]:
        """Add one message."""

    @property
    def publish_many(self) -> Callable[..., Coroutine[Any, Any, list[EntryId]]]:
        """Add many messages."""


class Publisher(Generic[M]):
    """Publishes messages of one type. Made by `broker.publisher(stream, type)`, or asked for by a handler's parameter.

    A parameter annotated `Publisher` takes any message; one annotated `Publisher[Payment]` publishes to the stream that
    `@outgoing` names for `Payment`.
    """

    __slots__ = ("_broker", "_checked", "_stream", "_type")

    def __init__(self, broker: Publishes, stream: str | None = None, message_type: Any = Any) -> None:
        """Take a broker, which need not be connected yet.

        Args:
            broker: does the work.
            stream: where messages go; None leaves it to their class, or to the call.
            message_type: what messages must be, where it is a class.
        """
        self._broker = broker
        self._stream = stream
        self._type = message_type
        self._checked = message_type if _can_be_asked(message_type) else None

    def __repr__(self) -> str:
        """Show what it publishes, and where."""
        return f"Publisher({self._stream!r}, {type_name(self._type)})"

    @property
    def stream(self) -> str | None:
        """Where messages go; None leaves it to their class, or to the call."""
        return self._stream

    async def publish(self, message: M, stream: str | None = None, **options: Unpack[PublishOptions]) -> EntryId:
        """Add one message, and return its id once the server has answered. As `RedisBroker.publish`.

        Args:
            message: of the publisher's type.
            stream: instead of the publisher's own.
            options: see `PublishOptions`.

        Raises:
            ConfigError: an argument is wrong.
            PublishError: the message is of another type, can't be encoded, or the server refused it.
            PublishUncertainError: the connection was lost before the answer came.
            ShutDownError: the broker is not connected.
        """
        self._check(message)
        return await self._broker.publish(message, stream or self._stream, **options)

    async def publish_many(
        self, messages: Iterable[M], stream: str | None = None, **options: Unpack[ManyOptions]
    ) -> list[EntryId]:
        """Add many messages in one pipeline, and return their ids in the same order. As `RedisBroker.publish_many`.

        Args:
            messages: of the publisher's type.
            stream: instead of the publisher's own.
            options: see `ManyOptions`.

        Raises:
            ConfigError: an argument is wrong.
            PublishError: a message is of another type or can't be encoded, or the server refused some.
            PublishUncertainError: the connection was lost before the answers came.
            ShutDownError: the broker is not connected.
        """
        messages = list(messages)
        for message in messages:
            self._check(message)
        return await self._broker.publish_many(messages, stream or self._stream, **options)

    def _check(self, message: object) -> None:
        if self._checked is not None and not isinstance(message, self._checked):
            raise PublishError(
                f"{self!r} takes messages of type {type_name(self._type)}, not {type_name(type(message))}; nothing "
                "was sent"
            )


def _can_be_asked(message_type: Any) -> bool:
    """Whether `isinstance` takes it. `Any`, a `TypedDict` and a protocol are classes too, and it refuses them."""
    try:
        isinstance(None, message_type)
    except TypeError:
        return False
    return isinstance(message_type, type)
