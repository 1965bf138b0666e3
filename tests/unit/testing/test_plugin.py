"""The fixture `testapp`, which the package brings to every pytest."""

from collections.abc import Callable
from importlib.metadata import entry_points

import pytest

from ruststream import RustStream, pytest_plugin
from ruststream.redis import RedisBroker, RedisStream
from ruststream.testing import TestApp

pytest_plugins = ["pytester"]


def test_the_plugin_is_found_by_its_entry_point():
    (found,) = entry_points(group="pytest11", name="ruststream")
    assert found.load() is pytest_plugin


async def test_the_fixture_makes_test_apps(testapp: Callable[..., TestApp]):
    broker = RedisBroker("redis://localhost:1")

    @broker.subscriber(RedisStream.claiming("s", min_idle=5, group="g"))
    async def handler(value: int):
        pass

    async with testapp(RustStream("app", broker), patience=1) as t:
        await t.publish(1, "s")
        t.subscriber(handler).assert_called(1)


def test_one_that_is_not_left_fails_its_test(pytester: pytest.Pytester):
    pytester.makepyfile("""
        import asyncio
        from ruststream import RustStream
        from ruststream.redis import RedisBroker

        def test_it(testapp):
            app = RustStream("mine", RedisBroker("redis://localhost:1"))
            with asyncio.Runner() as runner:
                runner.run(testapp(app).__aenter__())
    """)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-W", "ignore")
    result.stdout.fnmatch_lines(["*TestApp of mine was not left*"])
    result.assert_outcomes(passed=1, errors=1)
