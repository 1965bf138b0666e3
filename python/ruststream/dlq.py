"""`ruststream dlq`: look at dead letters, and put them back."""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from ruststream._core import EntryId
from ruststream.errors import ConfigError, RustStreamError
from ruststream.redis.broker import RedisBroker
from ruststream.redis.letters import DeadLetters, Letter, Replayed

_BEGIN: Final = EntryId(0, 0)
_LINE: Final = 1.0
"""Seconds between two lines of progress, where they are not written over each other."""
_NO_STREAM: Final = "there is no stream {!r} there: check its name, and which server --url or REDIS_URL names"
_CUT: Final = 60
"""Characters of an error that a table shows."""


def add_to(commands: Any) -> None:
    """Add the command and its own commands to a parser's."""
    dlq = commands.add_parser("dlq", help="look at dead letters, and put them back")
    verbs = dlq.add_subparsers(title="commands", metavar="COMMAND", required=True)
    show_all = _verb(verbs, "list", _list, "list dead letters, oldest first")
    show_all.add_argument("--limit", type=_limit, default=1000, metavar="N", help="at most so many (default 1000)")
    show_all.add_argument("--after", type=_entry_id, default=_BEGIN, metavar="ID", help="only those behind this one")
    show = _verb(verbs, "show", _show, "show one dead letter")
    show.add_argument("id", type=_entry_id, metavar="ID", help="its id among the dead letters")
    replay = _verb(verbs, "replay", _replay, "put dead letters back into the stream they came from")
    which = replay.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--id", type=_entry_id, nargs="+", action="extend", dest="ids", metavar="ID", help="these; may be given again"
    )
    which.add_argument("--all", action="store_true", help="all that are there now")
    replay.add_argument("--to", type=_name, metavar="STREAM", help="into this stream instead, for every group of it")
    replay.add_argument(
        "--every-group", action="store_true", help="for every group of the stream, not only the one that gave it up"
    )


def _verb(verbs: Any, name: str, command: Any, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    parser.add_argument("stream", type=_name, metavar="STREAM", help="the stream of dead letters")
    parser.add_argument("--url", help="the server (default: the environment's REDIS_URL)")
    parser.add_argument("--json", action="store_true", help="JSON on stdout, for machines")
    parser.set_defaults(command=lambda options: _run(command, options))
    return parser


def _run(command: Any, options: argparse.Namespace) -> int:
    url = options.url or os.environ.get("REDIS_URL", "").strip()
    if not url:
        return _fail("say which server: --url redis://localhost:6379/0, or REDIS_URL in the environment", 2)
    if getattr(options, "to", None) == options.stream:
        return _fail(f"--to {options.stream} is where these dead letters are already; name another stream", 2)
    try:
        broker = RedisBroker(url)
    except ConfigError as error:
        return _fail(str(error), 2)
    try:
        return int(asyncio.run(_connected(command, broker, options)))
    except RustStreamError as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 1)


async def _connected(command: Any, broker: RedisBroker, options: argparse.Namespace) -> int:
    async with broker:
        return int(await command(DeadLetters(broker.client, options.stream), options))


async def _list(letters: DeadLetters, options: argparse.Namespace) -> int:
    found: list[Letter] = []
    last = await letters.last()
    if last is None:
        return _fail(_NO_STREAM.format(options.stream), 1)
    async for page in letters.pages(options.after, last):
        found.extend(page)
        if len(found) >= options.limit:
            break
    del found[options.limit :]
    if options.json:
        _print_json([_facts(letter) for letter in found])
        return 0
    if found:
        head = ("ID", "TIME", "REASON", "STREAM", "GROUP", "ENTRY", "DELIVERIES", "ERROR")
        _print(_table([head, *map(_row, found)]))
    total = await letters.count()
    more = f", {len(found)} shown; go on with --after {found[-1].entry_id}" if found and len(found) < total else ""
    _print(f"{total} dead letter{'' if total == 1 else 's'} in {_plain(options.stream)}{more}")
    return 0


async def _show(letters: DeadLetters, options: argparse.Namespace) -> int:
    letter = await letters.get(options.id)
    if letter is None:
        return _fail(f"there is no dead letter {options.id} in {options.stream}", 1)
    if options.json:
        _print_json(_facts(letter) | _body(letter))
        return 0
    facts = [
        (name.replace("_", " "), _plain(str(value))) for name, value in _facts(letter).items() if value is not None
    ]
    headers = [(f"header {_plain(name)}", _plain(value)) for name, value in letter.headers.items()]
    foreign = [
        (f"field {_text(name)}", _text(value))
        for name, value in letter.fields
        if name != b"_payload" and not name.startswith(b"h:")
    ]
    own = [(name, value) for name, value in headers if not name.startswith("header x-dead-letter-")]
    payload = letter.payload
    body = [] if payload is None else [("payload", _text(payload))]
    _print(_table([*facts, *own, *foreign, *body]))
    return 0


async def _replay(letters: DeadLetters, options: argparse.Namespace) -> int:
    last = await letters.last()
    if last is None:
        return _fail(_NO_STREAM.format(options.stream), 1)
    replayed = Replayed()
    progress = _Progress(len(options.ids) if options.ids else await letters.count(), replayed)
    how = {"to": options.to, "every_group": options.every_group}
    try:
        if options.ids:
            for entry_id in dict.fromkeys(options.ids):
                letter = await letters.get(entry_id)
                if letter is None:
                    replayed.failed[entry_id] = f"there is no dead letter of this id in {options.stream}"
                else:
                    await letters.replay([letter], replayed, **how)
                progress.show()
        else:
            # Up to what is there now: what fails again meanwhile comes behind it, and would be put back without end.
            async for page in letters.pages(_BEGIN, last):
                await letters.replay(page, replayed, **how)
                progress.show()
    except BaseException:
        progress.end("stopped; the same command goes on with the rest")
        raise
    progress.end()
    if options.json:
        failed = [{"id": str(entry_id), "error": why} for entry_id, why in replayed.failed.items()]
        _print_json({"replayed": replayed.done, "gone": replayed.gone, "failed": failed})
    for why, ids in _by_cause(replayed).items():
        some = ", ".join(map(str, ids[:10])) + (", ..." if len(ids) > 10 else "")
        sys.stderr.write(f"ruststream: {len(ids)} stay where they are ({some}): {_plain(why)}\n")
    return 1 if replayed.failed else 0


def _by_cause(replayed: Replayed) -> dict[str, list[EntryId]]:
    found: dict[str, list[EntryId]] = {}
    for entry_id, why in replayed.failed.items():
        found.setdefault(why, []).append(entry_id)
    return found


class _Progress:
    """One line on stderr: written over on a terminal, else once a second."""

    def __init__(self, total: int, replayed: Replayed) -> None:
        self._total, self._replayed = total, replayed
        self._over = sys.stderr.isatty()
        self._due = time.monotonic() + _LINE

    def show(self) -> None:
        """Say how far it is, if it is time to."""
        if self._over:
            sys.stderr.write(f"\r{self._line()}")
            sys.stderr.flush()
        elif time.monotonic() >= self._due:
            self._due = time.monotonic() + _LINE
            sys.stderr.write(f"{self._line()}\n")

    def end(self, how: str = "") -> None:
        """Say what it came to."""
        start = "\r" if self._over else ""
        sys.stderr.write(f"{start}{self._line()}{f', {how}' if how else ''}\n")

    def _line(self) -> str:
        replayed = self._replayed
        parts = [f"replayed {replayed.done} of {self._total}"]
        if replayed.gone:
            parts.append(f"{replayed.gone} gone")
        if replayed.failed:
            parts.append(f"{len(replayed.failed)} failed")
        return ", ".join(parts)


def _facts(letter: Letter) -> dict[str, Any]:
    return {
        "id": str(letter.entry_id),
        "reason": letter.reason,
        "stream": letter.stream,
        "group": letter.group,
        "consumer": letter.consumer,
        "entry_id": letter.source_id,
        "deliveries": letter.deliveries,
        "error": letter.error,
        "time_ms": letter.time_ms,
    }


def _body(letter: Letter) -> dict[str, Any]:
    """Return all fields; what is no UTF-8 as `{"base64": ...}`."""
    payload = letter.payload
    return {
        "headers": {name: _json_text(value) for name, value in letter.headers.raw.items()},
        "payload": None if payload is None else _json_text(payload),
        "fields": [[_json_text(name), _json_text(value)] for name, value in letter.fields],
    }


def _json_text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _row(letter: Letter) -> tuple[str, ...]:
    when = (
        "" if letter.time_ms is None else datetime.fromtimestamp(letter.time_ms / 1000, UTC).isoformat(" ", "seconds")
    )
    error = letter.error or ""
    return (
        str(letter.entry_id),
        when.removesuffix("+00:00"),
        *(_plain(part or "-") for part in (letter.reason, letter.stream, letter.group, letter.source_id)),
        "-" if letter.deliveries is None else str(letter.deliveries),
        _plain(error if len(error) <= _CUT else f"{error[: _CUT - 3]}..."),
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _text(value: bytes) -> str:
    try:
        return _plain(value.decode())
    except UnicodeDecodeError:
        return repr(value)[2:-1]


def _plain(text: str) -> str:
    """Return it without what a terminal would take for a command."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _print_json(value: object) -> None:
    _print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _fail(text: str, code: int) -> int:
    sys.stderr.write(f"ruststream: {_plain(text)}\n")
    return code


def _entry_id(text: str) -> EntryId:
    try:
        return EntryId.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an entry id such as 1700000000000-0") from None


def _name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("a stream's name must not be empty")
    return text


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of letters")
    return int(text)
