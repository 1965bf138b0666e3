"""What no handler should do, and does all the same."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from ruststream import Settle, retry


def tell(**what: Any) -> None:
    """Say something to the test: a JSON object on a line of stdout."""
    os.write(1, json.dumps(what).encode() + b"\n")


def end_the_process(misdeed: str) -> None:
    """Do as if the process were the handler's own."""
    if misdeed == "exits":
        sys.exit(3)
    assert misdeed == "interrupts"
    raise KeyboardInterrupt


async def fail() -> None:
    """Raise what a handler may well raise."""
    raise ValueError("this one fails")


async def cancel_and_wait() -> None:
    """Ask for the own task's end and stay to see it."""
    cancel_task()
    await asyncio.sleep(5)


async def cancel_and_return() -> None:
    """Ask for the own task's end and do not stay."""
    cancel_task()


async def swallow() -> None:
    """Take no notice of a cancellation."""
    cancel_task()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(5)


async def swallow_for_ever() -> None:
    """Take no notice of any cancellation, and never end."""
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def raise_cancelled() -> None:
    """Claim to have been cancelled."""
    raise asyncio.CancelledError


async def raise_generator_exit() -> None:
    """Raise what neither is an Exception nor ends a process."""
    raise GeneratorExit


async def never_end() -> None:
    """Wait for what never comes."""
    await asyncio.Event().wait()


async def await_cancelled() -> None:
    """Wait for a task that someone else cancels."""
    other = asyncio.ensure_future(asyncio.sleep(5))
    asyncio.get_running_loop().call_soon(other.cancel)
    await other


async def fail_in_a_group() -> None:
    """One task of a group fails, which cancels this task for a moment."""
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(5))
        group.create_task(fail())


async def time_out() -> None:
    """The handler's own timeout runs out, which cancels this task for a moment."""
    async with asyncio.timeout(0.01):
        await asyncio.sleep(5)


def cancel_task() -> None:
    """Cancel the task that the handler runs in."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


MISDEEDS: dict[str, Callable[[], Awaitable[None]]] = {
    "cancels itself and waits": cancel_and_wait,
    "cancels itself and returns": cancel_and_return,
    "swallows its cancellation": swallow,
    "cannot be cancelled": swallow_for_ever,
    "raises CancelledError": raise_cancelled,
    "raises GeneratorExit": raise_generator_exit,
    "never ends": never_end,
    "awaits a task that is cancelled": await_cancelled,
    "has a failing group": fail_in_a_group,
    "runs into its own timeout": time_out,
}


RETRIES = "retries after "


async def misbehave(misdeed: str) -> None:
    """Do to the task, or the process, what no handler should."""
    if misdeed.startswith(RETRIES):
        raise Settle(retry(after=float(misdeed.removeprefix(RETRIES))))
    if misdeed in MISDEEDS:
        await MISDEEDS[misdeed]()
    else:
        end_the_process(misdeed)
