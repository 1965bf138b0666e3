"""Crashes, thefts and lost connections, when the test says so."""

import asyncio
import logging
from typing import Any

import pytest

from ruststream import Context, RustStream, ack
from ruststream.errors import ConfigError, ConnectError, PublishError, PublishUncertainError, RustStreamError
from ruststream.redis import RedisBroker, RedisStream
from ruststream.testing import TestApp

SOURCE = RedisStream.claiming("s", min_idle=30, group="g")


def app_of(handler: Any, source: RedisStream = SOURCE, **options: Any) -> RustStream:
    broker = RedisBroker("redis://localhost:1")
    broker.add_subscriber(source, handler, **options)
    return RustStream("app", broker)


async def test_what_a_crashed_subscription_had_in_hand_is_recovered():
    hangs = asyncio.Event()

    async def handler(value: int, ctx: Context):
        if ctx.delivery_count == 1:
            await hangs.wait()

    async with TestApp(app_of(handler)) as t:
        for value in range(3):
            await t.publish(value, "s", wait=False)
        await t.crash(handler)
        assert [row.consumer for row in t.pending("s", "g")] == ["handler-1"] * 3
        await t.advance(29)
        t.subscriber(handler).assert_called(1)
        await t.advance(1)
        record = t.subscriber(handler).assert_called(4)
        assert [(call.value, call.consumer, call.idle) for call in record.calls[1:]] == [
            (value, "handler-2", 30) for value in range(3)
        ]
        assert t.pending("s", "g") == []


async def test_an_outcome_of_a_crashed_handler_is_sent_nowhere():
    async def handler(value: int):
        try:
            await asyncio.Event().wait()
        finally:
            return ack()  # noqa: B012 - what a handler may do, deaf to its end

    async with TestApp(app_of(handler)) as t:
        await t.publish(1, "s", wait=False)
        await t.crash("handler")
        assert len(t.pending("s", "g")) == 1


async def test_a_handler_whose_entry_was_stolen_finds_out_and_removes_nothing(caplog: pytest.LogCaptureFixture):
    lost = []

    async def handler(value: int, ctx: Context):
        await ctx.lease_lost.wait()
        lost.append(ctx.entry_id)

    caplog.set_level(logging.CRITICAL)
    async with TestApp(app_of(handler)) as t:
        entry_id = await t.publish(1, "s", wait=False)
        await t.advance(20)
        assert lost == []
        t.steal(t.subscriber(handler).calls[0])
        await t.advance(6)
        assert lost == [entry_id]
        assert [(row.consumer, row.delivery_count) for row in t.pending("s", "g")] == [("thief", 2)]


async def test_an_entry_is_stolen_by_its_id_as_text():
    async def handler(value: int, ctx: Context):
        await ctx.lease_lost.wait()

    async with TestApp(app_of(handler)) as t:
        entry_id = await t.publish(1, "s", wait=False)
        t.steal(str(entry_id))
        assert [row.consumer for row in t.pending("s", "g")] == ["thief"]
        await t.advance(20)


async def test_a_held_handler_keeps_its_entry_however_long_it_takes():
    release = asyncio.Event()

    async def handler(value: int):
        await release.wait()

    async with TestApp(app_of(handler)) as t:
        await t.publish(1, "s", wait=False)
        await t.advance(3600)
        assert t.pending("s", "g")[0].idle <= 10
        release.set()
        await t.settle()
        t.subscriber(handler).assert_called(1).assert_outcome(ack())
        assert t.pending("s", "g") == []


async def test_an_ack_that_was_lost_is_sent_again(caplog: pytest.LogCaptureFixture):
    async def handler(value: int):
        pass

    caplog.set_level(logging.CRITICAL)
    async with TestApp(app_of(handler)) as t:
        t.fail_next("ack")
        await t.publish(1, "s")
        assert len(t.pending("s", "g")) == 1
        await t.advance(1)
        assert t.pending("s", "g") == []
        t.subscriber(handler).assert_called(1)


async def test_leaving_lets_a_lost_ack_be_sent_again(caplog: pytest.LogCaptureFixture):
    """The pause before it is the test's time, which stands: nobody waits a second of real time for it."""

    async def handler(value: int):
        pass

    caplog.set_level(logging.INFO, "ruststream")
    async with TestApp(app_of(handler)) as t:
        t.fail_next("ack")
        await t.publish(1, "s")
    assert [text for text in caplog.messages if "drain complete" in text and "acked 1" in text]
    assert not [text for text in caplog.messages if "in time" in text or "incomplete" in text]


async def test_a_read_that_fails_is_read_again(caplog: pytest.LogCaptureFixture):
    async def handler(value: int):
        pass

    caplog.set_level(logging.CRITICAL)
    async with TestApp(app_of(handler)) as t:
        t.fail_next("read")
        await t.publish(1, "s")
        await t.publish(2, "s")
        await t.advance(1)
        t.subscriber(handler).assert_called(2)
        assert app_counts(t)["reconnects"] == 1


async def test_a_publish_fails_as_its_error_says():
    failed = []
    errors = [None, ConnectError("cut"), ValueError("OOM command not allowed")]

    async def handler(value: int, ctx: Context):
        t.fail_next("publish", errors[value])
        try:
            await ctx.publish(b"", "out")
        except RustStreamError as error:
            failed.append(type(error))

    async with TestApp(app_of(handler)) as t:
        for value in range(3):
            await t.publish(value, "s")
        assert t.published("out") == []
    assert failed == [PublishUncertainError, PublishUncertainError, PublishError]


def app_counts(t: TestApp) -> Any:
    return t.app.health().subscriptions[0].counts


async def test_a_refused_publish_of_the_test_is_its_own_error():
    async def handler(value: int):
        pass

    async with TestApp(app_of(handler)) as t:
        t.fail_next("publish")
        with pytest.raises(PublishUncertainError):
            await t.publish(1, "s")
        t.fail_next("publish", ValueError("OOM command not allowed"))
        with pytest.raises(PublishError, match="OOM command not allowed"):
            await t.publish(1, "s")
        t.subscriber(handler).assert_not_called()


async def test_what_cannot_fail_or_be_stolen_says_so():
    async def handler(value: int):
        pass

    async with TestApp(app_of(handler)) as t:
        with pytest.raises(ConfigError, match="'read', 'ack', 'publish', not 'sleep'"):
            t.fail_next("sleep")
        for error in ("OOM", ConnectError, 1):
            with pytest.raises(ConfigError, match="fail_next takes an exception"):
                t.fail_next("ack", error)  # type: ignore[arg-type]
        entry_id = await t.publish(1, "s")
        for entry in (entry_id, str(entry_id)):
            with pytest.raises(ConfigError, match=f"{entry_id} is not pending in any group"):
                t.steal(entry)
        for entry in ("one", 1, None):
            with pytest.raises(ConfigError, match=r"steal\(entry\) must be an entry id"):
                t.steal(entry)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="nobody is no subscription of the app; there are: handler"):
            await t.crash("nobody")
