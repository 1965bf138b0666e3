"""The exception tree. Every message says what to change; the attributes carry what a program may need."""

from collections.abc import Sequence
from typing import Final

_PASSING: Final = frozenset(
    {"OOM", "READONLY", "LOADING", "MASTERDOWN", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "NOREPLICAS", "MISCONF"}
)
"""Codes of refusals that depend on the state of the server, and not on the message."""


class RustStreamError(Exception):
    """Base of everything this package raises on purpose."""


class ConfigError(RustStreamError, ValueError):
    """An option, a handler's signature or an environment variable is wrong. Raised before anything is sent."""


class ConnectError(RustStreamError, ConnectionError):
    """The server can't be reached, or refuses the user name, the password or the database."""


class ServerTooOldError(RustStreamError):
    """A subscription needs a command that the connected server does not have."""

    subscription: str | None
    """The subscription that asked for it."""
    required: str | None
    """The first server version that has it."""
    actual: str | None
    """What the server reports; None when it reports nothing."""

    def __init__(
        self,
        message: str,
        subscription: str | None = None,
        required: str | None = None,
        actual: str | None = None,
    ) -> None:
        """Keep the three names beside the message."""
        super().__init__(message)
        self.subscription = subscription
        self.required = required
        self.actual = actual


class SubscribeError(RustStreamError):
    """A subscription could not be opened, or can't go on: no such group, no permission, not a stream."""


class PublishError(RustStreamError):
    """The server refused a message, or nothing was sent. It is not in the stream."""

    results: Sequence[object]
    """Of `publish_many`: an `EntryId` or an exception per message."""
    code: str | None
    """The server's code, such as `OOM`, `READONLY` or `WRONGTYPE`; None where it was not asked."""

    def __init__(self, message: str, results: Sequence[object] = (), code: str | None = None) -> None:
        """Keep the results and the code beside the message."""
        super().__init__(message)
        self.results = results
        self.code = code

    @property
    def retryable(self) -> bool:
        """Whether the same message may be taken later, with nothing changed at this end."""
        return self.code in _PASSING


class PublishUncertainError(RustStreamError):
    """The connection was lost before the answer came: the message may or may not be in the stream.

    Not a `PublishError`, so that a loop which publishes again after one does not double messages.
    """

    results: Sequence[object]
    """Of `publish_many`: an `EntryId` or an exception per message."""

    def __init__(self, message: str, results: Sequence[object] = ()) -> None:
        """Keep the results beside the message."""
        super().__init__(message)
        self.results = results


class DecodeError(RustStreamError):
    """A payload, or a header that a handler asked for by type, does not decode."""

    stream: str | None
    """The stream the entry was read from."""
    group: str | None
    """The consumer group it was read through."""
    entry_id: object
    """The entry's `EntryId`."""
    handler: str | None
    """The handler that was to receive it."""

    def __init__(
        self,
        message: str,
        stream: str | None = None,
        group: str | None = None,
        entry_id: object = None,
        handler: str | None = None,
    ) -> None:
        """Keep where the entry came from beside the message."""
        super().__init__(message)
        self.stream = stream
        self.group = group
        self.entry_id = entry_id
        self.handler = handler


class HandlerTimeoutError(RustStreamError, TimeoutError):
    """A handler ran longer than its subscription's `timeout`. It goes through `on_error` as a `TimeoutError`.

    The `TimeoutError` of a handler's own `asyncio.timeout` is none of these: a rule that names this class is for the
    subscription's timeout alone. Both are an `OSError` as well, as Python has it.
    """

    timeout: float
    """What it may take, in seconds."""

    def __init__(self, message: str, timeout: float = 0.0) -> None:
        """Keep the timeout beside the message."""
        super().__init__(message)
        self.timeout = timeout


class LeaseLostError(RustStreamError):
    """Someone else owns the entry or the shard by now."""


class AlreadySettledError(RustStreamError):
    """The delivery was given an outcome before."""


class ShutDownError(RustStreamError):
    """The app, the broker or its loop is closed."""


class ForkError(RustStreamError):
    """A connection made before a fork was used in the child. Start the app in the child instead."""


class NotQuiescentError(RustStreamError):
    """A test's app does not come to rest: handlers cause more and more calls, or one of them does not end."""


class TransactionError(RustStreamError):
    """A transaction was used before it began, after its end, or twice, or its keys lie in several cluster slots."""
