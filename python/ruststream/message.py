"""Messages that know where they go: `@outgoing` names the stream of a class, `Reply` that of one returned value."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Final, Generic, TypeVar, Union

from ruststream._core import EntryId
from ruststream.errors import ConfigError
from ruststream.option import name_text

__all__ = ["Reply", "outgoing", "returned_classes", "stream_of"]

T = TypeVar("T")
C = TypeVar("C", bound=type)

_STREAM: Final = "__ruststream_stream__"


def outgoing(stream: str) -> Callable[[C], C]:
    """Name the stream that messages of the decorated class go to, where `publish` or a reply names none.

    A subclass goes to the same stream, unless it names one of its own.

    Raises:
        ConfigError: not a stream's name, or what is decorated is not a class.
    """
    if isinstance(stream, type):
        raise ConfigError(f'name the stream of {stream.__name__}: @outgoing("payments")')
    name = name_text(stream, "outgoing(stream)")

    def decorate(cls: C) -> C:
        if not isinstance(cls, type):
            raise ConfigError(f"@outgoing({name!r}) belongs on a message class, not on {cls!r}")
        try:
            setattr(cls, _STREAM, name)
        except TypeError as error:
            raise ConfigError(f"@outgoing({name!r}) can't mark {cls.__name__}: take a class of your own") from error
        return cls

    return decorate


def stream_of(cls: object) -> str | None:
    """Return the stream that `@outgoing` names for a class; None where it names none."""
    found = getattr(cls, _STREAM, None)
    return found if isinstance(found, str) else None


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """What a handler returns to say more of its reply than the value. The entry is acked in the same step."""

    value: T
    """The message."""
    _: KW_ONLY
    key: bytes | str | None = None
    """The partition key."""
    headers: Mapping[str, str | bytes] | None = None
    """By name. `correlation-id` is set where it is not given."""
    to: str | None = None
    """The stream. Default: `reply_to` of the subscription, else the stream of the value's class."""
    content_type: str | None = None
    """Instead of the codec's."""
    maxlen: int | None = None
    """Trim the stream to so many entries."""
    minid: EntryId | str | None = None
    """Trim the entries below this id."""
    approximate: bool = True
    """Let the server trim a little later, which costs it less."""


def returned_classes(hint: Any) -> Iterator[Any]:
    """Iterate over the types that a return annotation names: the members of a union, and what is in a `Reply`."""
    origin = typing.get_origin(hint)
    if origin is Annotated:
        yield from returned_classes(hint.__origin__)
    elif origin in (Union, types.UnionType) or origin is Reply:
        for member in typing.get_args(hint):
            yield from returned_classes(member)
    else:
        yield hint
