"""The pytest plugin: the fixture `testapp`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ruststream.app import RustStream
    from ruststream.testing import TestApp


@pytest.fixture
def testapp() -> Iterator[Callable[..., TestApp]]:
    """Return what makes a `TestApp` of an app. A test that does not leave one it made fails."""
    from ruststream.testing import TestApp

    made: list[TestApp] = []

    def make(app: RustStream, **options: Any) -> TestApp:
        made.append(TestApp(app, **options))
        return made[-1]

    yield make
    left = [one.app.title for one in made if one.is_open]
    if left:
        pytest.fail(f"TestApp of {', '.join(left)} was not left: use it as `async with testapp(app) as t:`")
