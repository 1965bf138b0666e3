"""`trim=`: streams that are kept within bounds, and groups that lose nothing by it."""

from collections.abc import Callable

import pytest

from backend import Backend
from ruststream import RustStream, leave
from ruststream.errors import ServerTooOldError
from ruststream.redis import RedisStream, Trim
from ruststream.testing import TestApp

DELETING = {"model", "redis-8.10", "redis-8.2"}


def source(trim: Trim, group: str = "g") -> RedisStream:
    return RedisStream.recovering("s", min_idle=30, group=group, trim=trim)


async def handler(body: int): ...


async def comes(t: TestApp, reached: Callable[[], bool]) -> None:
    """Let time pass until it is so: how often a stream is looked at depends on how little there was to do."""
    for _ in range(30):
        if reached():
            return
        await t.advance(1)
    raise AssertionError("it did not come")


async def test_a_length_is_kept(backend: Backend):
    async with backend(backend.app(handler, source(Trim.max_length(3)))) as t:
        for body in range(10):
            await t.publish(body, "s")
        await comes(t, lambda: t.stream("s").length == 3)
        assert t.stream("s").values == [7, 8, 9]
        t.subscriber("main").assert_called(10)


async def test_an_age_is_kept(backend: Backend):
    async with backend(backend.app(handler, source(Trim.max_age(2)))) as t:
        for body in range(5):
            await t.publish(body, "s")
        await comes(t, lambda: t.stream("s").length == 0)
        await t.publish(5, "s")
        assert t.stream("s").values == [5]
        t.subscriber("main").assert_called(6)


async def test_what_another_group_needs_stays(backend: Backend):
    broker = backend.broker()
    broker.add_subscriber(source(Trim.max_length(1)), handler, name="main")

    @broker.subscriber(source(Trim.max_length(1), group="slow"), name="slow")
    async def slow(body: int):
        return leave() if body == 2 else None

    async with backend(RustStream("conformance", broker)) as t:
        for body in range(6):
            await t.publish(body, "s")
        await comes(t, lambda: t.stream("s").length == 4)
        await t.advance(3)
        assert t.stream("s").values == [2, 3, 4, 5]
        assert len(t.pending("s", "slow")) == 1


async def test_what_all_groups_have_acknowledged_goes_where_the_server_can(backend: Backend):
    app = backend.app(handler, source(Trim.acked()))
    if backend.name not in DELETING:
        with pytest.raises(ServerTooOldError, match=r"Trim\.acked\(\) of main .* Redis 8\.2\.0"):
            async with backend(app):
                pass
        return
    async with backend(app) as t:
        for body in range(5):
            await t.publish(body, "s")
        await comes(t, lambda: t.stream("s").length == 0)
        t.subscriber("main").assert_called(5)
        assert t.pending("s", "g") == []
