"""All time of the core goes through its clock, and nothing in it happens by chance: stopped clocks need that."""

import re
from pathlib import Path

import pytest

CORE = Path(__file__).parents[2] / "rust" / "core" / "src"
# Sockets and connections are of a real server, whose time no test can stop.
OF_SERVERS = {"clock.rs", "redis"}
FILES = [path for path in sorted(CORE.rglob("*.rs")) if not path.stem.endswith("_tests")]


def code(path: Path) -> str:
    """The code without comments, and without the tests at its end."""
    text = path.read_text().partition("#[cfg(test)]")[0]
    return re.sub(r"//.*", "", text)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CORE)))
def test_no_time_but_the_clocks(path: Path):
    if path.relative_to(CORE).parts[0] not in OF_SERVERS:
        found = re.findall(r"tokio::time|\bInstant\b|SystemTime|thread::sleep", code(path))
        assert not found, "take subscription.clock: sleep, doze, now_ms, server_ms"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CORE)))
def test_nothing_is_chosen_by_chance(path: Path):
    text = code(path)
    unseeded = re.findall(r"fastrand::\w+\(|RandomState|rand::random", text)
    assert not unseeded, "take a generator that can be seeded"
    selects = re.findall(r"select! \{\s*(\S+)", text)
    assert set(selects) <= {"biased;"}, "begin each select! with `biased;`: the other kind throws dice"
