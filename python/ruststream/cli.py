"""The `ruststream` command."""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import Any, Final

from ruststream import dlq
from ruststream.app import RustStream
from ruststream.errors import RustStreamError
from ruststream.inspection import add_commands
from ruststream.process import plain_logging
from ruststream.supervisor import follow, supervise

_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


class TargetError(Exception):
    """The `module:app` of a command line leads to no app. The message is one line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line. Returns 1 where the work failed, 2 where the command line is wrong."""
    options = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = options.command
    return command(options)


def _run(options: argparse.Namespace) -> int:
    try:
        app = load(options.target)
    except TargetError as error:
        sys.stderr.write(f"ruststream: {error}\n")
        return 2
    if options.workers > 1:
        plain_logging(options.log_level)
        return supervise(["run", options.target, "--log-level", options.log_level], options.workers)
    if options.follow is not None:
        follow(options.follow)
    return app.run(log_level=options.log_level)


def load(target: str) -> RustStream:
    """Return the app that `module:app` names. Without a name it is `app`.

    Raises:
        TargetError: what is wrong. Where the user's own code failed, its traceback went to stderr.
    """
    module_name, _, attribute = target.partition(":")
    if module_name.endswith(".py") or os.sep in module_name:
        dotted = module_name.removesuffix(".py").strip("./").replace(os.sep, ".")
        raise TargetError(f"{module_name} is a file; name the module: {dotted}:{attribute or 'app'}")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise TargetError(f"{target!r} is not of the form module:app, as in service:app")
    if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path holds strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    module = _import(module_name)
    return _app_of(_attribute(module, attribute or "app", target), target)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise TargetError(f"there is no module {missing!r} in {os.getcwd()} or among the installed ones") from None  # noqa: PTH109
        raise TargetError(f"module {name!r} needs {missing!r}, which is not installed") from None
    except RustStreamError as error:
        # Its text says what to change; a traceback into the package would only hide it.
        raise TargetError(f"importing {name!r} failed: {error}") from error
    except Exception as error:
        _print_users_traceback(error)
        raise TargetError(f"importing {name!r} failed: {_one_line(error)}") from error


def _attribute(module: ModuleType, path: str, target: str) -> Any:
    found: Any = module
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            apps = [key for key, value in vars(module).items() if isinstance(value, RustStream)]
            near = apps or get_close_matches(name, [key for key in vars(module) if not key.startswith("_")], n=3)
            hint = f"; did you mean {', '.join(f'{module.__name__}:{key}' for key in near)}?" if near else ""
            raise TargetError(f"{target!r}: module {module.__name__!r} has no {path!r}{hint}") from None
    return found


def _app_of(found: Any, target: str) -> RustStream:
    if isinstance(found, RustStream):
        return found
    if not inspect.isroutine(found):
        raise TargetError(f"{target!r} is {_kind(found)}; it must be a RustStream, or a function that returns one")
    if inspect.iscoroutinefunction(found):
        raise TargetError(f"{target!r} is an async function; it must be a plain one that returns a RustStream")
    try:
        inspect.signature(found).bind()
    except TypeError:
        raise TargetError(
            f"{target!r} is a function that takes arguments; it must take none and return a RustStream"
        ) from None
    try:
        made = found()
    except Exception as error:
        _print_users_traceback(error)
        raise TargetError(f"{target!r} is a function, and calling it failed: {_one_line(error)}") from error
    if not isinstance(made, RustStream):
        raise TargetError(f"{target!r} is a function that returns {_kind(made)}; it must return a RustStream")
    return made


def _kind(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else f"an object of type {type(value).__name__}"


def _one_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _print_users_traceback(error: BaseException) -> None:
    """Print it from the user's first frame on: how the module was found is of no interest."""
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_globals.get("__name__", "")):
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames)


def _is_ours(module: str) -> bool:
    return module == __name__ or module.partition(".")[0] == "importlib"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ruststream", description="Services that consume Redis Streams.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    run = commands.add_parser("run", help="run an app until SIGTERM or Ctrl-C")
    run.set_defaults(command=_run)
    dlq.add_to(commands)
    run.add_argument(
        "target",
        metavar="module:app",
        help="where the RustStream is, or a function that returns it; without a name it is app: service is service:app",
    )
    run.add_argument("--workers", type=_count, default=1, metavar="N", help="processes (default 1)")
    run.add_argument("--log-level", default="INFO", type=str.upper, choices=_LEVELS, help="default INFO")
    run.add_argument("--follow", type=int, help=argparse.SUPPRESS)  # what a supervisor says to its processes
    run.set_defaults(command=_run)
    add_commands(commands)
    return parser


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes from 1 to 1024")
    return number
