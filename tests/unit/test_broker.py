"""`RedisBroker`: options, subscribers, and publishing without an app."""

import msgspec
import pytest

from ruststream.codec import codec_of
from ruststream.context import Context, EntryId
from ruststream.errors import ConfigError, ConnectError, ShutDownError
from ruststream.policy import Backoff
from ruststream.redis import GroupPosition, RedisBroker, RedisStream, StreamStart


class Payment(msgspec.Struct):
    id: int


async def handler(payment: Payment, ctx: Context): ...


CLAIMING = RedisStream.claiming("payments", min_idle=30, group="ledger")


def test_no_secret_is_shown():
    for broker in (
        RedisBroker("redis://me:s3cret@localhost:6379/1"),
        RedisBroker("redis://localhost:6379/1", username="me", password="s3cret"),
    ):
        assert "s3cret" not in repr(broker) + str(broker) + broker.address
        assert "localhost:6379/1" in repr(broker)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"url": "kafka://"}, "accepted are"),
        ({"url": None}, "url"),
        ({"username": 1}, "username"),
        ({"password": b"s3cret"}, "password"),
        ({"url": "redis://:s3cret@localhost", "password": "s3cret"}, "password is given twice"),
        ({"default_group": ""}, "default_group"),
        ({"reconnect": 1}, "reconnect"),
        ({"codec": "yaml"}, "codec"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options, named):
    with pytest.raises(ConfigError, match=named) as caught:
        RedisBroker(**({"url": "redis://localhost"} | options))
    assert "s3cret" not in str(caught.value)


def test_the_environment_names_the_server(monkeypatch):
    monkeypatch.setenv("REDIS_URL", "redis://cache:6379/3")
    broker = RedisBroker.from_env(default_group="ledger")
    assert broker.address == "redis://cache:6379/3"


@pytest.mark.parametrize("value", [None, "", "  "])
def test_without_it_the_server_is_within_the_process_and_that_is_said(monkeypatch, caplog, value):
    monkeypatch.delenv("REDIS_URL", raising=False)
    if value is not None:
        monkeypatch.setenv("REDIS_URL", value)
    assert RedisBroker.from_env().address == "memory://"
    assert "set it, for example REDIS_URL=redis://localhost:6379/0" in caplog.text


def test_the_decorator_returns_the_function():
    broker = RedisBroker("redis://localhost")
    assert broker.subscriber(CLAIMING, workers=8, by_key=True)(handler) is handler
    (made,) = broker.subscribers
    assert (made.name, made.stream, made.group, made.workers, made.by_key) == ("handler", "payments", "ledger", 8, True)


def test_a_plain_name_takes_the_default_group():
    broker = RedisBroker("redis://localhost", default_group="ledger", codec="msgpack")
    broker.add_subscriber("payments", handler)
    (made,) = broker.subscribers
    assert (made.source.mode, made.group) == ("new", "ledger")
    assert made.codec is broker.codec is codec_of("msgpack")
    with pytest.raises(ConfigError, match="default_group"):
        RedisBroker("redis://localhost").add_subscriber("payments", handler)


def test_names_are_unique():
    broker = RedisBroker("redis://localhost", default_group="ledger")
    for _ in range(3):
        broker.add_subscriber("payments", handler)
    broker.add_subscriber("payments", handler, name="mine")
    assert [made.name for made in broker.subscribers] == ["handler", "handler-2", "handler-3", "mine"]
    with pytest.raises(ConfigError, match="'mine'"):
        broker.add_subscriber("payments", handler, name="mine")


def test_one_consumer_reads_a_group_once():
    broker = RedisBroker("redis://localhost")
    broker.add_subscriber(RedisStream("payments", group="ledger", consumer="c"), handler)
    broker.add_subscriber(RedisStream("payments", group="other", consumer="c"), handler)
    with pytest.raises(ConfigError, match=r"'c' reads group 'ledger' of 'payments' twice"):
        broker.add_subscriber(RedisStream.reclaim("payments", min_idle=1, group="ledger", consumer="c"), handler)


def test_mistakes_of_a_handler_show_at_the_decorator():
    async def wrong(payment: Payment, other: int): ...

    with pytest.raises(ConfigError, match="handler wrong, parameter other"):
        RedisBroker("redis://localhost").subscriber(CLAIMING)(wrong)


def test_what_users_need_is_in_one_place():
    assert GroupPosition.end().position == StreamStart.NEW == "$"


async def test_publishing_without_an_app(no_server):
    broker = RedisBroker("redis://localhost", username="me", password="x", reconnect=Backoff(1, 5), codec="msgpack")
    async with broker:
        (client,) = no_server.made
        assert client.url == "redis://localhost"
        assert client.options == {
            "username": "me", "password": "x", "reconnect_initial": 1.0, "reconnect_maximum": 5.0,
        }  # fmt: skip
        assert broker.client is client
        publishing = broker._publishing
        bell = publishing.bell
        assert await broker.publish({"id": 1}, "payments", key="acc", headers={"A": "b"}, maxlen=5) == EntryId.parse(
            "7-0"
        )
        (sent,) = publishing.calls
        assert (sent.stream, sent.payload) == ("payments", b"\x81\xa2id\x01")
        assert sent.fields == [
            (b"content-type", b"application/msgpack"), (b"a", b"b"), (b"redis-partition-key", b"acc"),
        ]  # fmt: skip
        assert sent.trimming == (5, None, True)
    assert (client.closed, bell.closed) == (1, 1)
    with pytest.raises(ShutDownError, match="not connected"):
        await broker.publish({"id": 1}, "payments")
    with pytest.raises(ShutDownError, match="not connected"):
        _ = broker.client


async def test_publishing_many(no_server):
    async with RedisBroker("redis://localhost") as broker:
        messages = [{"id": 1}, {"id": 2}]
        ids = await broker.publish_many(iter(messages), "payments", key=lambda message: message["id"], minid="5")
        assert await broker.publish_many([], "payments") == []
        sent, none = broker._publishing.calls
        assert (sent.stream, sent.payloads, len(ids), none) == ("payments", [b'{"id":1}', b'{"id":2}'], 2, None)
        assert sent.keys == [b"1", b"2"]
        assert sent.trimming.minid == "5-0"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"stream": None}, "name of a stream"),
        ({"stream": ""}, "stream"),
        ({"key": 1.5}, "key"),
        ({"headers": ["a"]}, "headers"),
        ({"content_type": 1}, "content_type"),
        ({"maxlen": -1}, "maxlen"),
        ({"minid": "x"}, "minid"),
        ({"maxlen": 1, "minid": "5"}, "both"),
        ({"approximate": 1}, "approximate"),
    ],
)
async def test_a_wrong_argument_is_refused_by_name(no_server, options, named):
    async with RedisBroker("redis://localhost") as broker:
        with pytest.raises(ConfigError, match=named):
            await broker.publish({}, **({"stream": "payments"} | options))
        if "key" in options:
            options = {"key": "not a function"}
        with pytest.raises(ConfigError, match=named):
            await broker.publish_many([{}], **({"stream": "payments"} | options))


@pytest.mark.parametrize("messages", ["text", b"bytes", {"id": 1}])
async def test_one_message_is_not_many(no_server, messages):
    async with RedisBroker("redis://localhost") as broker:
        with pytest.raises(ConfigError, match="list of messages"):
            await broker.publish_many(messages, "payments")


async def test_a_server_that_refuses_leaves_nothing_open(no_server, bells):
    no_server.refuses = ConnectError("wrong password")
    broker = RedisBroker("redis://localhost")
    with pytest.raises(ConnectError, match="wrong password"):
        async with broker:
            pytest.fail("entered")
    assert no_server.made[0].closed == 1
    assert [bell.closed for bell in bells] == [1]
    no_server.refuses = None
    async with broker:
        pass


async def test_a_broker_is_connected_once_at_a_time(no_server, bells):
    broker = RedisBroker("redis://localhost")
    async with broker:
        with pytest.raises(ConfigError, match="connected already"):
            async with broker:
                pytest.fail("entered")
        assert await broker.publish({}, "payments")
    assert [bell.closed for bell in bells] == [1]


async def test_a_subscriber_that_comes_too_late_is_refused(no_server):
    broker = RedisBroker("redis://localhost")
    async with broker:
        with pytest.raises(ConfigError, match="too late"):
            broker.add_subscriber(CLAIMING, handler)
