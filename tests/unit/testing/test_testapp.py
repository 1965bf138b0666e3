"""A test publishes, lets time pass, and looks at what the handlers did."""

import asyncio
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from ruststream import Context, RustStream, Settle, ack, drop, leave, outgoing, retry
from ruststream.errors import ConfigError
from ruststream.redis import RedisBroker, RedisStream
from ruststream.testing import TestApp


class Payment(msgspec.Struct):
    id: int
    account: str = "acc"


def payments_app(min_idle: float = 30.0, **options: Any) -> tuple[RustStream, Any]:
    """The guide's service; its server is one that nobody can reach."""
    broker = RedisBroker("redis://localhost:1")
    source = RedisStream.claiming("payments", min_idle=min_idle, group="ledger")

    @broker.subscriber(source, **options)
    async def post_payment(payment: Payment, ctx: Context):
        if payment.account.startswith("migrating-"):
            return retry()
        return None

    return RustStream("payments", broker), post_payment


def app_of(handler: Any, source: RedisStream | None = None, **options: Any) -> RustStream:
    broker = RedisBroker("redis://localhost:1")
    broker.add_subscriber(source or RedisStream.claiming("s", min_idle=10, group="g"), handler, **options)
    return RustStream("app", broker)


async def test_an_entry_is_handled_and_settled_when_publish_returns():
    app, post_payment = payments_app()
    async with TestApp(app) as t:
        entry_id = await t.publish(Payment(1), "payments", key=b"acc", headers={"X-Trace": "7"})
        record = t.subscriber(post_payment).assert_called(1).assert_outcome(ack()).assert_called_with(Payment(1))
        (call,) = record.calls
        assert (call.entry_id, call.key, call.delivery_count, call.idle) == (entry_id, b"acc", 1, 0)
        assert (call.payload, call.headers["x-trace"]) == (b'{"id":1,"account":"acc"}', "7")
        assert t.pending("payments", "ledger") == []
        assert t.stream("payments").values == [{"id": 1, "account": "acc"}]


async def test_a_retry_comes_back_after_min_idle_and_not_before():
    app, post_payment = payments_app()
    async with TestApp(app) as t:
        await t.publish(Payment(1, "migrating-1"), "payments")
        t.subscriber(post_payment).assert_called(1).assert_outcome(retry())
        await t.advance(15)
        t.subscriber(post_payment).assert_called(1)
        assert [(row.idle, row.delivery_count) for row in t.pending("payments", "ledger")] == [(15, 1)]
        await t.advance(timedelta(seconds=15))
        record = t.subscriber(post_payment).assert_called(2).assert_outcomes(retry(), "retry")
        assert [(call.delivery_count, call.idle) for call in record.calls] == [(1, 0), (2, 30)]
        assert t.stream("payments").length == 1


async def test_what_falls_due_happens_in_the_order_of_its_time():
    times: list[tuple[float, str]] = []

    def note(name: str, app_name: str) -> Any:
        async def handler(body: bytes, ctx: Context):
            times.append((t.now - began, name))
            return retry()

        return handler

    broker = RedisBroker("redis://localhost:1")
    for name, min_idle in (("slow", 7), ("quick", 3)):
        source = RedisStream.claiming(name, min_idle=min_idle, group="g")
        broker.add_subscriber(source, note(name, "app"), name=name)
    async with TestApp(RustStream("app", broker)) as t:
        began = t.now
        await t.publish(b"", "slow")
        await t.publish(b"", "quick")
        await t.advance(10)
    assert times == [(0, "slow"), (0, "quick"), (3, "quick"), (6, "quick"), (7, "slow"), (9, "quick")]


async def test_retries_by_copy_come_back_after_their_growing_delay():
    async def handler(body: bytes):
        return retry()

    app = app_of(handler, RedisStream("s", group="g"))
    async with TestApp(app) as t:
        await t.publish(b"x", "s")
        # The first copy comes at once, the second after 0.1 s, the third after 0.2 s.
        t.subscriber(handler).assert_called(2)
        await t.advance(0.1)
        t.subscriber(handler).assert_called(3)
        await t.advance(0.2)
        record = t.subscriber(handler).assert_called(4)
        assert [call.delivery_count for call in record.calls] == [1, 2, 3, 4]
        assert len(t.published("s")) == 0, "each copy was taken off when the next one was made"


async def test_the_whole_reaction_settles_handlers_that_publish_included():
    broker = RedisBroker("redis://localhost:1")

    @broker.subscriber(RedisStream.claiming("orders", min_idle=5, group="g"))
    async def on_order(order: Payment, ctx: Context):
        await asyncio.sleep(0.002)
        await ctx.publish(Payment(order.id + 1, "next"), "bills", key=b"k")

    @broker.subscriber(RedisStream.claiming("bills", min_idle=5, group="g"))
    async def on_bill(bill: Payment, ctx: Context):
        await asyncio.gather(ctx.publish({"n": bill.id}, "out"), ctx.publish(b"raw", "out"))

    async with TestApp(RustStream("app", broker)) as t:
        await t.publish(Payment(1), "orders")
        t.subscriber(on_order).assert_called(1)
        t.subscriber("on_bill").assert_called(1).assert_called_with(Payment(2, "next"))
        assert [entry.value for entry in t.published("out")] == [{"n": 2}, b"raw"]
        (bill,) = t.published("bills")
        assert (bill.key, bill.decode(Payment)) == (b"k", Payment(2, "next"))
        assert t.published("orders") == []


async def test_every_outcome_and_exception_is_written_down():
    async def handler(value: int, ctx: Context):
        if value == 0:
            ctx.settle(drop())
        if value == 1:
            raise Settle(leave())
        if value == 2:
            raise ValueError("no")
        return ack() if value == 3 else None

    app = app_of(handler, on_error={ValueError: drop()})
    async with TestApp(app) as t:
        for value in (0, 1, 2, 3, "x"):
            await t.publish(value, "s")
        record = t.subscriber(handler).assert_called(4).assert_raised(ValueError, call=2)
        record.assert_outcomes(drop(), leave(), drop(), ack(), leave())
        assert record.values == [0, 1, 2, 3]
        last = record.deliveries[-1]
        assert (last.started, last.payload) == (False, b'"x"')
        assert "Expected `int`, got `str`" in str(last.exception)
        assert len(t.pending("s", "g")) == 2


async def test_sync_handlers_and_real_waits_are_waited_for():
    def in_a_thread(body: bytes):
        time.sleep(0.01)
        return drop()

    app = app_of(in_a_thread, workers=2)
    async with TestApp(app) as t:
        await t.publish(b"", "s")
        t.subscriber(in_a_thread).assert_outcome(drop())


async def test_the_app_is_as_it_was_and_can_be_tested_again():
    app, post_payment = payments_app()
    for _ in range(2):
        async with TestApp(app) as t:
            await t.publish(Payment(1), "payments")
            t.subscriber(post_payment).assert_called(1)
            assert str(t.subscriber(post_payment).calls[0].entry_id) == "1767225600000-0"
        assert (app.health().state, app.drain_timeout) == ("stopped", 30.0)
    assert app.brokers[0].address == "redis://localhost:1"


async def test_brokers_of_one_server_share_it_and_others_do_not():
    first, same, other = (RedisBroker(f"redis://{host}:1") for host in ("a", "a", "b"))
    seen: list[str] = []
    for name, broker in (("first", first), ("same", same), ("other", other)):

        async def handler(body: bytes, name: str = name):
            seen.append(name)

        broker.add_subscriber(RedisStream.claiming("s", min_idle=5, group=name), handler, name=name)
    async with TestApp(RustStream("app", first, same, other)) as t:
        await t.publish(b"", "s")
    assert sorted(seen) == ["first", "same"]


async def test_a_day_with_a_hundred_retries_passes_in_a_moment():
    app, post_payment = payments_app(min_idle=864)
    async with TestApp(app) as t:
        await t.publish(Payment(1, "migrating-1"), "payments")
        began = time.perf_counter()
        await t.advance(86_400)
        took = time.perf_counter() - began
        t.subscriber(post_payment).assert_called(101)
    assert took < 0.5, "17 ms where nothing else runs"


async def test_a_quiet_day_needs_no_step_of_its_own():
    app, _ = payments_app()
    async with TestApp(app) as t:
        await t.publish(Payment(1), "payments")
        before = t.app.health().subscriptions[0].counts["reads"]
        await t.advance(86_400)
        assert t.app.health().subscriptions[0].counts["reads"] - before < 10


async def test_batches_are_handed_over_when_nothing_else_can_happen():
    async def handler(values: list[int]):
        return [retry() if value == 1 else None for value in values]

    app = app_of(handler, batch=10, batch_wait=60)
    async with TestApp(app) as t:
        for value in range(3):
            await t.publish(value, "s", wait=False)
        t.subscriber(handler).assert_not_called()
        await t.publish(3, "s")
        record = t.subscriber(handler).assert_called(4).assert_outcomes(ack(), retry(), ack(), ack())
        assert [[call.value for call in batch] for batch in record.batches] == [[0, 1, 2, 3]]
        await t.publish("no number", "s")
        assert (record.deliveries[-1].started, record.deliveries[-1].outcome) == (False, leave())
        await t.advance(10)
        assert [[call.value for call in batch] for batch in record.batches] == [[0, 1, 2, 3], [1]]


async def test_a_timeout_passes_by_the_tests_clock():
    async def handler(value: int):
        await asyncio.Event().wait()

    app = app_of(handler, timeout=5, on_error=drop())
    async with TestApp(app) as t:
        await t.publish(1, "s", wait=False)
        await t.advance(4)
        await t.advance(2)
        t.subscriber(handler).assert_raised(TimeoutError).assert_outcome(drop())


@pytest.mark.parametrize("batch", [None, 5])
async def test_a_timeout_that_was_swallowed_is_no_ack(batch: int | None):
    """The handler returns None after its cancellation: its entry is settled as a TimeoutError's is, and so it says."""

    async def handler(value: Any):
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    async def batch_handler(values: list[int]):
        await handler(values)

    app = app_of(handler if batch is None else batch_handler, timeout=5, on_error=drop(), batch=batch)
    async with TestApp(app) as t:
        await t.publish(1, "s", wait=False)
        await t.advance(1, wait=False)
        await t.advance(6)
        t.subscriber(handler if batch is None else batch_handler).assert_outcomes(drop())
        assert t.app.health().subscriptions[0].counts["dropped"] == 1


async def test_brokers_whose_subscriptions_have_one_name_are_told_apart():
    apps = [payments_app() for _ in range(3)]
    app = RustStream("three workers", *(one.brokers[0] for one, _ in apps))
    async with TestApp(app) as t:
        for number in range(9):
            await t.publish(Payment(number, "migrating-1"), "payments")
        await t.crash(apps[1][1])
        await t.advance(30)
        names = [t.subscriber(handler).name for _, handler in apps]
        assert names == ["post_payment", "post_payment-2", "post_payment-3"]
        assert sum(len(t.subscriber(name).calls) for name in names) == 18
        consumers = {call.consumer for call in t.subscriber("post_payment-2").calls}
        assert consumers <= {"post_payment-2-1", "post_payment-2-2"}


async def test_a_message_knows_its_stream_and_a_reply_is_published():
    @outgoing("orders")
    class Order(msgspec.Struct):
        id: int

    async def handler(order: Order):
        return {"done": order.id}

    app = app_of(handler, RedisStream.recovering("orders", min_idle=10, group="g"), reply_to="done")
    async with TestApp(app) as t:
        await t.publish(Order(1))
        t.subscriber(handler).assert_called_with(Order(1)).assert_outcome(ack())
        assert t.published("orders") == []
        assert [entry.value for entry in t.published("done")] == [{"done": 1}]
        with pytest.raises(ConfigError, match="no subscriber of the app reads stream None"):
            await t.publish(1)
