"""Several processes, on a stand-in for `python -m ruststream`."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from eventually import eventually

PYTHON = str(Path(__file__).parents[2] / "python")

CHILD = """
import os, signal, sys, time
sys.argv.pop(0)
how = sys.argv[0]
if how == "leave":
    sys.exit(0)
if how == "last-fails" and sys.argv[1] == "2":
    open("failed", "w").close()
    sys.exit(1)
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append(1))
signal.signal(signal.SIGINT, lambda *_: signals.append(1))
open(f"up-{os.getpid()}", "w").close()
if how == "follow":
    from ruststream.supervisor import follow
    follow(int(sys.argv[3]))
needed = 2 if how == "twice" else 1
while len(signals) < needed:
    time.sleep(0.01)
with open("stopped", "a") as file:
    file.write(f"{len(signals)}\\n")
sys.exit(1 if how == "twice" else 0)
"""

SUPERVISOR = """
import subprocess, sys
import ruststream.supervisor as supervisor

class Popen(subprocess.Popen):
    started = 0

    def __init__(self, command, **options):
        super().__init__([sys.executable, "child.py", command[3], str(self.started), *command[4:]], **options)
        Popen.started += 1

supervisor.subprocess.Popen = Popen
sys.exit(supervisor.supervise([sys.argv[1]], 3))
"""


@pytest.fixture
def supervise(tmp_path):
    """Start a supervisor of three processes that behave as told."""
    (tmp_path / "child.py").write_text(textwrap.dedent(CHILD))
    started = []

    def start(how):
        environment = os.environ | {"PYTHONPATH": PYTHON}
        started.append(subprocess.Popen([sys.executable, "-c", SUPERVISOR, how], cwd=tmp_path, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def up(tmp_path):
    return len(list(tmp_path.glob("up-*")))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_each_process_once(supervise, tmp_path, number):
    process = supervise("once")
    eventually(lambda: up(tmp_path) == 3, timeout=20)
    process.send_signal(number)
    assert process.wait(20) == 0
    assert (tmp_path / "stopped").read_text() == "1\n" * 3


def test_a_second_signal_is_passed_on_too(supervise, tmp_path):
    process = supervise("twice")
    eventually(lambda: up(tmp_path) == 3, timeout=20)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 1


def test_where_one_ends_the_others_are_stopped(supervise, tmp_path):
    assert supervise("last-fails").wait(20) == 1
    assert (tmp_path / "failed").exists()


def test_without_a_supervisor_the_processes_stop_too(supervise, tmp_path):
    process = supervise("follow")
    eventually(lambda: up(tmp_path) == 3, timeout=20)
    process.kill()
    eventually(lambda: (tmp_path / "stopped").exists() and (tmp_path / "stopped").read_text() == "1\n" * 3, timeout=20)


def test_where_all_end_by_themselves_so_does_the_supervisor(supervise):
    assert supervise("leave").wait(20) == 0
