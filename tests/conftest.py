"""Fixtures that every test may ask for: real servers, and redis-py as an outside witness.

A server that is missing fails the test with one line; nothing is skipped and nothing is fetched from inside a test.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import redis

from server_builds import SPECS, present
from servers import Server

# Examples are not timed (the machine may be busy) and are the same every time; HYPOTHESIS_PROFILE=wide tries new ones.
hypothesis.settings.register_profile("wide", deadline=None, max_examples=2000)
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

MakeServer = Callable[..., Server]
MakeWitness = Callable[[Server], redis.Redis]


def start(name: str, **options: Any) -> Server:
    """Start a server that is already in the cache, or fail the test with the one line that says how to get it."""
    if present(SPECS[name]) is None:
        pytest.fail(f"{name} {SPECS[name].version} is not here: run `make servers`", pytrace=False)
    return Server.start(name, **options)


def flush(server: Server) -> None:
    """Give the next test an empty server with its own settings unchanged."""
    with redis.Redis(host=server.host, port=server.port) as client:
        client.flushall()
        client.script_flush()


@pytest.fixture(scope="session")
def started_servers() -> Iterator[dict[str, Server]]:
    """The servers that tests share, by name, started when first asked for."""
    servers: dict[str, Server] = {}
    yield servers
    for server in servers.values():
        server.stop()


def shared(name: str, servers: dict[str, Server]) -> Server:
    """Return the shared server of that name."""
    if name not in servers:
        servers[name] = start(name)
    return servers[name]


@pytest.fixture(scope="session")
def redis_server(started_servers: dict[str, Server]) -> Server:
    """The shared Redis 8.10. Tests that stop, pause or configure a server ask for ``make_server`` instead."""
    return shared("redis-8.10", started_servers)


@pytest.fixture
def redis_url(redis_server: Server) -> str:
    """URL of the shared Redis 8.10, emptied for this test."""
    flush(redis_server)
    return redis_server.url


@pytest.fixture
def server_named(started_servers: dict[str, Server]) -> Callable[[str], Server]:
    """Give a shared server by its name, emptied."""

    def named(name: str) -> Server:
        server = shared(name, started_servers)
        flush(server)
        return server

    return named


@pytest.fixture(params=list(SPECS))
def any_server(request: pytest.FixtureRequest, started_servers: dict[str, Server]) -> Server:
    """Each of the four servers in turn, shared and emptied for this test."""
    server = shared(request.param, started_servers)
    flush(server)
    return server


@pytest.fixture
def make_server() -> Iterator[MakeServer]:
    """Start servers of the test's own: ``make_server(name="redis-8.10", **options of Server.start)``."""
    servers: list[Server] = []

    def make(name: str = "redis-8.10", **options: Any) -> Server:
        servers.append(start(name, **options))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def make_witness() -> Iterator[MakeWitness]:
    """Connect redis-py (bytes in, bytes out) to a given server: ``make_witness(server)``."""
    clients: list[redis.Redis] = []

    def make(server: Server) -> redis.Redis:
        clients.append(redis.Redis.from_url(server.url, decode_responses=False))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def witness(request: pytest.FixtureRequest, make_witness: MakeWitness) -> redis.Redis:
    """redis-py on the server of the test: ``any_server`` if it asks for that, else the shared Redis 8.10, emptied."""
    if "any_server" in request.fixturenames:
        return make_witness(request.getfixturevalue("any_server"))
    request.getfixturevalue("redis_url")
    return make_witness(request.getfixturevalue("redis_server"))
