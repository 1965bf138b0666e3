"""Signals, logging and the end of a process."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from ruststream.errors import ConfigError
from ruststream.process import Signals, plain_logging


async def test_signals_count_and_the_second_one_cancels():
    stop = asyncio.Event()

    async def serve():
        with Signals(stop, lambda: False) as seen:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return seen.count, seen.cancelled(), asyncio.current_task().cancelling()

    task = asyncio.ensure_future(serve())
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(stop.wait(), 5)
    assert not task.done()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task == (2, True, 0)


async def test_somebody_elses_cancellation_is_not_taken_for_a_signal():
    async def serve():
        with Signals(asyncio.Event(), lambda: True) as seen:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return seen.cancelled()

    task = asyncio.ensure_future(serve())
    await asyncio.sleep(0)
    task.cancel()
    assert await task is False
    assert task.cancelling() == 1


async def test_before_there_is_something_to_stop_the_first_signal_cancels():
    stop = asyncio.Event()

    async def serve():
        with Signals(stop, lambda: True) as seen:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return seen.count, seen.cancelled()

    task = asyncio.ensure_future(serve())
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(task, 5) == (1, True)
    assert not stop.is_set()


@contextmanager
def root_logger(*handlers):
    """The root logger with these handlers alone."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = handlers
    try:
        yield root
    finally:
        root.handlers[:] = before
        root.setLevel(level)


def test_logging_is_set_up_where_nobody_did():
    with root_logger() as root:
        plain_logging("warning")
        assert len(root.handlers) == 1
        assert root.handlers[0].stream is sys.stderr
        assert root.level == logging.WARNING
        plain_logging("DEBUG")
        assert root.level == logging.WARNING


def test_logging_that_is_set_up_is_left_alone():
    mine = logging.NullHandler()
    with root_logger(mine) as root:
        plain_logging("INFO")
        assert root.handlers == [mine]


def test_a_level_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match="LOUD"):
        plain_logging("LOUD")


def test_leaving_does_not_wait_for_threads():
    code = (
        "import threading, time\n"
        "from ruststream.process import leave_now\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('said')\n"
        "leave_now(3)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=20, check=False)
    assert (ended.returncode, ended.stdout) == (3, b"said\n")
