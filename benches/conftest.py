"""What all benches share: one server, the rounds of those who take part, and the tables at the end."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from pytest_benchmark.fixture import BenchmarkFixture

from benches.machine import surroundings
from benches.results import KEPT, SCRATCH, Results
from benches.rounds import REPLAY, ROOT, Contender, Figures, Rounds
from benches.table import SECTIONS
from server_builds import SPECS, present
from servers import Server

SERVER = "redis-8.10"
RESULTS = pytest.StashKey[Results]()
PARTIAL = pytest.StashKey[bool]()

Record = Callable[[Contender, list[Figures]], None]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server of this run's own."""
    if present(SPECS[SERVER]) is None:
        pytest.fail(f"{SERVER} {SPECS[SERVER].version} is not here: run `make servers`", pytrace=False)
    with Server.start(SERVER) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[redis.Redis]:
    """redis-py, to prepare the streams."""
    with redis.Redis.from_url(server.url) as connected:
        yield connected


@pytest.fixture(scope="session")
def rounds(request: pytest.FixtureRequest, server: Server, client: redis.Redis) -> Rounds:
    """The rounds of all contenders whose tests were selected."""
    calls = (getattr(item, "callspec", None) for item in request.session.items)
    contenders = [call.params["contender"] for call in calls if call is not None and "contender" in call.params]
    return Rounds(client, server.url, contenders)


@pytest.fixture(scope="session", autouse=True)
def results(pytestconfig: pytest.Config, client: redis.Redis) -> Results:
    """The tables of this run. Made before anything runs, so that the load it notes is not its own."""
    info: dict[str, Any] = client.info("server")
    return pytestconfig.stash.setdefault(RESULTS, Results(surroundings(f"Redis {info['redis_version']}")))


@pytest.fixture
def record(results: Results, benchmark: BenchmarkFixture) -> Record:
    """Give the rounds of a contender to the tables, and to pytest-benchmark as if they had passed just now."""

    def take(contender: Contender, measured: list[Figures]) -> None:
        section = SECTIONS[contender.section]
        row = results.add(contender, measured)
        benchmark.group = f"{section.title}, {section.first} {contender.group}, {section.timed}"
        benchmark.name = contender.name
        benchmark.extra_info |= {name: value for name, value in row.items() if name != "rounds"}
        seconds = iter([section.seconds(each) for each in measured])
        benchmark.pedantic(REPLAY.play, args=(seconds,), rounds=len(measured))

    return take


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Note that a part of the benches is left out."""
    if items:
        items[0].config.stash[PARTIAL] = True


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Print the tables, and write them: a whole run to be kept, any other to the side."""
    results = config.stash.get(RESULTS, None)
    if results is None:
        return
    left_out = config.stash.get(PARTIAL, False) or any("::" in each for each in config.args)
    whole = exitstatus == 0 and not left_out and results.whole()
    written = results.write(KEPT if whole else SCRATCH)
    terminalreporter.write_line("")
    terminalreporter.write_line(results.markdown())
    terminalreporter.write_line(f"written to {written.relative_to(ROOT)}, and as JSON beside it")
