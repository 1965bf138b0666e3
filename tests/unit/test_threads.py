"""Handlers that run in threads."""

import asyncio
import contextvars
import threading
import time

import pytest

from eventually import eventually_async
from ruststream.outcome import Settle, retry
from ruststream.threads import HandlerThreads


@pytest.fixture
def threads():
    pool = HandlerThreads(2, "post_payment")
    yield pool
    pool.close()


async def test_a_handler_runs_beside_the_loop(threads):
    call = threads.call(lambda message, *, ctx: (message, ctx, threading.current_thread().name))
    message, ctx, name = await call(1, ctx=2)
    assert (message, ctx) == (1, 2)
    assert name.startswith("post_payment")


async def test_no_more_run_at_once_than_there_are_workers(threads):
    running, most = 0, 0
    lock = threading.Lock()

    def handler(_message):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1

    call = threads.call(handler)
    await asyncio.gather(*(call(number) for number in range(6)))
    assert most == 2


async def test_context_variables_are_seen_and_not_changed(threads):
    variable = contextvars.ContextVar("variable", default="none")
    variable.set("caller's")

    def handler(_message):
        seen = variable.get()
        variable.set("handler's")
        return seen

    assert await threads.call(handler)(1) == "caller's"
    assert variable.get() == "caller's"


@pytest.mark.parametrize("error", [ValueError("x"), Settle(retry())])
async def test_what_a_handler_raises_arrives(threads, error):
    def handler(_message):
        raise error

    with pytest.raises(type(error)) as caught:
        await threads.call(handler)(1)
    assert caught.value is error


async def test_a_stop_iteration_arrives_too(threads):
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(threads.call(lambda _message: next(iter(())))(1), 5)


async def test_a_coroutine_that_a_def_returns_is_awaited(threads):
    async def inner(message):
        await asyncio.sleep(0)
        return message + 1

    assert await threads.call(lambda message: inner(message))(1) == 2  # noqa: PLW0108 - a def that returns a coroutine


async def test_a_running_handler_is_counted_until_it_ends(threads):
    go = threading.Event()
    task = asyncio.ensure_future(threads.call(lambda _message: go.wait(10))(1))
    await eventually_async(lambda: threads.busy)
    task.cancel()
    await asyncio.wait([task])
    assert threads.busy == 1
    threads.close()
    go.set()
    await eventually_async(lambda: not threads.busy)


async def test_after_a_close_the_next_call_begins_anew(threads):
    call = threads.call(lambda message: message)
    assert await call(1) == 1
    threads.close()
    threads.close()
    assert await call(2) == 2
