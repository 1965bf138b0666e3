"""Where what a handler returns goes: `@outgoing`, `reply_to`, `reply=True` and `Reply`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

import msgspec
import pytest

from ruststream.agreement import resolved
from ruststream.codec import codec_of
from ruststream.errors import ConfigError, PublishError
from ruststream.message import Reply, outgoing, stream_of
from ruststream.outcome import Outcome
from ruststream.publisher import Publisher
from ruststream.redis import RedisBroker, RedisStream
from ruststream.reply import ReplyRule
from ruststream.router import Router
from ruststream.signature import read_signature


@outgoing("payments.screened")
class Screened(msgspec.Struct):
    id: int


@outgoing("refunds")
@dataclass
class Refund:
    id: int


class Later(Screened):
    pass


class Plain(msgspec.Struct):
    id: int


def source(stream: str, **options: Any) -> RedisStream:
    return RedisStream.recovering(stream, min_idle=30, group="g", **options)


def replies(handler: Any, reply_to: Any = None, reply: Any = None, prefix: str = "") -> Any:
    return ReplyRule(reply_to, reply, read_signature(handler)).of(codec_of("json"), prefix)


async def to_screened(_: dict) -> Screened | None: ...
async def to_plain(_: dict) -> Reply[Plain] | Outcome | None: ...
async def untold(_: dict): ...


def test_a_class_names_its_stream():
    assert [stream_of(cls) for cls in (Screened, Refund, Later, Plain, dict)] == [
        "payments.screened", "refunds", "payments.screened", None, None,
    ]  # fmt: skip
    assert msgspec.json.encode(Screened(1)) == b'{"id":1}'


@pytest.mark.parametrize("wrong", ["", b"s", None])
def test_a_class_names_its_stream_by_a_name(wrong):
    with pytest.raises(ConfigError, match=r"outgoing\(stream\)"):
        outgoing(wrong)


def test_the_decorator_belongs_on_a_class_and_is_called():
    with pytest.raises(ConfigError, match="name the stream of Plain"):
        outgoing(Plain)
    with pytest.raises(ConfigError, match="belongs on a message class"):
        outgoing("s")(untold)
    with pytest.raises(ConfigError, match="class of your own"):
        outgoing("s")(dict)


def test_where_a_value_goes():
    """`Reply(to=)` before `reply_to` before the class; the prefix of a router is that of `reply_to` too."""
    assert replies(untold, reply_to="r").message(Screened(1)).stream == "r"
    assert replies(untold, reply_to="r", prefix="p.").message(Screened(1)).stream == "p.r"
    assert replies(untold, reply=True).message(Refund(1)).stream == "refunds"
    sent = replies(untold, reply_to="r").message(Reply(b"x", to="t", key="k", headers={"A": "b"}, maxlen=5))
    assert (sent.stream, sent.payload, sent.trimming.maxlen) == ("t", b"x", 5)
    assert dict(sent.fields) == {
        b"content-type": b"application/octet-stream", b"a": b"b", b"redis-partition-key": b"k",
    }  # fmt: skip


def test_what_is_a_reply():
    assert [rule.takes({}) for rule in (replies(untold), replies(untold, "r"), replies(untold, None, True))] == [
        False, True, True,
    ]  # fmt: skip
    assert replies(untold).takes(Reply({}, to="r"))


def test_a_value_without_a_stream_or_a_form_is_an_error():
    with pytest.raises(ConfigError, match="@outgoing"):
        replies(untold, reply=True).message(Plain(1))
    with pytest.raises(PublishError, match="stream 'r'"):
        replies(untold, "r").message(object())
    with pytest.raises(ConfigError, match="reserved"):
        replies(untold, "r").message(Reply({}, headers={"redis-idle-ms": "1"}))


def test_wrong_options_are_refused():
    with pytest.raises(ConfigError, match="reply_to"):
        replies(untold, reply_to=5)
    with pytest.raises(ConfigError, match="reply must be True or False"):
        replies(untold, reply="yes")
    with pytest.raises(ConfigError, match="contradict"):
        replies(untold, "r", reply=False)
    with pytest.raises(ConfigError, match="handler to_plain is to reply with Plain, which names no stream"):
        replies(to_plain, reply=True)


def test_what_is_known_of_replies_beforehand():
    assert replies(to_screened, reply=True).known == {"payments.screened"}
    assert replies(to_screened).known == replies(untold, reply=True).known == frozenset()
    assert replies(to_plain, "r", prefix="p.").known == {"p.r"}


def test_replies_into_the_stream_that_is_read_are_refused():
    broker = RedisBroker("memory://cycles")
    broker.add_subscriber(source("payments"), untold, reply_to="payments", name="echo")
    with pytest.raises(ConfigError, match=r"replies of echo go round in a circle \(payments -> payments\)"):
        resolved([broker])


def test_dead_letters_that_are_replied_back_are_refused():
    broker = RedisBroker("memory://cycles")
    broker.add_subscriber(source("a"), untold, reply_to="b", name="forth")
    broker.add_subscriber(source("b"), untold, dead_letter="a", name="back")
    with pytest.raises(
        ConfigError, match=r"replies and dead letters of forth, back go round in a circle \(a -> b -> a\)"
    ):
        resolved([broker])


def test_replies_that_come_back_through_others_are_refused():
    broker, router = RedisBroker("memory://cycles"), Router(prefix="payments.")
    broker.add_subscriber(source("start"), untold, reply_to="payments.new", name="first")
    router.add_subscriber(source("new"), to_screened, reply=True, name="second")
    router.add_subscriber(source("screened"), untold, reply_to="new", name="third")
    broker.include(router)
    with pytest.raises(ConfigError, match="replies of second, third go round") as refusal:
        resolved([broker])
    assert "payments.new -> payments.screened -> payments.new" in str(refusal.value)


def test_replies_that_meet_and_end_are_fine():
    """Two ways to one stream, and the same name on another server: no circle."""
    broker, other = RedisBroker("memory://one"), RedisBroker("memory://other")
    for stream, target in (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")):
        broker.add_subscriber(source(stream), untold, reply_to=target)
    other.add_subscriber(source("d"), untold, reply_to="a")
    assert len(resolved([broker, other])) == 5


def test_a_publisher_parameter():
    """Bare: any message. With a class: its stream, and nothing else than it."""
    got = []

    async def handle(_: dict, publisher: Publisher, screened: Publisher[Screened]):
        got.append((publisher, screened))

    broker = RedisBroker("memory://publisher")
    broker.add_subscriber(source("s"), handle)
    plan = broker.subscribers[0].plan
    assert plan.shape == "other"
    with pytest.raises(StopIteration):
        plan.invoke(type("Delivery", (), {"payload": b"{}", "fields": []})()).send(None)
    ((publisher, screened),) = got
    assert (publisher.stream, screened.stream) == (None, "payments.screened")


def test_a_publisher_of_a_class_without_a_stream_is_refused():
    async def handle(_: dict, plain: Publisher[Plain]): ...

    with pytest.raises(ConfigError, match="handler handle, parameter plain: Plain names no stream"):
        RedisBroker("memory://publisher").add_subscriber(source("s"), handle)


async def test_a_publisher_of_a_broker(no_server):
    broker = RedisBroker("redis://localhost")
    screened, refunds = broker.publisher("s", Screened), broker.publisher(None, Refund)
    assert (repr(screened), refunds.stream) == ("Publisher('s', Screened)", "refunds")
    async with broker:
        await screened.publish(Later(1), key="k")
        await refunds.publish_many([Refund(1), Refund(2)])
        with pytest.raises(PublishError, match="takes messages of type Screened, not Plain; nothing was sent"):
            await screened.publish(Plain(1))
        with pytest.raises(PublishError, match="of type Refund, not dict"):
            await refunds.publish_many([Refund(1), {}])
        one, many = broker._publishing.calls
    assert (one.stream, many.stream, many.payloads) == ("s", "refunds", [b'{"id":1}', b'{"id":2}'])


class Shaped(TypedDict):
    id: int


class Identified(Protocol):
    id: int


@pytest.mark.parametrize("message_type", [Any, Shaped, Identified, dict[str, int], dict | list, None])
async def test_a_publisher_of_what_is_no_plain_class_takes_anything(no_server, message_type):
    """`isinstance` refuses such types, also `Any`, the default: only the type checker holds callers to them."""
    broker = RedisBroker("redis://localhost")
    made = [broker.publisher("s", message_type), *([broker.publisher("s")] if message_type is Any else [])]
    async with broker:
        for publisher in made:
            await publisher.publish({"id": 1})
        assert {one.payload for one in broker._publishing.calls} == {b'{"id":1}'}
