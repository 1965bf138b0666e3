"""`Trim`, and which streams of an app it holds for."""

import copy
import pickle
from datetime import timedelta

import pytest

from ruststream.agreement import resolved
from ruststream.errors import ConfigError
from ruststream.redis import RedisBroker, RedisStream, Trim


def test_each_constructor_makes_its_policy():
    assert (Trim.acked().policy, Trim.acked().figure) == ("acked", 0)
    assert (Trim.max_length(5).policy, Trim.max_length(5).figure) == ("max_length", 5)
    assert Trim.max_age(timedelta(minutes=1)) == Trim.max_age(60) == Trim.max_age(60.0)
    assert Trim.max_length(60) != Trim.max_age(60)


@pytest.mark.parametrize(
    ("trim", "text"),
    [(Trim.acked(), "Trim.acked()"), (Trim.max_length(1000), "Trim.max_length(1000)"), (Trim.max_age(0.5), "0.5")],
)
def test_it_says_how_it_is_written(trim, text):
    assert text in str(trim)
    assert copy.deepcopy(trim) == trim == pickle.loads(pickle.dumps(trim))


@pytest.mark.parametrize("entries", [0, -1, 1.5, True, "5", None, 2**60])
def test_a_length_is_a_whole_number(entries):
    with pytest.raises(ConfigError, match="max_length"):
        Trim.max_length(entries)


@pytest.mark.parametrize("age", [0, -1, 0.0001, float("nan"), "1h", 1e12])
def test_an_age_is_a_duration(age):
    with pytest.raises(ConfigError, match="max_age"):
        Trim.max_age(age)


@pytest.mark.parametrize("made", [("nonsense",), ("max_length",), ("max_age", -1.0), ("acked", 1.0)])
def test_nothing_else_can_be_made(made):
    with pytest.raises(ConfigError, match="Trim"):
        Trim(*made)


@pytest.mark.parametrize("trim", ["acked", 1000, Trim])
def test_a_stream_takes_nothing_else(trim):
    with pytest.raises(ConfigError, match=r"trim must be Trim\.acked"):
        RedisStream("s", group="g", trim=trim)


@pytest.mark.parametrize("make", [RedisStream.reclaim, RedisStream.claiming, RedisStream.recovering])
def test_every_constructor_takes_it(make):
    assert make("s", group="g", min_idle=1, trim=Trim.acked()).trim == Trim.acked()
    assert make("s", group="g", min_idle=1).trim is None


def test_consumers_are_forgotten_after_minutes_and_not_before_ten_reads():
    assert RedisStream("s", group="g").forget_after == 300
    assert RedisStream.claiming("s", group="g", min_idle=60, block=5).forget_after == 650
    assert RedisStream("s", group="g", block=100).forget_after == 1000


def trims(*sources):
    broker = RedisBroker("redis://localhost")
    for position, source in enumerate(sources):

        async def handle(body: bytes): ...

        broker.add_subscriber(source, handle, name=f"s{position}")
    return [subscriber.source.trim for _, subscriber in resolved([broker])]


def test_it_holds_for_all_subscriptions_of_the_stream():
    bounded = RedisStream("a", group="g", trim=Trim.max_length(9))
    assert trims(bounded, RedisStream("a", group="h"), RedisStream("b", group="g")) == [
        Trim.max_length(9),
        Trim.max_length(9),
        None,
    ]


def test_a_stream_has_one():
    first = RedisStream("a", group="g", trim=Trim.max_length(9))
    second = RedisStream("a", group="h", trim=Trim.max_length(10))
    with pytest.raises(ConfigError, match=r"s0 and s1 .*max_length\(9\) in one and Trim\.max_length\(10\)"):
        trims(first, second)
