"""A message on its way out: the arguments of `publish`, checked and brought to their wire form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypedDict

from ruststream.codec import Codec, encoded, is_payload, key_bytes, type_name
from ruststream.context import PARTITION_KEY_HEADER, EntryId, HeadersView, entry_id_text, header_values
from ruststream.errors import ConfigError, PublishError
from ruststream.message import stream_of
from ruststream.option import name_text, whole, yes_or_no

_MOST_ENTRIES: Final = 2**63 - 1
_MOST_HEADERS: Final = 3000
"""Headers of one message: a script of the server, which makes retry copies and sends replies, takes little more."""

_NO_HEADERS: Final[Mapping[str, bytes]] = {}
_CONTENT_TYPE: Final = b"content-type"
_KEY: Final = PARTITION_KEY_HEADER.encode()


class PublishOptions(TypedDict, total=False):
    """What may be said of a message when it is published."""

    key: bytes | str | None
    """The partition key."""
    headers: Mapping[str, str | bytes] | None
    """By name; the names are written in lower case."""
    content_type: str | None
    """Instead of the codec's."""
    maxlen: int | None
    """Trim the stream to so many entries."""
    minid: EntryId | str | None
    """Trim the entries below this id."""
    approximate: bool
    """Let the server trim a little later, which costs it less. Default True."""


class Trimming(NamedTuple):
    """How the stream is trimmed when an entry is added."""

    maxlen: int | None
    minid: str | None
    approximate: bool


_UNTRIMMED: Final = Trimming(None, None, approximate=True)


class Outgoing(NamedTuple):
    """One message as it is sent. A tuple, since one is made for each publish."""

    stream: str
    payload: bytes
    fields: list[tuple[bytes, bytes]]
    """The headers: lower-case names and values."""
    trimming: Trimming


class OutgoingMany(NamedTuple):
    """Messages for one stream, as they are sent together."""

    stream: str
    payloads: list[bytes]
    fields: list[tuple[bytes, bytes]]
    """The headers of each of them."""
    keys: list[bytes | None] | None
    """The partition key of each."""
    trimming: Trimming


def outgoing_message(
    message: object,
    stream: object,
    codec: Codec,
    *,
    key: object = None,
    headers: object = None,
    content_type: object = None,
    maxlen: object = None,
    minid: object = None,
    approximate: object = True,
) -> Outgoing:
    """Return a message as it is sent.

    Raises:
        ConfigError: an argument is wrong.
        PublishError: the message can't be encoded.
    """
    name = target(stream, message)
    try:
        payload, default_type = encoded(message, codec)
    except Exception as error:
        raise _unencodable(message, codec, name, "a message", error) from error
    if headers is None and content_type is None:
        wire, kind = _NO_HEADERS, default_type
    else:
        wire, kind = wire_headers(headers), chosen_type(content_type, headers, message) or default_type
    fields = header_fields(wire, kind, None if key is None else key_bytes(key, "key"))
    return Outgoing(name, payload, fields, trimming(maxlen, minid, approximate))


def outgoing_messages(
    messages: Sequence[object],
    stream: object,
    codec: Codec,
    *,
    key: Callable[[Any], object] | None = None,
    headers: object = None,
    content_type: object = None,
    maxlen: object = None,
    minid: object = None,
    approximate: object = True,
) -> OutgoingMany | None:
    """Return messages as they are sent together; None where there are none.

    Raises:
        ConfigError: an argument is wrong.
        PublishError: a message can't be encoded, or their content types differ.
    """
    trim, wire, chosen = (
        trimming(maxlen, minid, approximate),
        wire_headers(headers),
        chosen_type(content_type, headers, messages),
    )
    if not messages:
        return None
    name = _common_target(stream, messages)
    payloads: list[bytes] = []
    content_types: set[str] = set()
    for message in messages:
        try:
            payload, default_type = encoded(message, codec)
        except Exception as error:
            which = f"message {len(payloads)} of {len(messages)},"
            raise _unencodable(message, codec, name, which, error) from error
        payloads.append(payload)
        content_types.add(default_type)
    if chosen is None and len(content_types) > 1:
        raise PublishError(
            f"the messages have different content types ({', '.join(sorted(content_types))}): "
            "publish bytes and objects apart, or give content_type"
        )
    keys = None if key is None else _keys(key, messages)
    if keys is not None:
        # Each message brings its own.
        wire.pop(PARTITION_KEY_HEADER, None)
    return OutgoingMany(name, payloads, header_fields(wire, chosen or content_types.pop(), None), keys, trim)


def _keys(key: Callable[[Any], object], messages: Sequence[object]) -> list[bytes | None]:
    keys: list[bytes | None] = []
    for message in messages:
        try:
            keys.append(key_bytes(key(message), "what key returns"))
        except Exception as error:
            error.add_note(f"publish_many: key was called for message {len(keys)} of {len(messages)}; nothing was sent")
            raise
    return keys


def _common_target(stream: object, messages: Sequence[object]) -> str:
    if stream is not None:
        return target(stream, messages[0])
    names = {target(None, message) for message in messages}
    if len(names) > 1:
        raise ConfigError(
            f"the messages go to different streams ({', '.join(sorted(names))}): publish them apart, or together in a "
            "transaction"
        )
    return names.pop()


def target(stream: object, message: object) -> str:
    """Return the stream to publish to: the one that is named, else that of the message's class.

    Raises:
        ConfigError: there is none, or it is not a name.
    """
    if stream is not None:
        return name_text(stream, "stream")
    found = stream_of(type(message))
    if found is None:
        raise ConfigError(
            f"publish needs the name of a stream: publish(message, stream), or @outgoing(stream) on the class "
            f"{type_name(type(message))}"
        )
    return found


def trimming(maxlen: object, minid: object, approximate: object) -> Trimming:
    """Return how to trim.

    Raises:
        ConfigError: both bounds are given, or one is wrong.
    """
    if maxlen is None and minid is None and approximate is True:
        return _UNTRIMMED
    if maxlen is not None and minid is not None:
        raise ConfigError("maxlen and minid can't be given both: a stream is trimmed by one of them")
    return Trimming(
        None if maxlen is None else whole(maxlen, "maxlen", 0, _MOST_ENTRIES),
        None if minid is None else entry_id_text(minid, "minid"),
        yes_or_no(approximate, "approximate"),
    )


def wire_headers(headers: object) -> dict[str, bytes]:
    """Return headers by lower-case name. Of a delivery's headers, those that speak of one entry alone are left out.

    Raises:
        ConfigError: not a mapping, a name or a value that can't be a header's, a reserved name, or far too many.
    """
    if headers is None:
        return {}
    wire = headers.passed_on() if isinstance(headers, HeadersView) else header_values(headers)
    if len(wire) > _MOST_HEADERS:
        raise ConfigError(f"a message has at most {_MOST_HEADERS} headers, not {len(wire)}")
    return wire


def chosen_type(content_type: object, headers: object, message: object) -> str | None:
    """Return the content type that the caller chose; None leaves it to the codec.

    A delivery's headers name the type of its payload: it is passed on with bytes, which the payload may be, and not
    with an object that is encoded anew.

    Raises:
        ConfigError: `content_type` is no text.
    """
    if content_type is not None:
        return name_text(content_type, "content_type")
    if isinstance(headers, HeadersView):
        return headers.get("content-type") if is_payload(message) else None
    if isinstance(headers, Mapping):
        given = header_values(headers).get("content-type")
        return None if given is None else given.decode("utf-8", "surrogateescape")
    return None


def _unencodable(message: object, codec: Codec, stream: str, which: str, error: Exception) -> PublishError:
    return PublishError(
        f"{which} of type {type_name(type(message))} can't be encoded as {codec.content_type} for stream {stream!r}: "
        f"{error}. Nothing was sent; publish what msgspec can encode, or bytes, or set codec="
    )


def header_fields(headers: Mapping[str, bytes], content_type: str, key: bytes | None) -> list[tuple[bytes, bytes]]:
    """Return the headers of a message as it is sent. A key that is given wins over one among the headers."""
    fields = [(_CONTENT_TYPE, content_type.encode("utf-8", "surrogateescape"))]
    if headers:
        skipped = (_CONTENT_TYPE,) if key is None else (_CONTENT_TYPE, _KEY)
        pairs = ((name.encode(), value) for name, value in headers.items())
        fields.extend(pair for pair in pairs if pair[0] not in skipped)
    if key is not None:
        fields.append((_KEY, key))
    return fields
