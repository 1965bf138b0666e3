"""Forked and spawned children of a process that uses the package: an error or a fresh start, never a hang (B030)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.ledger import pending

PROGRAM = Path(__file__).with_name("forks.py")


@pytest.fixture
def run_case(redis_url, tmp_path):
    """Run the program, and return all that it said as one dictionary, later answers last."""

    def run(case):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-W", "ignore:.*fork:DeprecationWarning", str(PROGRAM), case],
            env={**os.environ, "REDIS_URL": redis_url},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        said = {}
        for line in done.stdout.splitlines():
            said |= json.loads(line)
        return said

    return run


def senders(witness):
    return [json.loads(fields[b"_payload"])["from"] for _, fields in witness.xrange("payments")]


def test_a_child_of_a_process_that_only_imported_it_works(run_case, witness):
    """Nothing is started at import: the child starts its own."""
    assert run_case("imported only") == {"child": "published", "status": 0, "parent": "published"}
    assert senders(witness) == ["child", "parent"]


@pytest.mark.parametrize("case", ["used before", "used before, child exits"])
def test_a_child_of_a_process_that_used_it_is_refused(case, run_case, witness):
    """ForkError at once, however the child leaves; its parent is not disturbed."""
    said = run_case(case)

    assert said == {"parent": "published", "child": "ForkError", "status": 0, "after": "published"}
    assert senders(witness) == ["parent", "parent again"]


def test_a_child_of_a_running_app_cannot_use_its_broker(run_case, witness):
    """Each way of publishing is refused in the child, and the app in the parent goes on handling."""
    said = run_case("inside an app")

    refused = dict.fromkeys(["publish", "publish_many"], "ForkError")
    assert said == {"child": refused, "parent": "parent", "status": 0, "health": "running"}
    assert senders(witness) == ["parent"]
    assert pending(witness) == {}


def test_a_spawned_child_works(run_case, witness):
    """multiprocessing's spawn starts afresh."""
    assert run_case("spawned") == {"parent": "published", "spawned": "published", "status": 0}
    assert senders(witness) == ["parent", "spawned"]
