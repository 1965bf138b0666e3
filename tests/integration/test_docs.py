"""README and guides: their snippets run, as a reader would run them, and their links lead somewhere.

What follows "python" on the first line of a block says what it is: a `service` is saved as service.py and run by
`ruststream run service:app` until the next one or the end of the page, where it must drain; a `script` is run beside it
and must end well. A `text` block after them is what the script printed or, where it printed nothing, what the service
then writes. Other Python blocks are fragments: they must compile.
"""

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from eventually import eventually

ROOT = Path(__file__).resolve().parents[2]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
PAGES = [ROOT / "README.md", *GUIDES]
BLOCK = re.compile(r"^```(?P<kind>[a-z]+(?: [a-z]+)?)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Block:
    kind: str
    text: str
    where: str


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page; each knows its line."""
    content = page.read_text()
    for found in BLOCK.finditer(content):
        line = content.count("\n", 0, found.start()) + 1
        yield Block(found["kind"], found["text"], f"{page.name}:{line}")


class Reader:
    """Somebody who types a page in and runs it, in a folder of their own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.env = {**os.environ, "REDIS_URL": url, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        self.service: subprocess.Popen[bytes] | None = None
        self.log = folder / "service.log"
        self.printed = ""
        self._read_up_to = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.service is not None:
            self.service.kill()
            self.service.wait()

    def run_service(self, block: Block) -> None:
        self.stop_service()
        (self.folder / "service.py").write_text(block.text)
        argv = [sys.executable, "-m", "ruststream", "run", "service:app"]
        with self.log.open("wb") as log:
            self.service = subprocess.Popen(
                argv, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._read_up_to = self.expect(" is running: ", block.where, 0)

    def stop_service(self) -> None:
        """As SIGTERM stops it: with 0, all drained."""
        if self.service is not None:
            self.service.send_signal(signal.SIGTERM)
            assert self.service.wait(20) == 0, self.log.read_text()
            assert "drain complete" in self.log.read_text()
            self.service = None

    def run_script(self, block: Block) -> None:
        done = subprocess.run(
            [sys.executable, "-c", block.text],
            cwd=self.folder,
            env=self.env,
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=30,
        )
        assert done.returncode == 0, f"{block.where}: {done.stderr}"
        self.printed = done.stdout

    def compare(self, block: Block) -> None:
        """Compare a `text` block with what was printed, `...` standing for anything within a line."""
        if self.printed:
            pattern = "\n".join(map(_pattern, block.text.rstrip().splitlines()))
            assert re.fullmatch(pattern, self.printed.rstrip()), f"{block.where}: printed\n{self.printed}"
            self.printed = ""
        else:
            # Two handlers may write in either order; the same line twice must be there twice.
            found: dict[str, int] = {}
            for line in block.text.splitlines():
                found[line] = self.expect(line, block.where, found.get(line, self._read_up_to))
            self._read_up_to = max(found.values())

    def expect(self, line: str, where: str, begin: int) -> int:
        """Wait until the service has written this, from `begin` on in its log. Returns where it ends."""

        def found() -> re.Match[str] | None:
            written = self.log.read_text()
            assert self.service is not None, f"{where}: no service runs"
            assert self.service.poll() is None, f"{where}: the service ended\n{written}"
            return re.compile(_pattern(line)).search(written, begin)

        try:
            return eventually(found, timeout=15).end()
        except AssertionError as error:
            raise AssertionError(f"{where}: {line!r} is not in\n{self.log.read_text()}") from error


def _pattern(line: str) -> str:
    return re.escape(line).replace(re.escape("..."), ".*")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page, redis_url, tmp_path):
    """Its services start, handle what its scripts publish, write what it shows, and drain."""
    ran = 0
    with Reader(tmp_path, redis_url) as reader:
        for block in blocks(page):
            if block.kind == "python service":
                reader.run_service(block)
            elif block.kind == "python script":
                reader.run_script(block)
            elif block.kind == "text":
                reader.compare(block)
            ran += block.kind.startswith("python ")
        reader.stop_service()
    assert ran, f"nothing on {page.name} is run"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_blocks_of_known_kinds(page):
    """No snippet escapes by a slip in its first line, and fragments compile."""
    kinds = {"python service", "python script", "python", "text", "console", "log"}
    opened = re.findall(r"^```(\S.*)$", page.read_text(), re.MULTILINE)
    found = list(blocks(page))

    assert [block.kind for block in found] == opened
    assert set(opened) <= kinds
    for block in found:
        if block.kind.startswith("python"):
            compile(block.text, block.where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.stem)
def test_links_lead_to_files_that_are_there(page):
    """Relative links, in README and guides."""
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]

    assert not missing


def test_the_readme_leads_to_every_guide_and_keeps_a_place_for_the_figures():
    """`make bench` writes between the two markers."""
    readme = (ROOT / "README.md").read_text()

    assert [guide.name for guide in GUIDES if f"(docs/guides/{guide.name})" not in readme] == []
    assert re.findall(r"<!-- /?bench -->", readme) == ["<!-- bench -->", "<!-- /bench -->"]
