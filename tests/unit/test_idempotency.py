"""Idempotent and its stores, before anything runs."""

# ruff: noqa: ARG002 - stores have the arguments that they are called with
from datetime import timedelta

import pytest

from ruststream import IdempotencyStore, Idempotent, MarkState
from ruststream.agreement import resolved
from ruststream.errors import ConfigError
from ruststream.marks import key_text, mark_prefix
from ruststream.redis import RedisBroker, RedisIdempotencyStore, RedisStream, Trim


class Complete:
    async def begin(self, key, owner, lease):
        return MarkState.STARTED

    async def finish(self, key, owner, ttl): ...

    async def release(self, key, owner): ...

    async def renew(self, keys, owner, lease): ...


class Incomplete:
    async def begin(self, key, owner, lease): ...


def test_durations_are_seconds_or_timedeltas():
    made = Idempotent(ttl=timedelta(hours=1), lease=30)
    assert (made.ttl, made.lease, made.key, made.store) == (3600.0, 30.0, None, None)
    assert Idempotent(60) == Idempotent(ttl=60.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ttl": 0}, "ttl"),
        ({"ttl": -1}, "ttl"),
        ({"ttl": "1h"}, "ttl"),
        ({"ttl": 60, "lease": 0}, "lease"),
        ({"ttl": 60, "lease": 61}, "at least the lease"),
        ({"ttl": 60, "key": "id"}, "key"),
        ({"ttl": 60, "store": "redis"}, "IdempotencyStore"),
        ({"ttl": 60, "store": Incomplete()}, "async def finish"),
        ({"ttl": 60, "store": Complete}, None),
    ],
)
def test_a_wrong_option_is_refused_by_name(options, message):
    if message is None:
        Idempotent(**options)
        return
    with pytest.raises(ConfigError, match=message):
        Idempotent(**options)


def test_stores_are_told_by_what_they_can_do():
    assert isinstance(Complete(), IdempotencyStore)
    assert isinstance(RedisIdempotencyStore(), IdempotencyStore)
    assert not isinstance(Incomplete(), IdempotencyStore)
    assert Idempotent(60, store=Complete())
    with pytest.raises(ConfigError, match="RedisBroker"):
        RedisIdempotencyStore("redis://localhost")


async def test_a_store_without_a_server_says_so_when_called_by_hand():
    with pytest.raises(ConfigError, match="no server of its own"):
        await RedisIdempotencyStore().begin("k", "o", 1)


def test_a_ttl_that_is_known_to_be_too_short_is_refused():
    """P12: a mark that is forgotten before the entry can come back protects nobody."""
    broker = RedisBroker("memory://")

    async def handle(body: bytes): ...

    def add(**options):
        broker.add_subscriber(RedisStream.claiming("s", group="g", min_idle=30), handle, **options)

    with pytest.raises(ConfigError, match=r"ttl.*10 s.*30 s"):
        add(idempotency=Idempotent(ttl=10))
    with pytest.raises(ConfigError, match="idempotency must be Idempotent"):
        add(idempotency=60)
    add(idempotency=Idempotent(ttl=30))
    kept = RedisStream.new("s", group="g", trim=Trim.max_age(3600))
    with pytest.raises(ConfigError, match="keeps entries for 3600 s"):
        broker.add_subscriber(kept, handle, idempotency=Idempotent(ttl=3599))
    broker.add_subscriber(kept, handle, name="long", idempotency=Idempotent(ttl=3600))


def test_a_ttl_shorter_than_another_subscription_keeps_the_stream_is_refused_at_the_start():
    """The trim is the stream's, whichever subscription says it."""
    broker = RedisBroker("memory://")

    async def handle(body: bytes): ...

    broker.add_subscriber(RedisStream.claiming("s", group="g", min_idle=30), handle, idempotency=Idempotent(ttl=60))
    resolved([broker])
    kept = RedisStream.claiming("s", group="h", min_idle=30, trim=Trim.max_age(3600))
    broker.add_subscriber(kept, handle, name="keeps")
    with pytest.raises(ConfigError, match=r"subscription handle: .* 60 s, but the stream keeps entries for 3600 s"):
        resolved([broker])


def test_the_lease_is_min_idle_unless_it_is_given():
    assert Idempotent(600).leased(30) == 30
    assert Idempotent(600, lease=5).leased(30) == 5
    assert (Idempotent(600).leased(None), Idempotent(20).leased(None)) == (60, 20)


def test_no_two_subscriptions_share_a_mark():
    names = ["a", "a:b", "b", "a%3Ab", "idempotency"]
    prefixes = {mark_prefix(stream, group, name) for stream in ("s", "{s}") for group in names for name in names}
    assert len(prefixes) == 2 * len(names) ** 2 - len(names) ** 2, "{s} is in the slot of s, under the same name"
    assert mark_prefix("s", "g", "post") == "{s}:g:idempotency:post:"
    assert mark_prefix("a{b}c", "g", "post") == "a{b}c:g:idempotency:post:"


def test_what_a_message_is_known_by_is_text():
    assert (key_text("a"), key_text(b"a"), key_text(7)) == ("key:a", "key:a", "key:7")
    assert key_text(b"\xff") == "key:\\xff"
    for wrong in ("", b"", None, True, 1.5, []):
        with pytest.raises(TypeError, match="must return"):
            key_text(wrong)
