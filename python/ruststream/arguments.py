"""Where a handler's arguments come from: readers that are made once and then fill each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import inspect as shape

from ruststream.codec import PAYLOAD_FIELD, AutoCodec, Codec, Decode, is_bytes, members, type_name
from ruststream.context import Context
from ruststream.errors import ConfigError, DecodeError
from ruststream.fields import FieldReader
from ruststream.message import stream_of
from ruststream.publisher import Publisher, Publishes
from ruststream.signature import Argument

DEFAULT: Final = object()
"""What a reader returns to leave a parameter to its default."""

_REQUIRED: Final = object()
_HEADER_HINT: Final = "give the parameter a default, or set on_decode_error"

Reader = Callable[[Context], Any]


class PayloadReader:
    """Decodes an entry in whatever form it has: our envelope, one named field, or field by field."""

    def __init__(self, payload_type: Any, codec: Codec, fields: str, handler: str) -> None:
        """Make the decoders.

        Args:
            payload_type: what the handler takes.
            codec: decodes payloads, except into `bytes` and `msgspec.Raw`.
            fields: how an entry without an envelope is read: `auto`, `envelope`, or a field's name.
            handler: the handler's name, for errors.

        Raises:
            ConfigError: the codec does not know the type.
        """
        self._type, self._fields, self._handler = payload_type, fields, handler
        raw = _raw_decoder(payload_type)
        self._decode = raw or codec.decoder(payload_type)
        self._select = codec.selector(payload_type) if raw is None and isinstance(codec, AutoCodec) else None
        self._field_reader = _field_reader(payload_type) if raw is None and fields == "auto" else None

    @property
    def decode(self) -> Decode | None:
        """Decodes a payload that is not empty; None: headers decide. An empty one may be a foreign entry's."""
        return self._decode if self._select is None else None

    def extract(self, ctx: Context) -> Any:
        """Return the decoded message.

        Raises:
            DecodeError: it does not decode; the message says which entry, and what to change.
        """
        try:
            return self._read(ctx)
        except Exception as error:
            why = f"it is no {type_name(self._type)}: {str(error) or type(error).__name__}"
            hint = "see codec=, RedisStream(fields=) and on_decode_error="
            raise undecodable(ctx, self._handler, why, hint) from error

    def _read(self, ctx: Context) -> Any:
        payload = ctx.payload
        if not payload:
            fields = ctx.fields
            if not any(name == PAYLOAD_FIELD for name, _ in fields):
                if self._fields == "auto":
                    return self._from_fields(fields)
                payload = self._named(fields)
        if self._select is not None:
            return self._select(ctx.headers.get("content-type"))(payload)
        return self._decode(payload)

    def _from_fields(self, fields: list[tuple[bytes, bytes]]) -> Any:
        if self._field_reader is None:
            raise ValueError("the entry has no _payload field, and its fields can't become this type")
        return self._field_reader.read(fields)

    def _named(self, fields: list[tuple[bytes, bytes]]) -> bytes:
        if self._fields == "envelope":
            raise ValueError('the entry has no _payload field, and fields="envelope" asks for one')
        wanted = self._fields.encode()
        for name, value in reversed(fields):
            if name == wanted:
                return value
        raise ValueError(f"the entry has neither a _payload field nor one named {self._fields!r}")


def argument_reader(argument: Argument, handler: str, extract: Reader, broker: Publishes | None = None) -> Reader:
    """Return what fills one parameter.

    Args:
        argument: the parameter.
        handler: the handler's name, for errors.
        extract: reads the payload.
        broker: what a `Publisher` publishes through.

    Raises:
        ConfigError: msgspec can't convert headers into the parameter's type.
    """
    if argument.role == "payload":
        return extract
    if argument.role == "context":
        return _itself
    if argument.role == "publisher":
        publisher = publisher_of(argument, handler, broker)
        return lambda _ctx: publisher
    try:
        return (_header_reader if argument.role == "header" else _headers_reader)(argument, handler)
    except (TypeError, NameError) as error:
        raise ConfigError(
            f"handler {handler}, parameter {argument.name}: headers can't become {type_name(argument.type)}: {error}"
        ) from error


def undecodable(ctx: Context, handler: str, why: str, hint: str) -> DecodeError:
    """Return the error of a delivery that does not decode; it names where the entry is, and what to change."""
    return DecodeError(
        f"entry {ctx.entry_id} of stream {ctx.stream!r} (group {ctx.group!r}) does not fit handler {handler}: "
        f"{why}; {hint}",
        stream=ctx.stream,
        group=ctx.group,
        entry_id=ctx.entry_id,
        handler=handler,
    )


def publisher_of(argument: Argument, handler: str, broker: Publishes | None) -> Publisher[Any]:
    """Return what fills a `Publisher` parameter, the same in every call.

    Args:
        argument: the parameter.
        handler: the handler's name, for errors.
        broker: what it publishes through.

    Raises:
        ConfigError: there is no broker, or the class that it is to publish names no stream.
    """
    if broker is None:
        raise ConfigError(f"handler {handler}, parameter {argument.name}: there is no broker to publish through")
    if argument.type is Any:
        return Publisher(broker)
    stream = stream_of(argument.type)
    if stream is None:
        raise ConfigError(
            f"handler {handler}, parameter {argument.name}: {type_name(argument.type)} names no stream; put "
            "@outgoing(stream) on the class, or take a bare Publisher"
        )
    return Publisher(broker, stream, argument.type)


def _itself(ctx: Context) -> Context:
    return ctx


def _raw_decoder(payload_type: Any) -> Decode | None:
    """Return what passes a payload on undecoded; None where the type asks for decoding."""
    if payload_type is bytes:
        return bytes
    if payload_type is msgspec.Raw:
        return msgspec.Raw
    try:
        kinds = [member for member in members(shape.type_info(payload_type)) if not isinstance(member, shape.NoneType)]
    except (TypeError, NameError):  # a codec's own class
        return None
    if kinds and all(is_bytes(member) for member in kinds):
        return lambda payload: msgspec.convert(payload, payload_type)
    return None


def _field_reader(payload_type: Any) -> FieldReader | None:
    try:
        return FieldReader(payload_type)
    except ConfigError:  # an int, a list, a codec's own class: fine for envelopes
        return None


def _header_reader(argument: Argument, handler: str) -> Reader:
    header, wanted = argument.header, argument.type
    info = shape.type_info(wanted)
    if any(isinstance(member, shape.CustomType) for member in members(info)):
        raise TypeError("msgspec does not know the class")
    raw = is_bytes(info)
    absent: object = _REQUIRED
    if argument.has_default:
        absent = DEFAULT
    elif any(isinstance(member, shape.NoneType) for member in members(info)):
        absent = None

    def read(ctx: Context) -> Any:
        headers = ctx.headers
        if header not in headers:
            if absent is _REQUIRED:
                raise undecodable(ctx, handler, f"it has no header {header!r}", _HEADER_HINT)
            return absent
        try:
            return msgspec.convert(headers.raw[header] if raw else headers[header], wanted, strict=False)
        except Exception as error:
            why = f"its header {header!r} is no {type_name(wanted)}: {error}"
            raise undecodable(ctx, handler, why, _HEADER_HINT) from error

    return read


def _headers_reader(argument: Argument, handler: str) -> Reader:
    wanted = argument.type
    info = shape.type_info(wanted)
    if isinstance(info, (shape.StructType, shape.DataclassType, shape.TypedDictType)):
        pick = _named_headers(info)
    elif isinstance(info, (shape.DictType, shape.AnyType)):
        raw = isinstance(info, shape.DictType) and is_bytes(info.value_type)

        def pick(ctx: Context) -> dict[str, str | bytes]:
            return dict(ctx.headers.raw if raw else ctx.headers)
    else:
        raise TypeError("take a Struct, a dataclass, a TypedDict or a dict")

    def read(ctx: Context) -> Any:
        try:
            return msgspec.convert(pick(ctx), wanted, strict=False)
        except Exception as error:
            why = f"its headers are no {type_name(wanted)}: {error}"
            raise undecodable(ctx, handler, why, _HEADER_HINT) from error

    return read


def _named_headers(info: shape.StructType | shape.DataclassType | shape.TypedDictType) -> Reader:
    """Return what picks the header of each field, under the field's name or its kebab-case form."""
    wanted = []
    for part in info.fields:
        name = part.encode_name.lower()
        wanted.append((part.encode_name, name, name.replace("_", "-"), is_bytes(part.type)))

    def pick(ctx: Context) -> dict[str, str | bytes]:
        headers = ctx.headers
        found: dict[str, str | bytes] = {}
        for field, name, kebab, raw in wanted:
            header = name if name in headers else kebab
            if header in headers:
                found[field] = headers.raw[header] if raw else headers[header]
        return found

    return pick
