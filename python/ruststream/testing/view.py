"""What stands on the server of a tested app: its streams and pending lists, at this moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ruststream._core import EntryId, RedisClient

_PAYLOAD: Final = b"_payload"
_HEADER: Final = b"h:"
_KEY: Final = "redis-partition-key"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a stream."""

    entry_id: EntryId
    """Its id."""
    fields: tuple[tuple[bytes, bytes], ...]
    """Its fields as they are on the wire, in order."""

    @property
    def payload(self) -> bytes:
        """The message as it is on the wire; empty where the entry has no envelope."""
        return next((value for name, value in self.fields if name == _PAYLOAD), b"")

    @property
    def headers(self) -> dict[str, str]:
        """The headers by name."""
        return {
            name.removeprefix(_HEADER).decode("utf-8", "replace"): value.decode("utf-8", "replace")
            for name, value in self.fields
            if name.startswith(_HEADER)
        }

    @property
    def key(self) -> bytes | None:
        """The partition key."""
        return next((value for name, value in self.fields if name == _HEADER + _KEY.encode()), None)

    @property
    def value(self) -> Any:
        """The message decoded by its content type into plain objects; its bytes where that says nothing of it."""
        content_type = self.headers.get("content-type", "")
        if content_type.endswith("json"):
            return msgspec.json.decode(self.payload)
        if content_type.endswith("msgpack"):
            return msgspec.msgpack.decode(self.payload)
        return self.payload

    def decode(self, cls: type[Any]) -> Any:
        """Return the message as an object of this class. Raises `msgspec.ValidationError` if it is none."""
        value = self.value
        return msgspec.convert(value, cls) if not isinstance(value, bytes) else msgspec.json.decode(value, type=cls)


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """One entry that was delivered and is not settled."""

    entry_id: EntryId
    """Its id."""
    consumer: str
    """Who has it; empty once it was handed back."""
    idle: float
    """Seconds since its last delivery or renewal."""
    delivery_count: int
    """How often it was delivered."""


@dataclass(frozen=True, slots=True)
class StreamView:
    """One stream at one moment."""

    name: str
    """The stream's key."""
    entries: tuple[Entry, ...]
    """Its entries, the oldest first."""

    @property
    def length(self) -> int:
        """How many entries there are."""
        return len(self.entries)

    @property
    def values(self) -> list[Any]:
        """The decoded messages: see `Entry.value`."""
        return [entry.value for entry in self.entries]

    def __iter__(self) -> Iterator[Entry]:
        """Go through the entries."""
        return iter(self.entries)

    def __len__(self) -> int:
        """Return how many entries there are."""
        return len(self.entries)


def stream_view(client: RedisClient, name: str) -> StreamView:
    """Look at a stream. It has no entries where there is no such key."""
    return StreamView(name, tuple(Entry(entry_id, tuple(fields)) for entry_id, fields in client.entries(name)))


def pending_view(client: RedisClient, stream: str, group: str) -> list[PendingEntry]:
    """Look at a pending list. It is empty where there is no such group."""
    return [
        PendingEntry(entry_id, consumer, max(0, idle_ms) / 1000, count)
        for entry_id, consumer, idle_ms, count in client.pending(stream, group)
    ]
