"""The threads that `def` handlers run in."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any


class HandlerThreads:
    """A pool of one subscription, so that the slow handlers of another one don't starve it."""

    def __init__(self, workers: int, name: str) -> None:
        """Start nothing yet.

        Args:
            workers: how many threads at most.
            name: what the threads are named after.
        """
        self._workers = workers
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._busy: set[int] = set()

    @property
    def busy(self) -> int:
        """How many threads run a handler now. Nothing can end one but the handler itself."""
        return len(self._busy)

    def call(self, handler: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
        """Return the handler as a coroutine function. It sees the context variables of its caller."""

        async def run(*args: Any, **kwargs: Any) -> Any:
            context = copy_context()

            def work() -> tuple[Any, BaseException | None]:
                # As a value, since a future does not carry every exception: StopIteration would never arrive.
                self._busy.add(threading.get_ident())
                try:
                    return context.run(handler, *args, **kwargs), None
                except BaseException as error:  # noqa: BLE001 - raised again on the loop
                    return None, error
                finally:
                    self._busy.discard(threading.get_ident())

            result, error = await asyncio.get_running_loop().run_in_executor(self._threads(), work)
            if error is not None:
                raise error
            # A `def` that returns a coroutine, such as a decorator's wrapper: without this it would never run.
            return await result if inspect.isawaitable(result) else result

        return run

    def close(self) -> None:
        """Take no more calls. A handler that runs goes on to its end; the next call begins a new pool."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix=self._name)
        return self._pool
