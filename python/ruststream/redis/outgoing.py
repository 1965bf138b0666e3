"""What `publish` may be asked for: the arguments of both calls, checked and brought to their wire form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypedDict

from ruststream.context import OWN_HEADERS, HeadersView, header_name
from ruststream.errors import ConfigError
from ruststream.option import name_text, whole, yes_or_no
from ruststream.redis.stream import entry_id_text

_MOST_ENTRIES: Final = 2**63 - 1


class Trimming(TypedDict):
    """How the stream is trimmed when an entry is added."""

    maxlen: int | None
    minid: str | None
    approximate: bool


def target(stream: object) -> str:
    """Return the stream to publish to.

    Raises:
        ConfigError: there is none, or it is not a name.
    """
    if stream is None:
        raise ConfigError("publish needs the name of a stream: publish(message, stream)")
    return name_text(stream, "stream")


def trimming(maxlen: object, minid: object, approximate: object) -> Trimming:
    """Return how to trim.

    Raises:
        ConfigError: both bounds are given, or one is wrong.
    """
    if maxlen is not None and minid is not None:
        raise ConfigError("maxlen and minid can't be given both: a stream is trimmed by one of them")
    return {
        "maxlen": None if maxlen is None else whole(maxlen, "maxlen", 0, _MOST_ENTRIES),
        "minid": None if minid is None else entry_id_text(minid, "minid"),
        "approximate": yes_or_no(approximate, "approximate"),
    }


def wire_headers(headers: object) -> dict[str, bytes]:
    """Return headers by lower-case name. Those that speak of one entry alone are left out.

    Raises:
        ConfigError: not a mapping, or a name or a value that can't be a header's.
    """
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise ConfigError(f"headers must be a mapping of names to values, not {headers!r}")
    wire: dict[str, bytes] = {}
    for name, value in (headers.raw if isinstance(headers, HeadersView) else headers).items():
        lower = header_name(name, "a header's name")
        if isinstance(value, str):
            encoded = value.encode("utf-8", "surrogateescape")
        elif isinstance(value, (bytes, bytearray, memoryview)):
            encoded = bytes(value)
        else:
            raise ConfigError(f"header {lower!r} must be str or bytes, not {value!r}")
        if lower not in OWN_HEADERS:
            wire[lower] = encoded
    return wire
