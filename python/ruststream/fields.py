"""Entries of producers that know nothing of this package: fields and values, read into a type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import inspect as shape

from ruststream.codec import HEADER_PREFIX, is_bytes, members, type_name
from ruststream.errors import ConfigError

Value: TypeAlias = Callable[[bytes], Any]

_HAS_FIELDS: Final = (shape.StructType, shape.DataclassType, shape.TypedDictType)
_NESTED: Final = (
    *_HAS_FIELDS,
    shape.NamedTupleType,
    shape.DictType,
    shape.ListType,
    shape.SetType,
    shape.FrozenSetType,
    shape.TupleType,
    shape.VarTupleType,
)
"""Types that no single value is, unless it is JSON."""
_SCALARS: Final = (
    shape.IntType,
    shape.FloatType,
    shape.BoolType,
    shape.DecimalType,
    shape.DateTimeType,
    shape.DateType,
    shape.TimeType,
    shape.TimeDeltaType,
    shape.UUIDType,
)
"""Types that an empty value is none of."""


class FieldReader:
    """Reads an entry of a foreign producer field by field into a type.

    Values are text where they are UTF-8, and bytes where they are not or where the type says `bytes`. A field whose
    type is a list, a Struct or another that has parts is read as JSON. An empty value is None for a field that may be
    None and is a number, a bool or a time otherwise. Of a repeated field the last value counts. Header fields are left
    out.
    """

    __slots__ = ("_bytes_keys", "_is_mapping", "_other", "_type", "_values")

    def __init__(self, payload_type: Any) -> None:
        """Look at the type once.

        Raises:
            ConfigError: entries have no such form: the type is no Struct, dataclass, TypedDict or dict.
        """
        self._type = payload_type
        self._values: dict[str | bytes, Value] = {}
        self._other: Value = _text
        self._bytes_keys = self._is_mapping = False
        try:
            info = shape.type_info(payload_type)
        except (TypeError, NameError) as error:
            raise ConfigError(f"msgspec can't convert fields into {type_name(payload_type)}: {error}") from error
        suitable = [self._note(member) for member in members(info)]
        if not any(suitable):
            raise ConfigError(f"the fields of an entry can't become {type_name(payload_type)}")

    def read(self, fields: list[tuple[bytes, bytes]]) -> Any:
        """Return the entry as the type. Raises `msgspec.ValidationError`."""
        found: dict[str | bytes, Any] = {}
        for name, value in fields:
            if not name.startswith(HEADER_PREFIX):
                key = self._key(name)
                if key is not None:
                    found[key] = self._values.get(key, self._other)(value)
        return msgspec.convert(found, self._type, strict=False)

    def _note(self, info: shape.Type) -> bool:
        if isinstance(info, _HAS_FIELDS):
            for part in info.fields:
                name, value = part.encode_name, _value_of(part.type)
                # Of two Structs that read it differently: bytes if one wants these, else the text itself.
                if self._values.setdefault(name, value) is not value:
                    self._values[name] = _bytes if _bytes in (value, self._values[name]) else _text
            return True
        if isinstance(info, shape.DictType):
            self._is_mapping = True
            self._bytes_keys = self._bytes_keys or is_bytes(info.key_type)
            self._other = _value_of(info.value_type)
            return True
        if isinstance(info, shape.AnyType):
            self._is_mapping = True
            return True
        return False

    def _key(self, name: bytes) -> str | bytes | None:
        if self._bytes_keys:
            return name
        try:
            return name.decode()
        except UnicodeDecodeError:
            return name if self._is_mapping else None


def _value_of(info: shape.Type) -> Value:
    """Return what reads a value for a field of this type."""
    kinds = [member for member in members(info) if not isinstance(member, shape.NoneType)]
    if is_bytes(info):
        return _bytes
    if kinds and all(isinstance(member, _NESTED) for member in kinds):
        return _json if len(kinds) == len(members(info)) else _json_or_none
    if len(kinds) < len(members(info)) and all(isinstance(member, _SCALARS) for member in kinds):
        return _text_or_none
    return _text


def _bytes(value: bytes) -> bytes:
    return value


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _text_or_none(value: bytes) -> str | bytes | None:
    return _text(value) if value else None


def _json(value: bytes) -> Any:
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return _text(value)  # which is refused, with the field's name


def _json_or_none(value: bytes) -> Any:
    return _json(value) if value else None
