"""What `ruststream groups`, `pending` and `consumers` tell of a stream, without changing anything."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from ruststream.errors import ConfigError, RustStreamError
from ruststream.redis.broker import RedisBroker

Row: TypeAlias = dict[str, Any]

_MOST: Final = 100_000
_WORDS: Final = {"groups": "groups", "pending": "pending entries", "consumers": "consumers"}


class NothingThere(Exception):  # noqa: N818 - it is an answer, not a fault
    """There is no such stream or group. The message is one line."""


def add_commands(commands: Any) -> None:
    """Add the three verbs to a command line."""
    for verb, text in (
        ("groups", "list the consumer groups of a stream: where they stand, and what they have before them"),
        ("pending", "list the entries that were delivered and not acknowledged, the lowest ids first"),
        ("consumers", "list the consumers of a stream's groups, and when they were last heard of"),
    ):
        command = commands.add_parser(verb, help=text, description=f"{text[0].upper()}{text[1:]}. Changes nothing.")
        command.add_argument("stream", metavar="STREAM")
        command.add_argument("--url", help="the server (default: the environment variable REDIS_URL)")
        command.add_argument("--json", action="store_true", help="print a JSON array; times are in seconds")
        if verb != "groups":
            command.add_argument("--group", help="of this group alone")
        if verb == "pending":
            command.add_argument("--count", type=_count, default=100, metavar="N", help="per group (default 100)")
        command.set_defaults(command=inspect, rows=verb)


def inspect(options: argparse.Namespace) -> int:
    """Run one of the verbs. Returns 1 where it failed, 2 where no server is named."""
    url = options.url or os.environ.get("REDIS_URL", "").strip()
    if not url:
        sys.stderr.write("ruststream: name the server by --url or by the environment variable REDIS_URL\n")
        return 2
    try:
        broker = RedisBroker(url)
    except ConfigError as error:
        sys.stderr.write(f"ruststream: {error}\n")
        return 2
    try:
        rows = asyncio.run(_look(broker, options))
    except (NothingThere, RustStreamError) as error:
        sys.stderr.write(f"ruststream: {error}\n")
        return 1
    if options.json:
        sys.stdout.write(msgspec.json.encode(rows).decode() + "\n")
    else:
        sys.stdout.write(table(rows) if rows else f"stream {options.stream} has no {_WORDS[options.rows]}\n")
    return 0


async def _look(broker: RedisBroker, options: argparse.Namespace) -> list[Row]:
    async with broker:
        client = broker.client
        groups = await client.list_groups(options.stream)
        if groups is None:
            raise NothingThere(f"there is no stream {options.stream!r} on {broker.address}")
        if options.rows == "groups":
            return groups
        names = [row["group"] for row in groups]
        wanted = getattr(options, "group", None)
        if wanted is not None and wanted not in names:
            there = ", ".join(names) or "none"
            raise NothingThere(f"stream {options.stream!r} has no group {wanted!r}; there are: {there}")
        found: list[Row] = []
        for name in names if wanted is None else [wanted]:
            if options.rows == "pending":
                rows = await client.list_pending(options.stream, name, options.count)
            else:
                rows = await client.list_consumers(options.stream, name)
            found += [{"group": name, **row} for row in rows]
        return found


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as text in columns: numbers to the right, what is unknown as a dash."""
    names = list(rows[0])
    cells = [[_cell(name, row[name]) for name in names] for row in rows]
    heads = [name.replace("_", " ").upper() for name in names]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    right = [all(not isinstance(row[name], str) for row in rows) for name in names]
    lines = [
        "  ".join(cell.rjust(width) if to_right else cell.ljust(width) for cell, width, to_right in line).rstrip()
        for line in (list(zip(cells_of_line, widths, right, strict=True)) for cells_of_line in [heads, *cells])
    ]
    return "\n".join(lines) + "\n"


def _cell(name: str, value: object) -> str:
    if value is None:
        return "-"
    if name in ("idle", "inactive") and isinstance(value, float):
        return _ago(value)
    text = str(value)
    # A name may hold anything, and a terminal believes everything.
    return text if text.isprintable() else repr(text)[1:-1]


def _ago(seconds: float) -> str:
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 86_400:.1f} d"


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= _MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of entries from 1 to {_MOST}")
    return number
