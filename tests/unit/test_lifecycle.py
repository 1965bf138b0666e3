"""What an app's subscriptions do from start to end, on stand-ins."""

import asyncio
import logging

import msgspec
import pytest

from ruststream.agreement import resolved
from ruststream.errors import ConfigError, ConnectError, SubscribeError
from ruststream.lifecycle import Life
from ruststream.redis import RedisBroker, RedisStream, StreamStart


class Payment(msgspec.Struct):
    id: int


async def handler(payment: Payment): ...


def broker_of(*sources, url="redis://localhost"):
    broker = RedisBroker(url)
    for position, source in enumerate(sources):
        broker.add_subscriber(source, handler, name=f"s{position}")
    return broker


NEW = RedisStream("payments", group="ledger")
RECLAIM = RedisStream.reclaim("payments", min_idle=30, group="ledger")
CLAIMING = RedisStream.claiming("orders", min_idle=30, group="ledger")


def soon(seconds=0.05):
    return asyncio.get_running_loop().time() + seconds


@pytest.fixture
async def life(subscriptions):
    life = Life([broker_of(CLAIMING, RECLAIM)], {"db": 1})
    yield life
    await life.close()


async def test_everything_is_open_before_anything_reads(subscriptions, life):
    await life.open()
    assert subscriptions.log == ["open s0", "open s1"]
    assert [made.app_state for made in subscriptions.made] == [{"db": 1}] * 2
    life.start()
    assert subscriptions.log[2:] == ["start s0", "start s1"]
    assert life.names == ["s0", "s1"]


async def test_what_was_opened_is_closed_where_a_later_one_fails(subscriptions, no_server, bells, life):
    subscriptions.refuses = SubscribeError("no such group")
    with pytest.raises(SubscribeError):
        await life.open()
    await life.close()
    assert subscriptions.log == ["open s0", "close s0"]
    assert no_server.made[0].closed == 1
    assert [bell.closed for bell in bells] == [1]


async def test_brokers_that_were_connected_are_closed_where_a_later_one_fails(subscriptions, no_server, bells):
    first, second = broker_of(CLAIMING), broker_of(RECLAIM)
    life = Life([first, second], None)
    connect = second.connect

    async def refuse(bell):
        no_server.refuses = ConnectError("nobody is there")
        await connect(bell)

    second.connect = refuse
    with pytest.raises(ConnectError):
        await life.open()
    await life.close()
    assert [client.closed for client in no_server.made] == [1, 1]
    assert subscriptions.made == []


async def test_a_clean_drain_stops_all_before_it_waits_for_one(subscriptions, life, caplog):
    await life.open()
    life.start()
    subscriptions.log.clear()
    with caplog.at_level(logging.INFO, "ruststream"):
        assert await life.drain(soon())
    assert subscriptions.log == [
        "stop_reading s0",
        "stop_reading s1",
        "release s0",
        "release s1",
        "flush s0",
        "flush s1",
    ]
    (record,) = caplog.records
    assert record.getMessage().startswith("drain complete in 0.0")
    assert (
        "s0: acked 10, dropped 0, dead-lettered 0, retried 2, released 3, left pending 1; s1: acked"
        in record.getMessage()
    )


async def test_handlers_get_the_time_they_need(subscriptions, life):
    subscriptions.handlers = ("1-0",)
    await life.open()
    asyncio.get_running_loop().call_later(0.05, lambda: [made.end_handlers() for made in subscriptions.made])
    assert await life.drain(soon(5))
    assert "cancel s0" not in subscriptions.log


async def test_at_the_deadline_the_rest_is_cancelled_and_listed(subscriptions, life, caplog):
    subscriptions.handlers = tuple(f"{number}-0" for number in range(60))
    await life.open()
    assert not await life.drain(soon(0.01))
    assert subscriptions.log[-6:] == ["cancel s0", "cancel s1", "release s0", "release s1", "flush s0", "flush s1"]
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors[0] == (
        "subscription s0 (stream orders, group ledger) did not finish 60 of its entries, which stay pending: "
        + ", ".join(f"{number}-0" for number in range(50))
        + " and 10 more"
    )
    assert errors[-1].startswith("drain incomplete")
    assert not any("drain complete" in message for message in errors)
    await life.close()
    assert not life.stuck


async def test_no_time_at_all_is_a_deadline_too(subscriptions, life):
    subscriptions.handlers = ("1-0",)
    await life.open()
    assert not await life.drain(soon(0))
    assert "cancel s0" in subscriptions.log


async def test_a_server_that_is_away_does_not_hold_the_stop(subscriptions, life, caplog):
    subscriptions.answers = False
    await life.open()
    began = asyncio.get_running_loop().time()
    assert not await life.drain(soon(0.01))
    assert asyncio.get_running_loop().time() - began < 1
    assert "did not finish 1 of its entries, which stay pending: 9-9" in caplog.text


async def test_handlers_that_do_not_end_are_known(subscriptions, life):
    subscriptions.handlers, subscriptions.deaf = ("1-0",), True
    await life.open()
    assert not await life.drain(soon(0))
    await life.close()
    assert life.stuck


async def test_cutting_short_waits_for_nothing(subscriptions, life, caplog):
    subscriptions.handlers = ("1-0",)
    await life.open()
    life.cut_short()
    assert "stay pending: 1-0" in caplog.text
    assert "stopped at once" in caplog.text


async def test_one_that_fails_to_stop_does_not_hold_the_others(subscriptions, life, caplog):
    await life.open()

    async def refuse():
        raise SubscribeError("broken pipe")

    subscriptions.made[0].flush = refuse
    assert not await life.drain(soon())
    assert "flush s1" in subscriptions.log
    assert "subscription s0 did not flush acks: broken pipe" in caplog.text


async def test_the_first_failure_is_told_by_name(subscriptions, life):
    await life.open()
    watch = asyncio.ensure_future(life.failure())
    await asyncio.sleep(0)
    subscriptions.made[1].failed.set_result(SubscribeError("WRONGTYPE"))
    name, error = await watch
    assert name == "s1"
    assert str(error) == "WRONGTYPE"


async def test_a_watch_that_breaks_is_a_failure(subscriptions, life):
    await life.open()
    subscriptions.made[0].failed.set_exception(RuntimeError("broken"))
    name, error = await life.failure()
    assert name == "s0"
    assert str(error) == "broken"


async def test_without_subscriptions_nothing_fails(subscriptions):
    life = Life([broker_of()], None)
    await life.open()
    life.start()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(life.failure(), 0.01)
    assert await life.drain(soon())
    await life.close()


async def test_health_shows_each_subscription(subscriptions, life):
    await life.open()
    life.start()
    subscriptions.made[1].state, subscriptions.made[1].error = "retrying", "connection refused"
    first, second = life.health()
    assert (first.name, first.stream, first.group, first.consumer) == ("s0", "orders", "ledger", "consumer-of-s0")
    assert (first.healthy, first.counts["acked"]) == (True, 10)
    assert (second.healthy, second.error) == (False, "connection refused")


def test_renewal_follows_the_recovery_of_the_same_group():
    other = RedisStream.reclaim("payments", min_idle=5, group="ledger")
    (_, new), *_ = resolved([broker_of(NEW, RECLAIM, other)])
    assert (new.source.min_idle, new.renew_stalled) == (5.0, 100.0)
    chosen = RedisStream("payments", group="ledger", min_idle=7)
    (_, new), *_ = resolved([broker_of(chosen, RECLAIM)])
    assert new.source.min_idle == 7


@pytest.mark.parametrize("reverse", [False, True])
def test_a_group_begins_where_one_of_its_subscriptions_says(reverse):
    """Whichever is opened first creates the group: a reclaim that says nothing must not begin it at the end."""
    sources = [RedisStream("payments", group="ledger", start_id=StreamStart.BEGINNING), RECLAIM, CLAIMING]
    found = resolved([broker_of(*(reversed(sources) if reverse else sources))])
    starts = {subscriber.stream: subscriber.source.start_id for _, subscriber in found}
    assert starts == {"payments": "0", "orders": "$"}


def test_a_group_begins_in_one_place():
    one = RedisStream("payments", group="ledger", start_id=StreamStart.BEGINNING)
    other = RedisStream.reclaim("payments", min_idle=5, group="ledger", start_id="7-0")
    with pytest.raises(ConfigError, match=r"s0 and s1 .* '0' .* '7-0'"):
        resolved([broker_of(one, other)])


def test_two_streams_keep_their_delayed_entries_apart():
    """One sorted set for two streams is refused by the names of both; for two groups of one stream it is not."""
    one = RedisStream.recovering("payments", min_idle=30, group="ledger", delay_key="later")
    other = RedisStream.recovering("payments", min_idle=30, group="audit", delay_key="later")
    resolved([broker_of(one, other, one)])
    third = RedisStream.recovering("orders", min_idle=30, group="ledger", delay_key="later")
    with pytest.raises(ConfigError, match=r"s0 \(stream payments\) and s1 \(stream orders\) .* delay_key 'later'"):
        resolved([broker_of(one, third)])
    resolved([broker_of(one), broker_of(third, url="redis://elsewhere")])


def test_the_recovery_may_be_another_brokers_of_the_same_server():
    (_, new), _ = resolved([broker_of(NEW), broker_of(RECLAIM)])
    assert new.source.min_idle == 30


@pytest.mark.parametrize(
    "other",
    [
        broker_of(RedisStream.reclaim("payments", min_idle=30, group="other")),
        broker_of(RedisStream.reclaim("other", min_idle=30, group="ledger")),
        broker_of(RECLAIM, url="redis://elsewhere"),
    ],
)
def test_a_group_that_nobody_recovers_gives_a_warning(other, caplog):
    (_, new), _ = resolved([broker_of(NEW), other])
    assert new.source.min_idle is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    for part in ("s0", "ledger", "payments", "RedisStream.reclaim", "RedisStream.recovering"):
        assert part in record.getMessage()


def test_handlers_that_share_a_group_give_a_warning(caplog):
    """Copied and changed, the group forgotten: half of each one's entries would be missing without a word."""
    broker = RedisBroker("redis://localhost")

    @broker.subscriber(CLAIMING)
    async def one(body: bytes): ...

    @broker.subscriber(CLAIMING)
    async def other(body: bytes): ...

    resolved([broker])
    (record,) = caplog.records
    for part in ("one, other", "ledger", "orders", "a group of its own"):
        assert part in record.getMessage()


def test_a_group_that_is_recovered_gives_none(caplog):
    resolved([broker_of(NEW, RECLAIM, CLAIMING)])
    assert caplog.records == []
