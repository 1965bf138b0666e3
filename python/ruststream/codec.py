"""What Python values are on the wire: codecs and keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeGuard, runtime_checkable

import msgspec
from msgspec import inspect as shape

from ruststream.errors import ConfigError
from ruststream.option import text_bytes

PAYLOAD_FIELD: Final = b"_payload"
"""The entry field that carries the body. An entry without it was written by a foreign producer."""
HEADER_PREFIX: Final = b"h:"
"""What the name of an entry field begins with that carries a header."""

RAW_CONTENT_TYPE: Final = "application/octet-stream"

CodecName: TypeAlias = Literal["json", "msgpack", "auto"]
Decode: TypeAlias = Callable[[bytes], Any]


@runtime_checkable
class Codec(Protocol):
    """Turns messages into payloads and back. `bytes` and `msgspec.Raw` never reach it: they are payloads already."""

    @property
    def content_type(self) -> str:
        """The `content-type` header of what it encodes."""

    def encode(self, message: Any, /) -> bytes:
        """Return the payload of a message."""

    def decoder(self, payload_type: Any, /) -> Decode:
        """Return what decodes a payload into this type. Called once for each handler, while it is registered."""


class JsonCodec:
    """JSON by msgspec: any type that `msgspec.json` knows."""

    content_type: Final = "application/json"

    def encode(self, message: Any, /) -> bytes:
        """Return the message as JSON."""
        return msgspec.json.encode(message)

    def decoder(self, payload_type: Any, /) -> Decode:
        """Return a decoder that is made once.

        Raises:
            ConfigError: msgspec does not know the type.
        """
        _check_known(payload_type)
        return msgspec.json.Decoder(payload_type).decode


class MsgpackCodec:
    """MessagePack by msgspec: any type that `msgspec.msgpack` knows."""

    content_type: Final = "application/msgpack"

    def encode(self, message: Any, /) -> bytes:
        """Return the message as MessagePack."""
        return msgspec.msgpack.encode(message)

    def decoder(self, payload_type: Any, /) -> Decode:
        """Return a decoder that is made once.

        Raises:
            ConfigError: msgspec does not know the type.
        """
        _check_known(payload_type)
        return msgspec.msgpack.Decoder(payload_type).decode


class AutoCodec(JsonCodec):
    """JSON or MessagePack, by each entry's `content-type` header. Without one, and when publishing, JSON."""

    def selector(self, payload_type: Any) -> Callable[[str | None], Decode]:
        """Return what picks the decoder for a content type; it raises `ValueError` for one it does not know."""
        json, msgpack = JsonCodec().decoder(payload_type), MsgpackCodec().decoder(payload_type)

        def select(content_type: str | None) -> Decode:
            if content_type is None:
                return json
            kind = content_type.partition(";")[0].strip().lower()
            subtype = kind.removeprefix("application/").removeprefix("text/")
            if subtype == "json" or subtype.endswith("+json"):
                return json
            if subtype in ("msgpack", "x-msgpack", "vnd.msgpack") or subtype.endswith("+msgpack"):
                return msgpack
            raise ValueError(f'codec="auto" knows JSON and MessagePack, not content-type {content_type!r}')

        return select


_BY_NAME: Final[Mapping[object, Codec]] = {"json": JsonCodec(), "msgpack": MsgpackCodec(), "auto": AutoCodec()}


def codec_of(value: object) -> Codec:
    """Return the codec that an option names.

    Raises:
        ConfigError: no name of a codec, and not a `Codec`.
    """
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    if isinstance(value, type) or not isinstance(value, Codec):
        raise ConfigError(
            f'codec must be "json", "msgpack", "auto", or an object with encode, decoder and content_type, '
            f"not {value!r}"
        )
    return value


def is_payload(message: object) -> TypeGuard[bytes | bytearray | memoryview]:
    """Whether a message is a payload already, whose type nobody knows."""
    return isinstance(message, (bytes, bytearray, memoryview))


def encoded(message: object, codec: Codec) -> tuple[bytes, str]:
    """Return payload and content type of a message. Bytes, and `msgspec.Raw`, are payloads already."""
    if is_payload(message):
        return bytes(message), RAW_CONTENT_TYPE
    if isinstance(message, msgspec.Raw):
        return bytes(message), codec.content_type
    return codec.encode(message), codec.content_type


def key_bytes(value: object, option: str) -> bytes | None:
    """Return a partition key as it is on the wire: text in UTF-8, a whole number in decimal.

    Raises:
        ConfigError: neither bytes, text that UTF-8 can carry, a whole number nor None.
    """
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return text_bytes(value, option)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value).encode()
    raise ConfigError(f"{option} must be bytes, str, int or None, not {value!r}")


def members(info: shape.Type) -> tuple[shape.Type, ...]:
    """Return the members of a union, or the type alone."""
    return info.types if isinstance(info, shape.UnionType) else (info,)


def is_bytes(info: shape.Type) -> bool:
    """Whether the type, or a member of the union, is `bytes` or a kin of it."""
    kin = (shape.BytesType, shape.ByteArrayType, shape.MemoryViewType)
    return any(isinstance(member, kin) for member in members(info))


def type_name(value: Any) -> str:
    """Return how a message names a type."""
    return getattr(value, "__qualname__", None) or str(value).replace("typing.", "")


def _parts(info: shape.Type) -> Iterator[shape.Type]:
    """Iterate over a type and all types within it, each once: they may refer to themselves."""
    seen: set[int] = set()
    waiting: list[Any] = [info]
    while waiting:
        part = waiting.pop()
        if isinstance(part, tuple):
            waiting.extend(part)
        elif isinstance(part, (shape.Type, shape.Field)) and id(part) not in seen:
            seen.add(id(part))
            waiting.extend(getattr(part, name) for name in part.__struct_fields__)
            if isinstance(part, shape.Type):
                yield part


def _check_known(payload_type: Any) -> None:
    """Refuse what msgspec would take for a custom type and then reject in every single message."""
    try:
        info = shape.type_info(payload_type)
    except (TypeError, NameError) as error:
        raise ConfigError(f"msgspec can't decode into {type_name(payload_type)}: {error}") from error
    unknown = next((part for part in _parts(info) if isinstance(part, shape.CustomType)), None)
    if unknown is not None:
        within = "" if unknown.cls is payload_type else f", a part of {type_name(payload_type)}"
        raise ConfigError(
            f"msgspec can't decode into {type_name(unknown.cls)}{within}: take a msgspec.Struct, a dataclass, "
            f"a TypedDict or a builtin type, or give codec= a Codec that knows it"
        )
