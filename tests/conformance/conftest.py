"""One body, five backends; and a table of how each case went on each of them.

A test asks for `backend` and opens its app by `async with backend(app) as t:`. Where a server cannot do what others
can, the test states what is expected of it instead.
"""

from collections.abc import Callable, Iterator

import pytest

from backend import BACKENDS, Backend
from servers import Server

RESULTS = pytest.StashKey[dict[tuple[str, str], str]]()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, server_named: Callable[[str], Server]) -> Backend:
    """Each backend in turn, empty."""
    return Backend(request.param, None if request.param == "model" else server_named(request.param).url)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Note how a case went."""
    report = yield
    callspec = getattr(item, "callspec", None)
    if callspec is not None and "backend" in callspec.params and (report.when == "call" or report.failed):
        rest = [str(value) for name, value in callspec.params.items() if name != "backend"]
        case = item.originalname.removeprefix("test_").replace("_", " ") + (f" ({', '.join(rest)})" if rest else "")
        results = item.config.stash.setdefault(RESULTS, {})
        results[case, callspec.params["backend"]] = {"passed": "ok", "failed": "FAILED"}.get(report.outcome, "-")
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print case x backend."""
    results = config.stash.get(RESULTS, {})
    if not results:
        return
    cases = list(dict.fromkeys(case for case, _ in results))
    used = [backend for backend in BACKENDS if any(of == backend for _, of in results)]
    width = max(len(case) for case in cases)
    terminalreporter.section("conformance: case x backend")
    terminalreporter.line(" " * width + "".join(f"  {backend:>10}" for backend in used))
    for case in cases:
        row = "".join(f"  {results.get((case, backend), ''):>10}" for backend in used)
        terminalreporter.line(f"{case:<{width}}{row}")
    failed = sum(result == "FAILED" for result in results.values())
    terminalreporter.line(f"{len(cases)} cases, {len(results)} results, {failed} that differ from what is expected")
