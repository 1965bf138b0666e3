"""What is refused before anything runs: options, handlers, addresses, passwords. The message names what to change."""

import asyncio
import contextlib
import logging
import socket
import time
import traceback
from dataclasses import dataclass

import pytest

from eventually import eventually_async
from ruststream import Backoff, Context, RustStream, drop, leave
from ruststream.errors import ConfigError, ConnectError, RustStreamError, SubscribeError
from ruststream.redis import GroupPosition, RedisBroker, RedisStream
from servers import Server, free_port

SECRET = "hunter2-and-more"


async def handle(body: bytes):
    """A handler with which nothing is wrong."""


async def refusal_of(broker: RedisBroker) -> RustStreamError:
    """Start an app that can't start; return its error, having looked that nothing of it is left running."""
    app = RustStream("test", broker)
    with pytest.raises(RustStreamError) as refusal:
        await app.__aenter__()
    assert app.health().state == "failed"
    assert not app.health().healthy
    return refusal.value


@pytest.mark.parametrize("constructor", ["new", "reclaim", "claiming", "recovering"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("group", ""),
        ("group", 7),
        ("min_idle", 0),
        ("min_idle", -1),
        ("min_idle", "30"),
        ("min_idle", float("nan")),
        ("count", 0),
        ("count", True),
        ("count", 2.5),
        ("block", 0),
        ("block", -1),
        ("consumer", ""),
        ("start_id", "yesterday"),
        ("start_at", "$"),
        ("create_group", "no"),
        ("on_missing_group", "ignore"),
        ("fields", ""),
        ("delay_key", b"x"),
        ("cuont", 10),
    ],
)
def test_a_wrong_option_of_a_stream(constructor, option, value):
    """ConfigError, a ValueError, names the option."""
    options = {"group": "g", "min_idle": 30, option: value}
    with pytest.raises(ConfigError, match=option) as refusal:
        getattr(RedisStream, constructor)("s", **options)

    assert isinstance(refusal.value, ValueError)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "workers"),
        ({"workers": 1.5}, "workers"),
        ({"by_key": "account"}, "by_key"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"workers": 8, "max_in_flight": 4}, "max_in_flight.*workers"),
        ({"codec": "yaml"}, "codec"),
        ({"on_error": {ValueError: "drop"}}, "on_error"),
        ({"on_error": {BaseException: drop()}}, "on_error"),
        ({"on_decode_error": leave}, "on_decode_error"),
        ({"backoff": 5}, "backoff"),
        ({"renew_stalled": 0}, "renew_stalled"),
        ({"name": ""}, "name"),
        ({"worker": 8}, "did you mean workers"),
    ],
)
def test_a_wrong_option_of_a_subscriber(options, words):
    """ConfigError at the decorator, naming the option."""
    with pytest.raises(ConfigError, match=words):
        RedisBroker("redis://localhost").subscriber(RedisStream("s", group="g"), **options)(handle)


def test_wrong_options_of_broker_and_app():
    """The rest of the construction: none of it connects, all of it names the argument."""
    cases = [
        (lambda: RedisBroker("localhost:6379"), "scheme"),
        (lambda: RedisBroker("http://localhost"), "http"),
        (lambda: RedisBroker("redis://localhost/db"), "database"),
        (lambda: RedisBroker("redis://localhost", reconnect=5), "reconnect"),
        (lambda: RedisBroker("redis://u:p@localhost", password="p"), "password"),
        (lambda: RedisBroker("redis://localhost", default_group=""), "default_group"),
        (lambda: RedisBroker("redis://localhost", codec="yaml"), "codec"),
        (lambda: RustStream("payments"), "broker"),
        (lambda: RustStream("payments", "redis://localhost"), "RedisBroker"),
        (lambda: RustStream("p", RedisBroker("redis://localhost"), drain_timeout=-1), "drain_timeout"),
        (lambda: Backoff(2, 1), "maximum"),
        (lambda: GroupPosition.after("5-x"), "after"),
    ]
    for make, word in cases:
        with pytest.raises(ConfigError, match=word):
            make()


class Unknown:
    """No type that msgspec knows."""


@dataclass
class Holder:
    """A type of which a part is unknown."""

    part: Unknown


def takes_two(body: bytes, second: bytes): ...
def takes_unknown(body: Unknown): ...
def takes_unknown_part(body: Holder): ...
def takes_undefined(body: "Nowhere"): ...  # noqa: F821
def takes_keyword(body: bytes, *, level: int): ...
def takes_anything(*args: bytes): ...


@pytest.mark.parametrize("handler", [takes_two, takes_unknown, takes_unknown_part, takes_keyword])
def test_a_parameter_that_nobody_can_fill(handler):
    """ConfigError names handler and parameter when it is registered, not at the first message."""
    parameter = list(handler.__annotations__)[-1]
    with pytest.raises(ConfigError) as refusal:
        RedisBroker("redis://localhost").add_subscriber(RedisStream("s", group="g"), handler)

    assert handler.__name__ in str(refusal.value)
    assert parameter in str(refusal.value)


@pytest.mark.parametrize("handler", [takes_anything, takes_undefined, "not a function", takes_two.__class__])
def test_a_handler_that_says_nothing_of_what_it_wants(handler):
    """*args, a name that is defined nowhere, no function at all: refused, with the handler named."""
    with pytest.raises(ConfigError, match=getattr(handler, "__name__", str(handler))):
        RedisBroker("redis://localhost").add_subscriber(RedisStream("s", group="g"), handler)


@pytest.mark.parametrize("misspelt", [{"minidle": 30}, {"grup": "g"}])
def test_a_misspelt_option_is_answered_with_the_nearest_there_is(misspelt):
    """Also where it is min_idle or group that is meant."""
    wanted = {"minidle": "min_idle", "grup": "group"}[next(iter(misspelt))]
    with pytest.raises(ConfigError, match=f"did you mean {wanted}"):
        RedisStream.claiming("s", **{"min_idle": 30, "group": "g"} | misspelt)


def test_a_group_that_is_missing_is_said_at_registration():
    """Both places where a group can be given are in the message."""
    broker = RedisBroker("redis://localhost")
    for source in ("payments", RedisStream("payments")):
        with pytest.raises(ConfigError, match=r"payments.*group=.*default_group="):
            broker.add_subscriber(source, handle)

    RedisBroker("redis://localhost", default_group="g").add_subscriber("payments", handle)


async def test_an_address_where_nobody_listens():
    """ConnectError names the address and says what to check; it does not try for long."""
    broker = RedisBroker(f"redis://127.0.0.1:{(port := free_port())}")
    broker.add_subscriber(RedisStream("s", group="g"), handle)
    began = time.monotonic()

    error = await refusal_of(broker)

    assert isinstance(error, ConnectError)
    assert isinstance(error, ConnectionError)
    assert f"127.0.0.1:{port}" in str(error)
    assert "check the address" in str(error)
    assert time.monotonic() - began < 2


async def test_a_host_that_there_is_not():
    """A name that does not resolve."""
    error = await refusal_of(RedisBroker("redis://no-such-host.invalid:6379"))

    assert isinstance(error, ConnectError)
    assert "no-such-host.invalid" in str(error)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"-ERR unknown\r\n" * 3, b"\xff" * 100, None])
async def test_a_server_that_is_no_redis(answer):
    """Whatever listens there, it answers wrong or hangs up: ConnectError, soon."""

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError):
            await reader.read(1)
            if answer:
                writer.write(answer)
                await writer.drain()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    began = time.monotonic()

    error = await refusal_of(RedisBroker(f"redis://127.0.0.1:{port}"))
    server.close()

    assert isinstance(error, ConnectError)
    assert str(port) in str(error)
    assert time.monotonic() - began < 3


async def test_a_server_that_says_nothing():
    """The connection comes up and then there is silence: ConnectError after the five seconds that a start may take."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began = time.monotonic()
        error = await refusal_of(RedisBroker(f"redis://127.0.0.1:{port}"))

    assert isinstance(error, ConnectError)
    assert str(port) in str(error)
    assert time.monotonic() - began < 12


@pytest.mark.parametrize(
    "make",
    [
        lambda server: RedisBroker(f"redis://:{SECRET}@{server.host}:{server.port}"),
        lambda server: RedisBroker(f"redis://someone:{SECRET}@{server.host}:{server.port}/1"),
        lambda server: RedisBroker(f"redis://{server.host}:{server.port}", password=SECRET),
        lambda server: RedisBroker(f"redis://{server.host}:{server.port}", username="someone", password=SECRET),
        lambda server: RedisBroker(f"redis://{server.host}:{server.port}"),
    ],
)
async def test_a_wrong_password_shows_no_secret(make_server, caplog, make):
    """ConnectError says that the password is the matter; neither error, repr nor log shows a secret."""
    caplog.set_level(logging.DEBUG)
    server = make_server(password="the-right-one")
    broker = make(server)
    broker.add_subscriber(RedisStream("s", group="g"), handle)

    error = await refusal_of(broker)

    assert isinstance(error, ConnectError)
    assert "password" in str(error).lower()
    shown = [repr(broker), repr(RustStream("test", broker)), caplog.text, *traceback.format_exception(error)]
    assert not [text for text in shown if SECRET in text or "the-right-one" in text or "someone" in text]


@pytest.mark.parametrize("name", ["password", "pass"])
async def test_a_password_in_the_query_is_used_or_refused(make_server, name):
    """redis://host?password=x: never taken and then ignored, which would end in a riddle at the server."""
    server = make_server(password="the-right-one")
    refusal = None
    try:
        broker = RedisBroker(f"redis://{server.host}:{server.port}?{name}=the-right-one")
    except ConfigError as error:
        refusal = str(error)
    else:
        async with broker:
            pass
    assert refusal is None or (name in refusal and "the-right-one" not in refusal)


async def test_a_password_where_none_is_wanted(broker, server, caplog):
    """The default user without a password takes any; a user that there is not is refused, and not shown."""
    error = await refusal_of(RedisBroker(server.url, username="stranger", password=SECRET))

    assert isinstance(error, ConnectError)
    assert SECRET not in str(error) + caplog.text


async def test_a_database_that_there_is_not(server):
    """SELECT 9999 is refused by the server: ConnectError names it."""
    error = await refusal_of(RedisBroker(f"{server.url}/9999"))

    assert isinstance(error, ConnectError)
    assert "DB index" in str(error)


async def test_a_key_of_another_type_at_the_start(any_server, broker, stream):
    """B048: WRONGTYPE while the group is made: SubscribeError names subscription, stream and group."""
    stream.client.lpush("s", "x")
    broker.add_subscriber(RedisStream("s", group="ledger"), handle, name="post_payment")

    error = await refusal_of(broker)

    assert isinstance(error, SubscribeError)
    for part in ("WRONGTYPE", "post_payment", "stream s", "ledger"):
        assert part in str(error)


async def test_a_user_who_may_not_read(server, stream):
    """An ACL without XREADGROUP: an error at the start, or unhealthy with the reason beside it; no silent reader."""
    stream.client.execute_command("ACL", "SETUSER", "limited", "on", ">pw", "~*", "+@all", "-xreadgroup")
    broker = RedisBroker(f"redis://limited:pw@{server.host}:{server.port}")
    broker.add_subscriber(RedisStream("s", group="g"), handle)
    app, reason = RustStream("test", broker), ""
    try:
        async with app:
            reason = await eventually_async(lambda: not app.health().healthy and app.health().subscriptions[0].error)
    except RustStreamError as error:
        reason = str(error)
    finally:
        stream.client.execute_command("ACL", "DELUSER", "limited")

    assert "NOPERM" in reason


async def test_a_start_that_failed_can_be_tried_again(make_server):
    """The same app starts once its server is there: nothing of the failed start is left over."""
    server: Server = make_server()
    seen = []
    broker = RedisBroker(server.url)

    @broker.subscriber(RedisStream("s", group="g"))
    async def keep(body: bytes, ctx: Context):
        seen.append(body)

    app = RustStream("test", broker)
    server.kill()
    for _ in range(2):
        with pytest.raises(ConnectError):
            await app.__aenter__()
    server.restart()
    async with app:
        await broker.publish(b"x", "s")
        await eventually_async(lambda: seen == [b"x"])
    assert app.health().state == "stopped"
