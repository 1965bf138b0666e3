"""Put a digest of the last whole run between the two markers of README.md: `python benches/readme.py`."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benches.machine import sentence  # noqa: E402 - run as a script, from anywhere
from benches.results import KEPT, NAME  # noqa: E402
from benches.table import SECTIONS, Row, aligned, whole  # noqa: E402

README = ROOT / "README.md"
BEGIN, END = "<!-- bench -->", "<!-- /bench -->"
FULL_TABLES = f"benches/results/{NAME}.md"
BY_HAND = "redis-py, ack per batch"
OURS = "ruststream recovering"


def by_count(rows: list[Row]) -> str:
    """Return the rates of the drain at every COUNT, and how they compare."""
    rates = {(row["contender"], row["group"]): row["rate"] for row in rows}
    counts = [group for contender, group in rates if contender == BY_HAND and (OURS, group) in rates]
    ratios = [f"{rates[OURS, count] / rates[BY_HAND, count]:.2f}" for count in counts]
    lines = [[name, *(whole(rates[name, count]) for count in counts)] for name in (OURS, BY_HAND)]
    return aligned(["messages/s at COUNT", *counts], [*lines, ["ratio", *ratios]], words=1)


def by_outcome(rows: list[Row]) -> str:
    """Return the rates of the outcomes, and the CPU of each, beside what they are compared with."""
    shown = [column for column in SECTIONS["outcomes"].columns if column.key in {"rate", "process_us"}]
    lines = [[row["contender"], *(column.cell(row, rows) for column in shown)] for row in rows]
    return aligned(["outcome", *(column.title for column in shown)], lines, words=1)


def digest(document: dict[str, object]) -> str:
    """Return what the README shows: the drain at the largest COUNT and with the defaults, and all else on asyncio."""
    sections: dict[str, list[Row]] = document["sections"]  # type: ignore[assignment]
    parts = [sentence(document["run"])]  # type: ignore[arg-type]
    for key in ("drain", "publish", "latency"):
        section, rows = SECTIONS[key], sections[key]
        shown = [row for row in rows if "uvloop" not in row["contender"]]
        if key == "drain":
            largest = max((row["group"] for row in rows), key=int)
            shown = [row for row in shown if row["group"] == largest or "defaults" in row["contender"]]
        parts += [f"**{section.title}.** {section.about}", section.markdown(shown, among=rows)]
        if key == "drain":
            parts.append(by_count(rows))
    if rows := sections.get("outcomes"):  # runs of before it was measured have none
        parts += [f"**{SECTIONS['outcomes'].title}.** {SECTIONS['outcomes'].about}", by_outcome(rows)]
    imports = {row["contender"]: row["milliseconds"] for row in sections["import"]}
    parts.append(f"`import ruststream` takes {imports['import ruststream']:.0f} ms.")
    parts.append(f"All tables, uvloop and the other COUNTs among them: [{FULL_TABLES}]({FULL_TABLES}).")
    return "\n\n".join(parts)


def between_markers(text: str, new: str) -> str:
    """Return the text with what lies between the markers replaced.

    Raises:
        ValueError: a marker is missing, stands twice, or they are the wrong way round.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"README.md must hold {BEGIN} once and {END} once after it")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{new}\n{END}{tail}"


def main() -> int:
    """Rewrite the README if there is one, and a run to tell of."""
    source = KEPT / f"{NAME}.json"
    missing = next((path for path in (source, README) if not path.exists()), None)
    if missing is not None:
        print(f"README.md left as it is: there is no {missing.relative_to(ROOT)}")
        return 0
    before = README.read_text()
    try:
        after = between_markers(before, digest(json.loads(source.read_text())))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    README.write_text(after)
    print("README.md: the bench tables are up to date" if after != before else "README.md: nothing to change")
    return 0


if __name__ == "__main__":
    sys.exit(main())
