"""`RustStream`: hooks, lifespan, start, health, arguments, on stand-ins for subscriptions."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from ruststream.app import RustStream
from ruststream.errors import ConfigError, ConnectError, SubscribeError
from ruststream.redis import RedisBroker


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
