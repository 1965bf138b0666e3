"""The example service and its demonstration, run as a user runs them."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from eventually import eventually
from server_builds import SPECS, present

ROOT = Path(__file__).resolve().parents[2]
DEMONSTRATION = [sys.executable, "examples/payments.py", "--payments", "1500", "--min-idle", "1"]


@contextmanager
def run(argv: list[str], log: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in the project's folder, its output in a file. At the end it is gone."""
    # Tests that run in a shell's background inherit that Ctrl-C is ignored: as in a terminal it is not.
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv, cwd=ROOT, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    signal.signal(signal.SIGINT, ignored)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def started_with(folder: Path) -> list[str]:
    """The processes that live whose TMPDIR is this folder, or who work in it (the server hides its environment)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            inside = (process / "cwd").resolve().is_relative_to(folder)
            if inside or f"TMPDIR={folder}\0".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.fixture
def log(tmp_path):
    return tmp_path / "output.log"


def test_without_a_server_the_demonstration_runs_within_its_process(log, tmp_path):
    """An empty cache: it says so by where its workers run, loses nothing and fetches nothing."""
    demonstration = [sys.executable, "examples/payments.py", "--payments", "600", "--min-idle", "1"]
    with run(demonstration, log, XDG_CACHE_HOME=str(tmp_path / "cache")) as process:
        assert process.wait(60) == 0, log.read_text()
    text = log.read_text()
    assert "3 workers run on a stream server within this process" in text
    assert re.search(r"was lost \(crash\) with [1-9]\d* payments in hand", text)
    assert text.rstrip().endswith("nothing was lost")


@pytest.mark.parametrize("name", ["redis-8.10", "redis-7.0"])
def test_the_demonstration_loses_nothing_although_a_worker_is_killed(name, log):
    """With CLAIM and without: all posted, what the killed worker had in hand recovered, nothing pending, exit 0."""
    assert present(SPECS[name]), f"{name} is not here: run `make servers`"

    with run([*DEMONSTRATION, "--server", name], log) as process:
        code = process.wait(50)

    said = log.read_text()
    assert code == 0, said
    assert re.search(r"^worker \d was killed \(SIGKILL\) with [1-9]\d* payments in hand$", said, re.MULTILINE), said
    assert re.search(r"^published +1,500 payments; the stream has 1,500 entries", said, re.MULTILINE), said
    assert re.search(r"^posted +1,500 payments at least once", said, re.MULTILINE), said
    assert re.search(r"^twice .* hand, 0 others$", said, re.MULTILINE), said
    assert re.search(r"^retried +10 of the 10 ", said, re.MULTILINE), said
    assert re.search(r"^recovered +([1-9]\d*) of the \1 ", said, re.MULTILINE), said
    assert re.search(r"^screened +1,500 ", said, re.MULTILINE), said
    assert re.search(r"^order +kept ", said, re.MULTILINE), said
    assert re.search(r"^XPENDING +ledger 0, fraud 0$", said, re.MULTILINE), said
    assert len(re.findall(r"^worker \d after SIGTERM: drain complete in ", said, re.MULTILINE)) == 2, said
    assert said.endswith("nothing was lost\n")
    shown = re.findall(r"^([a-zX]\w+)   ", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert shown == re.findall(r"^([a-zX]\w+)   ", said, re.MULTILINE), "README.md shows another summary"


@pytest.mark.parametrize("words", [" workers run on ", " was killed "])
def test_ctrl_c_leaves_no_process(words, log, tmp_path):
    """SIGINT while it runs: it ends with 130 and says so, and neither a worker nor the server is left."""
    with run(DEMONSTRATION, log, TMPDIR=str(tmp_path)) as process:
        eventually(lambda: words in log.read_text(), timeout=30)
        before = started_with(tmp_path)
        process.send_signal(signal.SIGINT)
        code = process.wait(20)

    assert code == 130, log.read_text()
    assert [len(before), sum("redis-server" in each for each in before)] == [5 if "run" in words else 4, 1], before
    assert log.read_text().endswith("interrupted: the workers and the server are stopped\n")
    eventually(lambda: not started_with(tmp_path), timeout=10)


def test_nothing_outlives_a_demonstration_that_is_killed(log, tmp_path):
    """SIGKILL of the demonstration itself: nobody is left to clean up, and still no process is left."""
    with run(DEMONSTRATION, log, TMPDIR=str(tmp_path)) as process:
        eventually(lambda: " workers run on " in log.read_text(), timeout=30)
        assert len(started_with(tmp_path)) == 5
        process.kill()
        process.wait()

    eventually(lambda: not started_with(tmp_path), timeout=10)


def test_the_service_alone_posts_what_any_producer_adds(redis_url, witness, log):
    """`ruststream run examples.service:app`, an entry by plain XADD, a locked account, SIGTERM."""
    witness.xadd("payments", {"id": 1, "account": "early", "amount_cents": 5})
    argv = [sys.executable, "-m", "ruststream", "run", "examples.service:app"]

    with run(argv, log, REDIS_URL=redis_url, MIN_IDLE="0.2") as process:
        eventually(lambda: " is running: " in log.read_text(), timeout=30)
        witness.xadd("payments", {"id": 2, "account": "anna", "amount_cents": 2_000_000})
        witness.xadd("payments", {"id": 3, "account": "migrating-bert", "amount_cents": 7})
        eventually(lambda: witness.xlen("payments.posted") == 2, timeout=20)
        eventually(lambda: witness.xlen("payments.screened") == 3, timeout=20)
        process.send_signal(signal.SIGTERM)
        code = process.wait(20)

    said = log.read_text()
    assert code == 0, said
    assert "drain complete" in said
    posted = [fields[b"_payload"] for _, fields in witness.xrange("payments.posted")]
    assert [b'"payment_id":2' in posted[0], b'"payment_id":3' in posted[1]] == [True, True], posted
    screened = [fields[b"_payload"] for _, fields in witness.xrange("payments.screened")]
    assert screened[1] == b'{"payment_id":2,"suspicious":true}'
    assert said.count("payment 3: account locked, left pending") == 2
    assert "payment 3: posted (earlier deliveries: 2)" in said
    assert [group["pending"] for group in witness.xinfo_groups("payments")] == [0, 0]
