"""The command line, and every way to get `module:app` wrong."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ruststream.app import RustStream
from ruststream.cli import TargetError, load, main

PYTHON = str(Path(__file__).parents[2] / "python")

SERVICE = """
from ruststream import RustStream
from ruststream.redis import RedisBroker

broker = RedisBroker("redis://localhost:1")
app = RustStream("payments", broker)
number = 3

class Settings:
    app = app

def make_app():
    return RustStream("made", broker)

def make_nothing():
    pass

def make_with(argument):
    return app

async def make_later():
    return app

def make_badly():
    raise LookupError("no database\\nsecond line")
"""


@pytest.fixture
def service(tmp_path, monkeypatch):
    """Modules in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = set(sys.modules)
    write = lambda name, text: (tmp_path / name).write_text(text)  # noqa: E731
    write("service_module.py", SERVICE)
    write("needs_more.py", "import package_that_is_not_there\n")
    write("broken.py", "def handler(\n")
    write("failing.py", "def deep():\n    raise LookupError('no database')\n\ndeep()\n")
    write("without_app.py", "from service_module import app as payments_app\n")
    (tmp_path / "package").mkdir()
    write("package/inner.py", "from service_module import app\n")
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("target", "title"),
    [
        ("service_module:app", "payments"),
        ("service_module", "payments"),
        ("service_module:", "payments"),
        ("service_module:Settings.app", "payments"),
        ("service_module:make_app", "made"),
        ("package.inner:app", "payments"),
    ],
)
def test_a_target_leads_to_an_app(service, target, title):
    app = load(target)
    assert isinstance(app, RustStream)
    assert app.title == title


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("", "'' is not of the form module:app, as in service:app"),
        (":app", "':app' is not of the form module:app"),
        ("service-module:app", "is not of the form module:app"),
        ("service_module.py:app", "service_module.py is a file; name the module: service_module:app"),
        ("./package/inner.py", "name the module: package.inner:app"),
        ("package/inner", "name the module: package.inner:app"),
        ("servce:app", "there is no module 'servce' in"),
        ("package.outer:app", "there is no module 'package.outer' in"),
        ("service_module.inner:app", "there is no module 'service_module.inner' in"),
        ("needs_more:app", "module 'needs_more' needs 'package_that_is_not_there', which is not installed"),
        ("broken:app", "importing 'broken' failed: SyntaxError: "),
        ("failing:app", "importing 'failing' failed: LookupError: no database"),
        ("service_module:ap", "has no 'ap'; did you mean service_module:app?"),
        ("without_app", "has no 'app'; did you mean without_app:payments_app?"),
        ("service_module:Settings.ap", "has no 'Settings.ap'"),
        ("service_module:number", "is an object of type int; it must be a RustStream, or a function that returns one"),
        ("service_module:broker", "is an object of type RedisBroker; it must be a RustStream"),
        ("service_module:Settings", "is the class Settings; it must be a RustStream"),
        ("service_module:make_nothing", "is a function that returns None; it must return a RustStream"),
        ("service_module:make_with", "is a function that takes arguments; it must take none and return a RustStream"),
        ("service_module:make_later", "is an async function; it must be a plain one that returns a RustStream"),
        ("service_module:make_badly", "calling it failed: LookupError: no database"),
    ],
)
def test_a_wrong_target_gives_one_line_and_code_2(service, target, line, capsys):
    assert main(["run", target]) == 2
    said = capsys.readouterr()
    last = said.err.splitlines()[-1]
    assert last.startswith("ruststream: ")
    assert line in last
    assert said.out == ""
    if "failed" not in line:
        assert said.err.count("\n") == 1


@pytest.mark.parametrize("target", ["failing:app", "service_module:make_badly"])
def test_where_the_users_code_failed_its_traceback_begins_there(service, target, capsys):
    main(["run", target])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "failing.py" in lines[1] or "service_module.py" in lines[1]
    assert not any("importlib" in line or "cli.py" in line for line in lines)


def test_an_error_is_of_one_line(service):
    with pytest.raises(TargetError) as caught:
        load("service_module:make_badly")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [[], ["walk"], ["run"], ["run", "a:b", "c"], ["run", "a:b", "--workers", "0"], ["run", "a:b", "--workers", "x"],
     ["run", "a:b", "--log-level", "LOUD"], ["run", "a:b", "--reload"]],
)  # fmt: skip
def test_a_wrong_command_line_is_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: ruststream" in capsys.readouterr().err


def test_help_names_the_commands(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "run" in capsys.readouterr().out


def test_the_help_of_run_says_what_a_module_alone_means(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert "service is service:app" in " ".join(capsys.readouterr().out.split())


def test_one_process_runs_the_app_itself(service, monkeypatch):
    levels = []
    monkeypatch.setattr(RustStream, "run", lambda self, log_level: levels.append((self.title, log_level)))
    main(["run", "service_module:app", "--log-level", "warning"])
    assert levels == [("payments", "WARNING")]


def test_more_processes_are_supervised(service, monkeypatch):
    calls = []
    monkeypatch.setattr("ruststream.cli.supervise", lambda *arguments: calls.append(arguments) or 1)
    assert main(["run", "service_module:app", "--workers", "3"]) == 1
    assert calls == [(["run", "service_module:app", "--log-level", "INFO"], 3)]


def command(*arguments, **options):
    environment = os.environ | {"PYTHONPATH": PYTHON}
    return subprocess.Popen(
        [sys.executable, "-m", "ruststream", *arguments], stderr=subprocess.PIPE, env=environment, text=True, **options
    )


def test_the_module_is_a_command(tmp_path):
    process = command("run", "servce:app", cwd=tmp_path)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 2
    assert said.startswith("ruststream: there is no module 'servce'")


def test_a_server_that_is_not_there_is_code_1_and_one_line(service, tmp_path):
    process = command("run", "service_module", cwd=tmp_path)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "Traceback" not in said
    assert "payments: " in said
    assert "localhost:1" in said


def test_a_signal_during_a_start_that_hangs_ends_it(tmp_path):
    (tmp_path / "hanging.py").write_text(
        SERVICE + "import asyncio\n@app.on_startup\nasync def hang():\n"
        "    print('hanging', flush=True)\n    await asyncio.Event().wait()\n"
    )
    process = command("run", "hanging", cwd=tmp_path, stdout=subprocess.PIPE)
    assert process.stdout.readline() == "hanging\n"
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "SIGTERM" in said
