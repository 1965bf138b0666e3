"""How an app ends: hooks of the stop, signals, subscriptions that fail, exit codes; on stand-ins."""

import asyncio
import logging
import os
import signal

import pytest

from eventually import eventually_async
from ruststream.app import RustStream
from ruststream.errors import ConfigError, SubscribeError


async def running(app):
    """Serve with signals, and return once entries are read."""
    task = asyncio.ensure_future(app.serve(signals=True))
    await eventually_async(lambda: task.done() or app.health().state == "running")
    return task


async def test_a_hook_of_the_stop_that_fails_is_logged_and_counts(hooked, subscriptions, caplog):
    @hooked.on_shutdown
    def fail():
        raise LookupError("no database")

    task = asyncio.ensure_future(hooked.serve())
    await eventually_async(lambda: hooked.health().state == "running")
    hooked.stop()
    assert await task == 1
    assert "after_shutdown" in subscriptions.log
    assert "a hook of on_shutdown failed" in caplog.text


async def test_a_hook_of_the_stop_can_not_hold_it(app, subscriptions):
    app.on_shutdown(asyncio.Event().wait)
    async with asyncio.timeout(5):
        async with app:
            pass
    assert "close handler" in subscriptions.log


async def test_stop_ends_serve(app):
    task = asyncio.ensure_future(app.serve())
    await eventually_async(lambda: app.health().state == "running")
    app.stop()
    assert await task == 0
    app.stop()
    assert app.health().state == "stopped"


async def test_a_serve_that_is_cancelled_drains_and_stays_cancelled(app, subscriptions):
    task = asyncio.ensure_future(app.serve())
    await eventually_async(lambda: app.health().state == "running")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert subscriptions.log[-3:] == ["release handler", "flush handler", "close handler"]


async def test_entries_left_unfinished_are_exit_code_1(app, subscriptions):
    subscriptions.handlers = ("1-0",)
    task = asyncio.ensure_future(app.serve())
    await eventually_async(lambda: app.health().state == "running")
    app.stop()
    assert await task == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains(app, subscriptions, number, caplog):
    caplog.set_level(logging.INFO, "ruststream")
    task = await running(app)
    os.kill(os.getpid(), number)
    assert await task == 0
    assert "flush handler" in subscriptions.log
    assert "drain complete" in caplog.text
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_a_second_signal_stops_at_once(broker, subscriptions, caplog):
    subscriptions.handlers = ("1-0",)
    app = RustStream("payments", broker, drain_timeout=60)
    task = await running(app)
    os.kill(os.getpid(), signal.SIGTERM)
    await eventually_async(lambda: app.health().state == "stopping")
    await asyncio.sleep(0.01)
    assert not task.done()
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(5):
        assert await task == 1
    assert "stay pending: 1-0" in caplog.text
    assert "close handler" in subscriptions.log
    assert "flush handler" not in subscriptions.log


async def test_a_signal_during_the_start_undoes_it(hooked, subscriptions):
    @hooked.after_startup
    async def slow():
        await asyncio.Event().wait()

    task = asyncio.ensure_future(hooked.serve(signals=True))
    await eventually_async(lambda: "after_startup" in subscriptions.log)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task == 0
    assert "start handler" not in subscriptions.log
    assert subscriptions.log[-2:] == ["close handler", "after_shutdown"]
    assert hooked.health().state == "stopped"


async def test_a_signal_after_stop_was_asked_for_does_not_hurry(broker, subscriptions):
    subscriptions.handlers = ("1-0",)
    app = RustStream("payments", broker, drain_timeout=60)
    task = await running(app)
    app.stop()
    await eventually_async(lambda: app.health().state == "stopping")
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.02)
    assert not task.done()
    subscriptions.made[0].end_handlers()
    assert await task == 0


async def test_signals_are_for_the_main_thread(app):
    def elsewhere():
        with pytest.raises(ConfigError, match="main thread"):
            asyncio.run(app.serve(signals=True))

    await asyncio.to_thread(elsewhere)


async def test_a_subscription_that_can_not_go_on_ends_serve(app, subscriptions, caplog):
    task = asyncio.ensure_future(app.serve())
    await eventually_async(lambda: app.health().state == "running")
    subscriptions.made[0].failed.set_result(SubscribeError("WRONGTYPE"))
    with pytest.raises(SubscribeError, match="WRONGTYPE"):
        await task
    assert "close handler" in subscriptions.log
    assert "subscription handler can't go on" in caplog.text
    assert app.health().state == "failed"


async def test_a_subscription_that_can_not_go_on_ends_the_body(app, subscriptions):
    async def body():
        async with app:
            subscriptions.made[0].failed.set_result(SubscribeError("WRONGTYPE"))
            await asyncio.Event().wait()

    with pytest.raises(SubscribeError, match="WRONGTYPE"):
        await body()
    assert asyncio.current_task().cancelling() == 0
    assert "close handler" in subscriptions.log
    await asyncio.sleep(0)


async def test_a_body_that_ends_in_that_moment_sees_the_error_too(app):
    async def body():
        async with app:
            app._failure = SubscribeError("WRONGTYPE")
            app._cancel_host()

    with pytest.raises(SubscribeError, match="WRONGTYPE"):
        await body()
    assert asyncio.current_task().cancelling() == 0
    await asyncio.sleep(0)


async def test_an_error_of_the_body_goes_before_a_failure(app, subscriptions):
    with pytest.raises(ZeroDivisionError):
        async with app:
            1 / 0  # noqa: B018
    assert "flush handler" in subscriptions.log


async def test_whoever_else_cancels_the_body_is_obeyed(app, subscriptions):
    async def body():
        async with app:
            await asyncio.Event().wait()

    task = asyncio.ensure_future(body())
    await eventually_async(lambda: app.health().state == "running")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "flush handler" in subscriptions.log


def run(app):
    with pytest.raises(SystemExit) as caught:
        app.run()
    return caught.value.code


def stop_when_running(app):
    @app.after_startup
    def later():
        asyncio.get_running_loop().call_later(0.02, os.kill, os.getpid(), signal.SIGTERM)


def test_run_exits_with_0_after_a_clean_stop(app):
    stop_when_running(app)
    assert run(app) == 0


def test_run_exits_with_1_where_entries_are_left(app, subscriptions):
    subscriptions.handlers = ("1-0",)
    stop_when_running(app)
    assert run(app) == 1


def test_run_exits_with_1_and_one_line_where_the_start_fails(app, subscriptions, caplog):
    subscriptions.refuses = SubscribeError("no permission")
    assert run(app) == 1
    (record,) = caplog.records
    assert record.getMessage() == "payments: no permission"
    assert record.exc_info is None


def test_run_exits_with_1_and_a_traceback_where_a_hook_fails(app, caplog):
    @app.on_startup
    def fail():
        raise LookupError("no database")

    assert run(app) == 1
    assert caplog.records[-1].exc_info[0] is LookupError


def test_run_does_not_wait_for_handlers_that_do_not_end(app, subscriptions, monkeypatch):
    subscriptions.handlers, subscriptions.deaf = ("1-0",), True
    stop_when_running(app)
    codes = []
    monkeypatch.setattr("ruststream.app.leave_now", codes.append)
    run(app)
    assert codes == [1]
