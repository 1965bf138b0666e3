"""The tables: which columns each section has, and how they are written. Markdown, aligned, so that it reads as text."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]

FEW = 4


@dataclass(frozen=True)
class Column:
    """One figure of each row."""

    title: str
    key: str
    show: Callable[[Any], str]
    relative: bool = False
    """Divide by the same figure of the row's baseline."""

    def cell(self, row: Row, rows: Sequence[Row]) -> str:
        """Return what to write for this row."""
        value = row.get(self.key)
        if self.relative:
            base = next((each for each in rows if _is_baseline(each, row)), None)
            value = value / base[self.key] if base and value is not None else None
        return "" if value is None else self.show(value)


def _is_baseline(each: Row, row: Row) -> bool:
    return (each["group"], each["contender"]) == (row["group"], row["baseline"])


def plain(value: object) -> str:
    """Write it as it is."""
    return str(value)


def whole(value: float) -> str:
    """Write a number such as 712,000."""
    return f"{value:,.0f}"


def names(value: Sequence[str]) -> str:
    """Write the first few names, and how many more there are."""
    shown = [name for name in value if not name.startswith("_")]
    more = f" and {len(shown) - FEW} more" if len(shown) > FEW else ""
    return ", ".join(shown[:FEW]) + more


def places(digits: int) -> Callable[[float], str]:
    """Write a number with so many digits after the point."""
    return lambda value: f"{value:.{digits}f}"


def percent(value: float) -> str:
    """Write a share as 93 %."""
    return f"{value * 100:.0f} %"


WORK = (
    Column("messages/s", "rate", whole),
    Column("ratio", "rate", places(2), relative=True),
    Column("loop CPU us", "loop_us", places(2)),
    Column("process CPU us", "process_us", places(2)),
    Column("server busy", "server_busy", percent),
    Column("commands/message", "commands_per_message", places(4)),
)


@dataclass(frozen=True)
class Section:
    """One table."""

    title: str
    about: str
    first: str
    """Title of the column that holds the group."""
    columns: tuple[Column, ...]
    timed: str
    """What pytest-benchmark shows as the time of a round."""
    seconds: Callable[[Row], float]

    def markdown(self, rows: Sequence[Row], among: Sequence[Row] | None = None) -> str:
        """Return the table of these rows; their baselines are looked up among more rows if need be."""
        titles = [self.first, "contender", *(column.title for column in self.columns)]
        lines = [
            [row["group"], row["contender"], *(column.cell(row, among or rows) for column in self.columns)]
            for row in rows
        ]
        return aligned(titles, lines, words=2)


def aligned(titles: Sequence[str], lines: Iterable[Sequence[str]], words: int) -> str:
    """Return a Markdown table; the first columns hold words, the others numbers."""
    lines = list(lines)
    widths = [max(3, *map(len, column)) for column in zip(titles, *lines, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if at < words else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    rule = ["-" * width if at < words else "-" * (width - 1) + ":" for at, width in enumerate(widths)]
    return "\n".join([line(titles), line(rule), *map(line, lines)])


def seconds_per_message(row: Row) -> float:
    """Return the time of one message."""
    return float(row["seconds"] / row["messages"])


SECTIONS = {
    "drain": Section(
        "Drain of a backlog",
        "Typed no-op handler, everything acknowledged. `ruststream`: 8 workers, by key, own context and a `Context` "
        "for each message, 2,000 in flight unless it says defaults. Ratio: to redis-py with one ack per batch on the "
        "same kind of loop. One ack per entry and FastStream get a tenth of the messages.",
        "COUNT",
        WORK,
        "per message",
        seconds_per_message,
    ),
    "publish": Section(
        "Publishing",
        "Typed messages, encoded by msgspec on both sides; the same fields on the wire. Ratio: to redis.asyncio on the "
        "same kind of loop. 64 tasks publish a quarter of the messages, one task a tenth.",
        "way",
        WORK,
        "per message",
        seconds_per_message,
    ),
    "latency": Section(
        "From publish to handler",
        "A third process publishes at a steady pace; the age of a message when its handler begins. Ratios: to redis-py "
        "on the same kind of loop.",
        "pace",
        (
            Column("messages/s", "rate", whole),
            Column("median us", "median_us", whole),
            Column("ratio", "median_us", places(2), relative=True),
            Column("p99 us", "p99_us", whole),
            Column("ratio", "p99_us", places(2), relative=True),
            Column("loop CPU us", "loop_us", places(1)),
            Column("process CPU us", "process_us", places(1)),
            Column("ratio", "process_us", places(2), relative=True),
        ),
        "median age",
        lambda row: float(row["median_us"] / 1e6),
    ),
    "outcomes": Section(
        "What an outcome costs",
        "The same backlog, recovering; 8 workers (64 with idempotency), by key, 2,000 in flight. Ratios: to a plain "
        "ack, and of dead letters to a blocking redis-py that copies and acknowledges by one script for each, 1,000 "
        "in a pipeline. Commands within scripts are counted too: a mark is GET and SET before the handler, and again "
        "after it. A message that is retried and handled again is counted once. Dead letters and retries get half "
        "of the messages, replies and marks a tenth.",
        "COUNT",
        (
            Column("messages/s", "rate", whole),
            Column("ratio", "rate", places(2), relative=True),
            Column("loop CPU us", "loop_us", places(2)),
            Column("ratio", "loop_us", places(2), relative=True),
            Column("process CPU us", "process_us", places(2)),
            Column("ratio", "process_us", places(2), relative=True),
            Column("server busy", "server_busy", percent),
            Column("commands/message", "commands_per_message", places(4)),
        ),
        "per message",
        seconds_per_message,
    ),
    "import": Section(
        "Import",
        "In an interpreter that has imported nothing yet.",
        "Python",
        (
            Column("ms", "milliseconds", places(1)),
            Column("modules", "modules", whole),
            Column("packages", "packages", names),
        ),
        "once",
        lambda row: float(row["milliseconds"] / 1e3),
    ),
}
