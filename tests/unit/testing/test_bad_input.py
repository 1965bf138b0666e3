"""What a test may do wrong: each a clear error, and none a hang."""

import asyncio
import logging
import math
from datetime import timedelta
from typing import Any

import pytest

from ruststream import Context, RustStream, retry
from ruststream.errors import ConfigError, NotQuiescentError
from ruststream.redis import RedisBroker, RedisStream
from ruststream.testing import TestApp

SOURCE = RedisStream.claiming("s", min_idle=30, group="g")


def app_of(handler: Any, **options: Any) -> RustStream:
    broker = RedisBroker("redis://localhost:1")
    broker.add_subscriber(SOURCE, handler, **options)
    return RustStream("app", broker)


async def handler(value: int):
    pass


@pytest.mark.parametrize("passing", [-1, -0.001, math.inf, math.nan, 1e12, timedelta(-1), "1", None, True])
async def test_time_passes_forward_and_within_reason(passing: Any):
    async with TestApp(app_of(handler)) as t:
        with pytest.raises(ConfigError, match="advance takes seconds or a timedelta from 0 to ten years"):
            await t.advance(passing)
        await t.advance(0)


async def test_a_stream_that_nobody_reads_is_refused():
    async with TestApp(app_of(handler)) as t:
        with pytest.raises(ConfigError, match="no subscriber of the app reads stream 'payment': it reads s"):
            await t.publish(1, "payment")


async def test_what_is_no_subscriber_is_refused():
    async with TestApp(app_of(handler)) as t:
        for other in (test_what_is_no_subscriber_is_refused, "other", len):
            with pytest.raises(ConfigError, match="is no subscription of the app; there are: handler"):
                t.subscriber(other)


async def test_a_handler_of_several_subscriptions_is_asked_for_by_name():
    broker = RedisBroker("redis://localhost:1")
    for group in ("a", "b"):
        broker.add_subscriber(RedisStream.claiming("s", min_idle=30, group=group), handler)
    async with TestApp(RustStream("app", broker)) as t:
        with pytest.raises(ConfigError, match="give the name of one: handler, handler-2"):
            t.subscriber(handler)
        t.subscriber("handler-2").assert_not_called()


async def test_one_at_a_time():
    app = app_of(handler)
    async with TestApp(app) as t:
        with pytest.raises(ConfigError, match="another TestApp has the app"):
            await TestApp(app).__aenter__()
        with pytest.raises(ConfigError, match="open already"):
            await t.__aenter__()
    async with TestApp(app):
        pass


async def test_one_that_is_not_open_says_how_to_open_it():
    t = TestApp(app_of(handler))
    for act in (lambda: t.subscriber(handler), lambda: t.stream("s"), lambda: t.pending("s", "g"), lambda: t.now):
        with pytest.raises(ConfigError, match="async with TestApp"):
            act()
    with pytest.raises(ConfigError, match="async with TestApp"):
        await t.publish(1, "s")


async def test_one_that_is_left_without_closing_lets_go_of_its_app():
    app = app_of(handler)
    left = await TestApp(app).__aenter__()
    await app.__aexit__(None, None, None)
    del left
    async with TestApp(app) as t:
        await t.publish(1, "s")


async def test_an_app_that_runs_stays_taken_when_its_test_is_forgotten():
    app = app_of(handler)
    left = await TestApp(app).__aenter__()
    del left
    with pytest.raises(ConfigError, match="another TestApp has the app"):
        await TestApp(app).__aenter__()
    await app.__aexit__(None, None, None)


async def test_a_running_app_is_refused_and_goes_on():
    broker = RedisBroker("memory://refused")
    app = RustStream("app", broker)
    async with app:
        with pytest.raises(ConfigError, match="is running already"):
            await TestApp(app).__aenter__()
        assert app.health().state == "running"


async def test_a_handler_that_never_ends_is_an_error_that_names_it(caplog: pytest.LogCaptureFixture):
    async def endless(value: int):
        await asyncio.Event().wait()

    caplog.set_level(logging.CRITICAL)
    async with TestApp(app_of(endless), patience=0.05) as t:
        with pytest.raises(NotQuiescentError, match=r"have not ended in 0.05 s: endless of entry 17672256"):
            await t.publish(1, "s")


async def test_a_handler_that_feeds_its_own_stream_is_an_error_that_names_it():
    async def echo(value: int, ctx: Context):
        await ctx.publish(value + 1, "s")

    async with TestApp(app_of(echo), max_calls=200) as t:
        with pytest.raises(NotQuiescentError, match=r"subscription echo was called \d+ times .*max_calls=200"):
            await t.publish(1, "s")


async def test_two_calls_at_once_are_refused():
    async def slow(value: int):
        await asyncio.sleep(0.05)

    async with TestApp(app_of(slow)) as t:
        first = asyncio.ensure_future(t.publish(1, "s"))
        await asyncio.sleep(0.001)
        with pytest.raises(ConfigError, match=r"advance\(\) while publish\(\) is under way"):
            await t.advance(1)
        await first


async def test_the_model_refuses_what_a_server_refuses():
    """B094: the in-memory test double behaves differently from a real server."""
    broker = RedisBroker("redis://localhost:1")

    @broker.subscriber(SOURCE)
    async def bad(value: int, ctx: Context):
        await ctx.publish(value, "s", minid="1-1-1")

    async with TestApp(RustStream("app", broker)) as t:
        await t.publish(1, "s")
        t.subscriber(bad).assert_outcome("leave")


async def test_assertions_say_what_happened_instead():
    async def sometimes(value: int):
        if value:
            raise ValueError("odd")
        return retry()

    async with TestApp(app_of(sometimes)) as t:
        record = t.subscriber(sometimes)
        with pytest.raises(AssertionError, match="was never called; nothing was delivered to it"):
            record.assert_called()
        for call in (-1, 0):
            with pytest.raises(AssertionError, match=r"has no delivery that could have ended in retry\(\);"):
                record.assert_outcome(retry(), call)
        with pytest.raises(AssertionError, match="has no delivery that could have raised KeyError;"):
            record.assert_raised(KeyError)
        await t.publish(0, "s")
        await t.publish(1, "s")
        with pytest.raises(AssertionError) as failed:
            record.assert_called(1)
        lines = str(failed.value).splitlines()
        assert lines[0] == "subscription sometimes of stream s was called twice, not once; its deliveries were:"
        assert "0. entry 1767225600000-0, delivery 1, idle 0 s: 0 -> retry()" in lines[1]
        assert "1. entry 1767225600000-1, delivery 1, idle 0 s: 1 -> leave() after ValueError: odd" in lines[2]
        for call, words in {-1: r"its last delivery \(1\)", -2: "delivery 0", 1: "delivery 1"}.items():
            with pytest.raises(AssertionError, match=f"settled {words} by "):
                record.assert_outcome("drop", call)
            with pytest.raises(AssertionError, match=f"in {words}, not KeyError"):
                record.assert_raised(KeyError, call)
        for call in (2, -3):
            with pytest.raises(AssertionError, match=f"has no delivery {call}, counted from 0, that could have"):
                record.assert_outcome(retry(), call)
        for wrong in (
            lambda: record.assert_called_with(7),
            lambda: record.assert_outcome(retry()),
            lambda: record.assert_outcomes(retry()),
            lambda: record.assert_raised(KeyError),
            record.assert_not_called,
        ):
            with pytest.raises(AssertionError, match="sometimes"):
                wrong()
