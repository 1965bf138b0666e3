"""What a handler may ask about its delivery, and the names of the headers that are measured on read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from ruststream._core import BatchContext, Context, EntryId
from ruststream.codec import HEADER_PREFIX
from ruststream.errors import ConfigError
from ruststream.option import text_bytes

__all__ = [
    "DELIVERY_COUNT_HEADER",
    "IDLE_MS_HEADER",
    "MEASURED_HEADERS",
    "PARTITION_KEY_HEADER",
    "BatchContext",
    "Context",
    "EntryId",
    "Header",
    "Headers",
    "HeadersView",
    "entry_id_text",
    "header_name",
    "is_reserved",
]

PARTITION_KEY_HEADER: Final = "redis-partition-key"
"""The entry's partition key, set by whoever published it."""
DELIVERY_COUNT_HEADER: Final = "redis-delivery-count"
"""Claiming and recovering: earlier deliveries, 0 for a fresh entry. Reclaim: this one included. Measured on read."""
IDLE_MS_HEADER: Final = "redis-idle-ms"
"""Milliseconds the entry lay pending before this delivery. Measured on read."""

MEASURED_HEADERS: Final = frozenset({DELIVERY_COUNT_HEADER, IDLE_MS_HEADER})
"""Headers that are never read from the wire, nor written to it."""

_RESERVED: Final = ("redis-", "x-dead-letter-", "x-ruststream-")
# Whoever puts a dead letter back may say this one; a message that is made of another one is not the same.
_NOT_FORWARDED: Final = frozenset({"content-type", "x-original-entry-id"})


class HeadersView(Mapping[str, str]):
    """The headers of one entry: a mapping whose names match in any case.

    A value that is not UTF-8 shows its stray bytes as lone surrogates (`errors="surrogateescape"`), so that nothing
    is lost and `.encode("utf-8", "surrogateescape")` gives the bytes back; `raw` has them as they are.
    Where a header is repeated, the last one counts.
    """

    __slots__ = ("_raw",)

    def __init__(self, fields: Iterable[tuple[bytes, bytes]], measured: Mapping[str, int] | None = None) -> None:
        """Pick the headers out of an entry's fields.

        Args:
            fields: the entry's fields; those that begin with `h:` are headers.
            measured: the values of `MEASURED_HEADERS`. What the wire says of these is left out.
        """
        skip = len(HEADER_PREFIX)
        raw = {name[skip:].decode("utf-8", "surrogateescape").lower(): value for name, value in fields
               if name.startswith(HEADER_PREFIX)}  # fmt: skip
        for name in MEASURED_HEADERS:
            raw.pop(name, None)
        if measured:
            raw.update((name, str(number).encode()) for name, number in measured.items())
        self._raw = raw

    @classmethod
    def of(cls, ctx: Context, mode: str) -> HeadersView:
        """Return the headers of a delivery that a subscription of this mode read."""
        if mode == "new":
            return cls(ctx.fields)
        count = ctx.delivery_count if mode == "reclaim" else ctx.delivery_count - 1
        return cls(ctx.fields, {DELIVERY_COUNT_HEADER: count, IDLE_MS_HEADER: round(ctx.idle * 1000)})

    @property
    def raw(self) -> Mapping[str, bytes]:
        """The values as bytes, by lower-case name."""
        return MappingProxyType(self._raw)

    def __getitem__(self, name: str) -> str:
        """Return a header's value. Raises `KeyError`."""
        return self._raw[name.lower()].decode("utf-8", "surrogateescape")

    def __contains__(self, name: object) -> bool:
        """Whether there is such a header."""
        return isinstance(name, str) and name.lower() in self._raw

    def __iter__(self) -> Iterator[str]:
        """Iterate over the lower-case names."""
        return iter(self._raw)

    def __len__(self) -> int:
        """Return the number of headers."""
        return len(self._raw)

    def __or__(self, other: Mapping[str, str | bytes]) -> dict[str, bytes]:
        """Return what `passed_on` does, with other headers added or changed: `headers=ctx.headers | {"x-step": "2"}`.

        Raises:
            ConfigError: a name or a value that can't be a header's, or a reserved name.
        """
        return self.passed_on() | header_values(other)

    def passed_on(self) -> dict[str, bytes]:
        """Return what another message may carry on: all but the content type and what speaks of this entry alone."""
        return {
            name: value for name, value in self._raw.items() if name not in _NOT_FORWARDED and not is_reserved(name)
        }

    def __repr__(self) -> str:
        """Show the headers as a dict would be."""
        return f"HeadersView({dict(self)!r})"


class Header:
    """Marks a handler's parameter as one header: `tenant: Annotated[str, Header("x-tenant")]`."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        """Take the header's name, in any case.

        Raises:
            ConfigError: not the name of a header.
        """
        self.name = header_name(name, "Header(name)")

    def __repr__(self) -> str:
        """Show the call that makes it."""
        return f"Header({self.name!r})"


class Headers:
    """Marks a handler's parameter as all headers: `meta: Annotated[Meta, Headers()]`, with `Meta` a Struct.

    A field `trace_id` takes the header `trace_id`, or else `trace-id`.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        """Show the call that makes it."""
        return "Headers()"


def header_name(value: object, option: str) -> str:
    """Return a header's name as it is on the wire: lower-case ASCII.

    Raises:
        ConfigError: not a string, empty, or with characters other than printable ASCII.
    """
    if not isinstance(value, str) or not value or not value.isascii() or not value.isprintable() or " " in value:
        raise ConfigError(f"{option} must be a header name of printable ASCII without blanks, not {value!r}")
    return value.lower()


def is_reserved(name: str) -> bool:
    """Whether a header of this lower-case name says something of one entry alone, so that no message may bring it."""
    return name.startswith(_RESERVED) and name != PARTITION_KEY_HEADER


def header_values(headers: object) -> dict[str, bytes]:
    """Return headers that a user gives as they are on the wire: lower-case names, bytes.

    Raises:
        ConfigError: not a mapping, a name or a value that can't be a header's, or a reserved name.
    """
    if not isinstance(headers, Mapping):
        raise ConfigError(f"headers must be a mapping of names to values, not {headers!r}")
    values: dict[str, bytes] = {}
    names: dict[str, object] = {}
    for name, value in headers.items():
        lower = header_name(name, "a header's name")
        if names.setdefault(lower, name) != name:
            raise ConfigError(
                f"headers {names[lower]!r} and {name!r} are one and the same, since names are sent in lower case: "
                "leave one of them out"
            )
        if is_reserved(lower):
            raise ConfigError(
                f"header {lower!r} is reserved: it is written by this package and says something of one entry alone; "
                "take another name, or pass ctx.headers itself (or ctx.headers | {...}), which leaves such headers out"
            )
        if isinstance(value, str):
            values[lower] = text_bytes(value, f"header {lower!r}")
        elif isinstance(value, (bytes, bytearray, memoryview)):
            values[lower] = bytes(value)
        else:
            raise ConfigError(f"header {lower!r} must be str or bytes, not {value!r}")
    return values


def entry_id_text(value: object, option: str) -> str:
    """Return an entry id as Redis writes it.

    Raises:
        ConfigError: neither an `EntryId` nor a string `ms-seq` or `ms`.
    """
    if isinstance(value, EntryId):
        return str(value)
    if isinstance(value, str):
        with suppress(ValueError):
            return str(EntryId.parse(value))
    raise ConfigError(f'{option} must be an entry id such as "1700000000000-0", not {value!r}')
