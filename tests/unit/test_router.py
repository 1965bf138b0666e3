"""Routers, and a broker that includes them."""

import msgspec
import pytest

from ruststream.errors import ConfigError
from ruststream.redis.broker import RedisBroker
from ruststream.redis.stream import RedisStream
from ruststream.router import Router


class Payment(msgspec.Struct):
    id: int


async def handler(payment: Payment): ...


def test_a_router_collects_and_returns_the_function():
    router = Router(prefix="eu.")
    assert router.subscriber(RedisStream("payments", group="ledger"))(handler) is handler
    router.add_subscriber("refunds", handler, workers=3)
    broker = RedisBroker("redis://localhost", default_group="books")
    broker.include(router)
    assert [(made.name, made.stream, made.group, made.workers) for made in broker.subscribers] == [
        ("handler", "eu.payments", "ledger", 1),
        ("handler-2", "eu.refunds", "books", 3),
    ]


def test_the_prefix_goes_into_the_delay_key():
    router = Router(prefix="eu.")
    router.add_subscriber(RedisStream("payments", group="ledger"), handler)
    broker = RedisBroker("redis://localhost")
    broker.include(router)
    assert broker.subscribers[0].delay_key == "{eu.payments}:ledger:delayed"


def test_mistakes_show_where_they_are_made():
    router = Router()
    with pytest.raises(ConfigError, match="wokers"):
        router.subscriber("payments", wokers=3)(handler)
    with pytest.raises(ConfigError, match="stream's name"):
        router.add_subscriber(3, handler)
    with pytest.raises(ConfigError, match="prefix"):
        Router(prefix=3)


def test_a_group_is_asked_for_when_the_router_is_included():
    router = Router()
    router.add_subscriber("payments", handler)
    with pytest.raises(ConfigError, match="default_group"):
        RedisBroker("redis://localhost").include(router)


def test_a_router_is_included_once():
    router = Router()
    broker = RedisBroker("redis://localhost", default_group="g")
    broker.include(router)
    with pytest.raises(ConfigError, match="already"):
        broker.include(router)
    with pytest.raises(ConfigError, match="Router"):
        broker.include("router")
