"""Writes docs/fault-kinds.md: which kinds of faults the tests hold, and which tests these are.

The kinds are in tests/fault_kinds.toml; a test names them in its docstring, a file for all its tests in the first one.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "fault-kinds.md"
KINDS = ROOT / "tests" / "fault_kinds.toml"
KIND = re.compile(r"\bB\d{3}\b")
MOST_LISTED = 4

HEAD = """# Kinds of faults

What users of stream consumers report in public trackers, and the tests that hold it for this package. All of them run
in `make test`. A kind without a test is not in the list. Made by `scripts/fault_kinds.py`.

| kind | what is reported | tests | where |
| --- | --- | ---: | --- |
"""


def known() -> dict[str, str]:
    """Return what each kind is, by its number."""
    return tomllib.loads(KINDS.read_text())


def mentions() -> Iterator[tuple[str, str]]:
    """Yield a kind and the test (`file::name`) or file that holds it."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        where = path.relative_to(ROOT / "tests").as_posix()
        module = ast.parse(path.read_text())
        for kind in KIND.findall(ast.get_docstring(module) or ""):
            yield kind, where
        for node in ast.walk(module):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                for kind in KIND.findall(ast.get_docstring(node) or ""):
                    yield kind, f"{where}::{node.name}"


def table() -> str:
    """Return the page."""
    tests: dict[str, list[str]] = {}
    for kind, where in mentions():
        tests.setdefault(kind, []).append(where)
    names = known()
    lines = []
    for kind in sorted(tests):
        found = list(dict.fromkeys(tests[kind]))
        listed = ", ".join(f"`{where}`" for where in found[:MOST_LISTED])
        more = f" and {len(found) - MOST_LISTED} more" if len(found) > MOST_LISTED else ""
        lines.append(f"| {kind} | {names[kind]} | {len(found)} | {listed}{more} |")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(table())
    print(f"{PAGE.relative_to(ROOT)}: written")
