"""Dead letters as an operator sees them: read from their stream, and put back where they came from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ruststream._core import EntryId, Letters, RedisClient
from ruststream.context import HeadersView

_PREFIX: Final = "x-dead-letter-"
_PAGE: Final = 100
"""Letters that are read, or put back, in one round trip."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One entry of a stream of dead letters. What its headers do not say is None."""

    entry_id: EntryId
    """Its id among the dead letters."""
    fields: Sequence[tuple[bytes, bytes]]
    """All it holds."""

    @property
    def headers(self) -> HeadersView:
        """All its headers."""
        return HeadersView(self.fields)

    @property
    def payload(self) -> bytes | None:
        """The body; None where it was gone already."""
        return dict(self.fields).get(b"_payload")

    @property
    def reason(self) -> str | None:
        """`max-attempts`, `rejected`, `decode-error` or `deleted`."""
        return self._said("reason")

    @property
    def stream(self) -> str | None:
        """The stream it was given up in."""
        return self._said("stream")

    @property
    def group(self) -> str | None:
        """The group that gave it up."""
        return self._said("group")

    @property
    def consumer(self) -> str | None:
        """The consumer that gave it up."""
        return self._said("consumer")

    @property
    def source_id(self) -> str | None:
        """Its id in the stream it was given up in."""
        return self._said("entry-id")

    @property
    def deliveries(self) -> int | None:
        """How often it had been delivered."""
        return self._number("deliveries")

    @property
    def error(self) -> str | None:
        """What went wrong."""
        return self._said("error")

    @property
    def time_ms(self) -> int | None:
        """When it was given up: milliseconds since the epoch, by the server's clock."""
        return self._number("time-ms")

    def _said(self, name: str) -> str | None:
        return self.headers.get(_PREFIX + name)

    def _number(self, name: str) -> int | None:
        text = self._said(name) or ""
        return int(text) if text.isascii() and text.isdigit() else None


@dataclass(slots=True)
class Replayed:
    """What became of letters that were to be put back."""

    done: int = 0
    """Put back."""
    gone: int = 0
    """Not there any more: someone else put them back, or deleted them."""
    failed: dict[EntryId, str] = field(default_factory=dict)
    """Still where they were, and why."""


class DeadLetters:
    """One stream of dead letters on a connected server. What it raises is of `ruststream.errors`."""

    def __init__(self, client: RedisClient, stream: str) -> None:
        """Do no I/O."""
        self.stream = stream
        self._letters = Letters(client, stream)
        self._groups: dict[tuple[str, str], bool] = {}

    async def count(self) -> int:
        """Return how many there are."""
        return await self._letters.length()

    async def last(self) -> EntryId | None:
        """Return the id last given out; None where there never was one."""
        return await self._letters.last_id()

    async def pages(self, after: EntryId, last: EntryId) -> AsyncIterator[list[Letter]]:
        """Yield the letters behind one id, up to another, oldest first, some at a time."""
        while after < last:
            page = [Letter(entry_id, fields) for entry_id, fields in await self._letters.after(after, _PAGE)]
            wanted = [letter for letter in page if letter.entry_id <= last]
            if wanted:
                yield wanted
            if len(wanted) < _PAGE:
                return
            after = wanted[-1].entry_id

    async def get(self, entry_id: EntryId) -> Letter | None:
        """Return one letter; None where there is none of this id."""
        found = await self._letters.after(entry_id.previous(), 1)
        return next((Letter(there, fields) for there, fields in found if there == entry_id), None)

    async def replay(self, letters: Iterable[Letter], replayed: Replayed, *, to: str | None, every_group: bool) -> None:
        """Put letters back, each in one step with its deletion here, and add what became of them to `replayed`.

        Args:
            letters: some of this stream.
            replayed: kept up to date; where this raises, the rest is as it was, or nobody knows.
            to: the stream they go to. None: the one that each came from, for the group that gave it up.
            every_group: let all groups of that stream handle them, not only that one.
        """
        ready: list[tuple[EntryId, list[tuple[bytes, bytes]], str, str | None]] = []
        for letter in letters:
            where = to if to is not None else letter.stream
            group = letter.group if to is None and not every_group else None
            if where is None:
                replayed.failed[letter.entry_id] = "it does not say which stream it came from: say --to STREAM"
            elif where == self.stream:
                replayed.failed[letter.entry_id] = "it came from this very stream: say --to another STREAM"
            elif group is not None and not await self._has_group(where, group):
                replayed.failed[letter.entry_id] = (
                    f"stream {where} has no group {group} any more, for which it would go back: say --every-group"
                )
            else:
                ready.append((letter.entry_id, list(letter.fields), where, group))
        if not ready:
            return
        for (entry_id, *_), result in zip(ready, await self._letters.replay(ready), strict=True):
            if isinstance(result, EntryId):
                replayed.done += 1
            elif result is None:
                replayed.gone += 1
            else:
                replayed.failed[entry_id] = str(result)

    async def _has_group(self, stream: str, group: str) -> bool:
        if (stream, group) not in self._groups:
            self._groups[stream, group] = await self._letters.has_group(stream, group)
        return self._groups[stream, group]
