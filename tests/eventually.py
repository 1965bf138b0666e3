"""Waiting for a condition, bounded: tests never wait by the clock."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["eventually", "eventually_async"]


def eventually(predicate: Callable[[], Any], timeout: float = 5.0, every: float = 0.01) -> Any:
    """Call ``predicate`` until it returns something true, and return that.

    An ``AssertionError`` inside the predicate counts as "not yet"; any other exception is raised at once.

    Args:
        predicate: What must become true.
        timeout: Seconds after which the test fails with the last value or assertion.
        every: Seconds between two calls.
    """
    deadline = time.monotonic() + timeout
    while True:
        value, failure = _try(predicate)
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(_story(predicate, timeout, value, failure)) from failure
        time.sleep(every)


async def eventually_async(
    predicate: Callable[[], Any] | Callable[[], Awaitable[Any]],
    timeout: float = 5.0,  # noqa: ASYNC109 - it fails with a story, which asyncio.timeout would not
    every: float = 0.01,
) -> Any:
    """The same for tests that run on an event loop; ``predicate`` may be a plain or an async function."""
    deadline = time.monotonic() + timeout
    while True:
        value, failure = _try(predicate)
        if inspect.isawaitable(value):
            try:
                value = await value
            except AssertionError as error:
                value, failure = None, error
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(_story(predicate, timeout, value, failure)) from failure
        await asyncio.sleep(every)


def _try(predicate: Callable[[], Any]) -> tuple[Any, AssertionError | None]:
    try:
        return predicate(), None
    except AssertionError as error:
        return None, error


def _story(predicate: Callable[[], Any], timeout: float, value: Any, failure: AssertionError | None) -> str:
    try:
        what = inspect.getsource(predicate).strip()
    except (OSError, TypeError):
        what = repr(predicate)
    last = f"it raised {failure}" if failure is not None else f"its last value was {value!r}"
    return f"not true within {timeout:g} s, {last}: {what}"
