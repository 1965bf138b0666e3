"""Fixtures of the chaos tests: worker processes that end with their test, and the record of figures."""

import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.service import Config
from chaos.worker import Worker
from servers import Server

StartWorker = Callable[..., Worker]
Note = Callable[..., None]


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    """Start a worker process: ``start_worker(server, "claiming", hold=["effect:7"], **fields of Config)``."""
    workers: list[Worker] = []
    numbers = itertools.count(1)

    def start(server: Server, *modes: str, url: str | None = None, **config: Any) -> Worker:
        name = f"worker-{next(numbers)}"
        effects = str(tmp_path / f"{name}.effects")
        made = Config(url=url or server.url, effects=effects, modes=list(modes), **config)
        workers.append(Worker(name, tmp_path, made))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """Keep figures of a case: properties of its report, and lines of the file that CHAOS_FIGURES names."""

    def keep(**figures: Any) -> None:
        for name, value in figures.items():
            request.node.user_properties.append((name, value))
        if path := os.environ.get("CHAOS_FIGURES"):
            with Path(path).open("a") as file:
                file.write(json.dumps({"case": request.node.name, **figures}) + "\n")

    return keep
