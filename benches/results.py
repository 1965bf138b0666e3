"""What one run found: printed as tables, written as Markdown and as JSON."""

import json
from pathlib import Path
from typing import Any

from benches.machine import sentence
from benches.rounds import ROOT, SCALE, Contender, Figures, medians
from benches.table import SECTIONS, Row

KEPT = ROOT / "benches" / "results"
"""Where a whole run of the usual size is written."""
SCRATCH = ROOT / ".benchmarks"
"""Where quick and partial runs are written; not kept."""
NAME = "redis"
NOT_IN_JSON = frozenset({"fields", "standard"})


class Results:
    """The rows of a run, in the order they were measured."""

    def __init__(self, run: dict[str, Any]) -> None:
        self.run = run | {"quick": SCALE.quick, "rounds": SCALE.rounds, "messages": SCALE.messages}
        self.sections: dict[str, list[Row]] = {}

    def add(self, contender: Contender, rounds: list[Figures]) -> Row:
        """Take in the rounds of one contender, and return its row."""
        kept = [{name: value for name, value in each.items() if name not in NOT_IN_JSON} for each in rounds]
        names = {"group": contender.group, "contender": contender.name, "baseline": contender.baseline}
        row = names | medians(kept) | {"rounds": kept}
        self.sections.setdefault(contender.section, []).append(row)
        return row

    def whole(self) -> bool:
        """Whether every section is there, in its usual size."""
        return SCALE.usual and not SCALE.quick and self.sections.keys() == SECTIONS.keys()

    def markdown(self) -> str:
        """Return the run as one document."""
        parts = ["# Benches", sentence(self.run)]
        if SCALE.quick:
            parts.append("A quick run: it shows that everything works, and its figures mean nothing.")
        for key, section in SECTIONS.items():
            if rows := self.sections.get(key):
                parts += [f"## {section.title}", section.about, section.markdown(rows)]
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path) -> Path:
        """Write both files, and return the one to read."""
        folder.mkdir(parents=True, exist_ok=True)
        document = {"run": self.run, "sections": self.sections}
        (folder / f"{NAME}.json").write_text(json.dumps(document, indent=1) + "\n")
        text = folder / f"{NAME}.md"
        text.write_text(self.markdown())
        return text
