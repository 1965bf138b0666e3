"""Where a Redis server is: a URL that is checked early, and never shown with its secrets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from ruststream.errors import ConfigError

_SCHEMES: Final = ("redis", "unix", "memory")
_ACCEPTED: Final = "redis://host:port/db, unix:///path?db=0, or memory:// for a server within the process"
_OPTIONS: Final = {"redis": frozenset({"protocol"}), "unix": frozenset({"db", "protocol"})}


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """A server's URL."""

    url: str
    """The URL as given, with its secrets."""
    shown: str
    """The URL for logs, errors and `repr`: user name and password masked."""
    has_credentials: bool
    """Whether the URL holds a user name or a password."""

    def __repr__(self) -> str:
        """Show it without secrets."""
        return f"Address({self.shown!r})"


def read_address(url: object) -> Address:
    """Check a URL as far as possible without asking a server.

    No message repeats the URL, since a part of the password may stand anywhere in one that is wrong.

    Raises:
        ConfigError: what is wrong with it, and what is accepted.
    """
    if not isinstance(url, str):
        raise ConfigError(f"url must be a string such as redis://localhost:6379/0, not {type(url).__name__}")
    text = url.strip()
    _check_scheme(text)
    try:
        parts = urlsplit(text)
        has_port = parts.port is not None
    except ValueError:
        raise ConfigError(
            "host or port of the Redis URL is not valid; write characters such as / ? # @ : in a user name or "
            "password as %2F %3F %23 %40 %3A"
        ) from None
    if parts.fragment or "@" in parts.path + parts.query:
        raise ConfigError("the Redis URL has a # or @ in the wrong place: in a password write %23 and %40")
    if parts.scheme == "memory":
        return _memory(text, parts)
    host = _unix(parts) if parts.scheme == "unix" else _network(parts)
    shown_options = "&".join(f"{name}={value}" for name, value in _options(parts))
    shown = (
        f"{parts.scheme}://{'***@' if '@' in parts.netloc else ''}{host}{f':{parts.port}' if has_port else ''}"
        f"{parts.path}{'?' if shown_options else ''}{shown_options}"
    )
    return Address(url=text, shown=shown, has_credentials="@" in parts.netloc)


def _check_scheme(text: str) -> None:
    if any(character.isspace() for character in text):
        raise ConfigError("the Redis URL must not contain blanks: write %20 in a password")
    scheme, separator, _ = text.partition("://")
    if not separator:
        raise ConfigError(f"the Redis URL has no scheme; accepted are {_ACCEPTED}")
    if scheme.lower() == "rediss":
        raise ConfigError(f"this version connects without TLS only: rediss:// is not accepted yet, but {_ACCEPTED}")
    if scheme.lower() not in _SCHEMES:
        raise ConfigError(f"the Redis URL begins with {scheme}://; accepted are {_ACCEPTED}")


def _options(parts: SplitResult) -> list[tuple[str, str]]:
    """Return the options after the `?`. None of those that are known is a secret."""
    options = parse_qsl(parts.query, keep_blank_values=True)
    known = _OPTIONS[parts.scheme]
    for name, _ in options:
        if name not in known:
            raise ConfigError(
                f"the Redis URL has an option {name!r}, and there are only {', '.join(sorted(known))} in a "
                f"{parts.scheme}:// URL; user name and password go before the @, or into username= and password="
            )
    return options


def _network(parts: SplitResult) -> str:
    if not parts.hostname:
        raise ConfigError(f"the Redis URL has no host; accepted are {_ACCEPTED}")
    if parts.port == 0:
        raise ConfigError("the port of the Redis URL must not be 0")
    database = parts.path.removeprefix("/")
    if database and not (database.isascii() and database.isdecimal()):
        raise ConfigError(
            "after host and port of the Redis URL comes the number of the database, as in redis://localhost:6379/0; "
            "in a password write / as %2F"
        )
    return f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname


def _unix(parts: SplitResult) -> str:
    if parts.netloc:
        raise ConfigError(
            "a unix:// URL takes three slashes and the socket's path, as in unix:///run/redis.sock; "
            "user name and password go into username= and password="
        )
    if parts.path in ("", "/"):
        raise ConfigError("a unix:// URL needs the socket's path, as in unix:///run/redis.sock")
    return ""


def _memory(text: str, parts: SplitResult) -> Address:
    """Check the address of a server within the process: a name, or none."""
    if parts.path.strip("/") or parts.query or ":" in parts.netloc or "@" in parts.netloc:
        raise ConfigError(
            "memory:// takes a name and nothing else, as in memory://orders: it has no port and no password"
        )
    return Address(url=f"memory://{parts.netloc}", shown=text, has_credentials=False)
