"""`RustStream`: hooks, start, stop, signals, on stand-ins for subscriptions."""

import asyncio
import logging
import os
import signal
from contextlib import asynccontextmanager

import msgspec
import pytest

from eventually import eventually_async
from ruststream.app import RustStream
from ruststream.errors import ConfigError, ConnectError, SubscribeError
from ruststream.redis import RedisBroker, RedisStream


class Payment(msgspec.Struct):
    id: int


async def handler(payment: Payment): ...


@pytest.fixture
def broker(subscriptions):
    broker = RedisBroker("redis://localhost")
    broker.add_subscriber(RedisStream.claiming("payments", min_idle=30, group="ledger"), handler)
    return broker


@pytest.fixture
def app(broker):
    return RustStream("payments", broker, drain_timeout=0.2)


@pytest.fixture
def hooked(app, subscriptions):
    """An app whose hooks note that they were called."""
    for name in ("on_startup", "after_startup", "on_shutdown", "after_shutdown"):
        getattr(app, name)(lambda name=name: subscriptions.log.append(name))
    return app


async def running(app):
    """Serve with signals, and return once entries are read."""
    task = asyncio.ensure_future(app.serve(signals=True))
    await eventually_async(lambda: task.done() or app.health().state == "running")
    return task


async def test_the_order_of_start_and_stop(hooked, subscriptions):
    async with hooked as entered:
        assert entered is hooked
        assert subscriptions.log == ["on_startup", "open handler", "after_startup", "start handler"]
        subscriptions.log.clear()
    assert subscriptions.log == [
        "on_shutdown", "stop_reading handler", "release handler", "flush handler", "close handler", "after_shutdown",
    ]  # fmt: skip


async def test_hooks_may_be_async_and_take_the_app(app, subscriptions):
    seen = []

    @app.on_startup
    async def first():
        await asyncio.sleep(0)
        seen.append("first")

    @app.on_startup
    async def second(given):
        given.state.db = "db"

    @app.after_startup
    def third(given):
        seen.append(given)

    async with app:
        assert seen == ["first", app]
        assert subscriptions.made[0].app_state is app.state
        assert app.state.db == "db"
    assert asyncio.iscoroutinefunction(first)


async def test_what_lifespan_yields_is_the_state(broker, subscriptions):
    @asynccontextmanager
    async def lifespan(given):
        subscriptions.log.append("enter")
        yield {"title": given.title}
        subscriptions.log.append("leave")

    app = RustStream("payments", broker, lifespan=lifespan)
    app.on_startup(lambda: subscriptions.log.append(app.state["title"]))
    async with app:
        assert subscriptions.made[0].app_state == {"title": "payments"}
    assert subscriptions.log[:3] == ["enter", "payments", "open handler"]
    assert subscriptions.log[-2:] == ["close handler", "leave"]


async def test_lifespan_may_take_nothing_and_yield_nothing(broker):
    @asynccontextmanager
    async def lifespan():
        yield

    app = RustStream("payments", broker, lifespan=lifespan)
    state = app.state
    async with app:
        assert app.state is state


async def test_an_app_may_run_again(hooked, subscriptions):
    for _ in range(2):
        async with hooked:
            pass
    assert len(subscriptions.made) == 2


async def test_an_app_runs_once_at_a_time(app):
    async with app:
        with pytest.raises(ConfigError, match="running already"):
            await app.serve()
        assert app.health().state == "running"


async def test_a_start_that_fails_is_undone(broker, subscriptions, no_server, bells):
    @asynccontextmanager
    async def lifespan():
        yield
        subscriptions.log.append("leave")

    app = RustStream("payments", broker, lifespan=lifespan)
    for name in ("after_startup", "on_shutdown", "after_shutdown"):
        getattr(app, name)(lambda name=name: subscriptions.log.append(name))
    subscriptions.refuses = SubscribeError("no permission")
    with pytest.raises(SubscribeError, match="no permission"):
        await app.serve()
    assert subscriptions.log == ["open handler", "close handler", "after_shutdown", "leave"]
    assert [client.closed for client in no_server.made] == [bell.closed for bell in bells] == [1]
    assert app.health().state == "failed"
    subscriptions.refuses = None
    async with app:
        assert app.health().healthy


async def test_a_start_without_a_server_fails_at_once(app, no_server, subscriptions):
    no_server.refuses = ConnectError("connection refused")
    with pytest.raises(ConnectError):
        await app.serve()
    assert subscriptions.made == []


async def test_what_a_hook_of_the_start_raises_is_the_error(hooked, subscriptions):
    @hooked.on_startup
    def fail():
        raise LookupError("no database")

    with pytest.raises(LookupError, match="no database"):
        async with hooked:
            pytest.fail("entered")
    assert subscriptions.log == ["on_startup"]


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


async def test_health(app):
    assert (app.health().state, app.health().subscriptions) == ("stopped", [])
    async with app:
        health = app.health()
        assert health.healthy
        assert [subscription.name for subscription in health.subscriptions] == ["handler"]
    assert not app.health().healthy


BROKER = RedisBroker("redis://localhost")


@pytest.mark.parametrize(
    ("arguments", "options", "named"),
    [
        ((BROKER,), {}, "title, which comes first"),
        (("",), {}, "title"),
        (("payments",), {}, "needs a broker"),
        (("payments", "redis://localhost"), {}, "takes brokers"),
        (("payments", BROKER, BROKER), {}, "twice"),
        (("payments", BROKER), {"drain_timeout": -1}, "drain_timeout"),
        (("payments", BROKER), {"version": 1}, "version"),
        (("payments", BROKER), {"lifespan": 3}, "lifespan"),
        (("payments", BROKER), {"lifespan": lambda _a, _b: None}, "lifespan"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments, options, named):
    with pytest.raises(ConfigError, match=named):
        RustStream(*arguments, **options)


@pytest.mark.parametrize("hook", [3, lambda _a, _b: None])
def test_a_hook_takes_the_app_or_nothing(app, hook):
    with pytest.raises(ConfigError, match="on_startup"):
        app.on_startup(hook)


def test_an_app_shows_itself_without_secrets():
    app = RustStream("payments", RedisBroker("redis://:s3cret@localhost"), version="2.0")
    assert repr(app) == "RustStream('payments', RedisBroker('redis://***@localhost'), version='2.0')"


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
