"""Messages that are added to their streams together or not at all."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self, Unpack

from ruststream.codec import Codec
from ruststream.errors import TransactionError
from ruststream.publishing import Publishing
from ruststream.wire import Outgoing, PublishOptions, outgoing_message

if TYPE_CHECKING:
    from ruststream._core import EntryId

_MOST: Final = 10_000
"""Messages of one transaction: nobody else is served while they are added."""

_HOW: Final = "async with broker.transaction() as tx: await tx.publish(...)"


class Transaction:
    """Gathers messages, and adds all of them when its block ends, in one MULTI/EXEC. Made by `broker.transaction()`.

    Nothing is sent before the end of the block, and nothing at all where an exception leaves it. Each object is for one
    block; blocks of different objects may overlap, and each adds its own messages.
    """

    def __init__(self, connected: Callable[[], Publishing], codec: Codec) -> None:
        """Gather nothing yet.

        Args:
            connected: returns the publishing side of the broker, or raises `ShutDownError`.
            codec: encodes the messages.
        """
        self._connected = connected
        self._codec = codec
        self._state: Literal["new", "open", "over"] = "new"
        self._messages: list[Outgoing] = []
        self._ids: list[EntryId] = []

    @property
    def ids(self) -> list[EntryId]:
        """The entries' ids in the order of the messages, once the block has ended; none where it failed."""
        return list(self._ids)

    async def publish(self, message: object, stream: str | None = None, **options: Unpack[PublishOptions]) -> None:
        """Note one message, to be added at the end of the block.

        Args:
            message: what the codec encodes; `bytes` and `msgspec.Raw` go as they are. Encoded now.
            stream: the stream's key. Default: the one that `@outgoing` names for the message's class.
            options: see `PublishOptions`.

        Raises:
            ConfigError: an argument is wrong.
            PublishError: the message can't be encoded.
            TransactionError: outside the block, or more than 10,000 messages.
        """
        if self._state != "open":
            what = "has not begun" if self._state == "new" else "is over"
            raise TransactionError(f"the transaction {what}, and takes no message: {_HOW}")
        if len(self._messages) == _MOST:
            raise TransactionError(
                f"a transaction takes {_MOST} messages at most: the server serves nobody else while it adds them; "
                "use several, or publish_many"
            )
        self._messages.append(outgoing_message(message, stream, self._codec, **options))

    async def __aenter__(self) -> Self:
        """Begin.

        Raises:
            TransactionError: it began before.
            ShutDownError: the broker is not connected.
        """
        if self._state != "new":
            what = "has begun already" if self._state == "open" else "is over"
            raise TransactionError(f"the transaction {what}; make one for each block: {_HOW}")
        self._connected().check_loop()
        self._state = "open"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Add all messages; none where an exception leaves the block.

        Raises:
            PublishError: the server refused one of them, and none was added.
            PublishUncertainError: the connection was lost before the answer came: all were added, or none.
        """
        messages, self._messages, self._state = self._messages, [], "over"
        if error is None:
            self._ids = await self._connected().publish_together(messages)
