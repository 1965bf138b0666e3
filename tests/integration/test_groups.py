"""Consumer groups: made at start, moved at start, and what a server must be able to do."""

import pytest

from eventually import eventually_async
from integration.conftest import collect
from ruststream import RustStream
from ruststream.errors import RustStreamError, ServerTooOldError, SubscribeError
from ruststream.redis import GroupPosition, RedisStream, StreamStart

WITHOUT_CLAIM = ["redis-8.2", "redis-7.0", "valkey-9.1"]


async def test_group_and_stream_are_made_at_start(any_server, broker, stream):
    """XGROUP CREATE with MKSTREAM: neither has to be there, and a second start finds both."""
    collect(broker, RedisStream("s", group="g"))

    async with RustStream("test", broker):
        assert stream.length() == 0
        assert stream.group()["pending"] == 0
    async with RustStream("test", broker):
        assert stream.group()["last-delivered-id"] == b"0-0"


async def test_a_full_server_is_read_where_the_group_is_there(any_server, broker, stream):
    """B021: XGROUP CREATE answers OOM even for a group that exists; without one the start says why it can't go on."""
    stream.create_group()
    stream.add("x")
    seen = collect(broker, RedisStream("s", group="g"))
    stream.client.config_set("maxmemory", 1)
    try:
        async with RustStream("test", broker):
            await eventually_async(lambda: seen == [b"x"])
            await eventually_async(lambda: stream.pending_ids() == [])
        stream.client.xgroup_destroy("s", "g")
        with pytest.raises(SubscribeError, match="OOM"):
            async with RustStream("test", broker):
                pass
    finally:
        stream.client.config_set("maxmemory", 0)


async def test_a_new_group_begins_with_what_comes_after_it(any_server, broker, stream):
    """StreamStart.NEW, the default: what was there before the group is not read."""
    stream.add("old")
    seen = collect(broker, RedisStream("s", group="g"))

    async with RustStream("test", broker):
        stream.add("new")
        await eventually_async(lambda: seen)

    assert seen == [b"new"]


async def test_a_late_group_may_begin_at_the_beginning(any_server, broker, stream):
    """B003: a service that comes later reads everything the stream holds, when it asks for that."""
    stream.add_numbered(1, 500)
    seen = collect(broker, RedisStream("s", group="late", start_id=StreamStart.BEGINNING))

    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 500)

    assert seen == [str(number).encode() for number in range(1, 501)]


async def test_a_group_may_begin_after_an_id(any_server, broker, stream):
    """An id as start_id is exclusive."""
    ids = [stream.add(body) for body in "abc"]
    seen = collect(broker, RedisStream("s", group="g", start_id=ids[0]))

    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 2)

    assert seen == [b"b", b"c"]


@pytest.mark.parametrize("start", [StreamStart.NEW, StreamStart.BEGINNING, "0-1"])
async def test_start_id_counts_only_when_the_group_is_made(any_server, broker, stream, start):
    """A group that is there keeps its cursor, whatever start_id says."""
    stream.add("read before")
    stream.create_group()
    stream.deliver("other")
    stream.add("unread")
    seen = collect(broker, RedisStream("s", group="g", start_id=start))

    async with RustStream("test", broker):
        stream.add("new")
        await eventually_async(lambda: len(seen) == 2)

    assert seen == [b"unread", b"new"]


async def test_start_at_moves_the_cursor_of_the_group_at_every_start(any_server, make_broker, stream):
    """start_at counts at every start: back to the beginning each time, past the end, after an id."""
    ids = [stream.add(body) for body in "abc"]
    stream.create_group(start="$")
    for position, expected in (
        (GroupPosition.beginning(), [b"a", b"b", b"c"]),
        (GroupPosition.beginning(), [b"a", b"b", b"c"]),
        (GroupPosition.after(ids[1]), [b"c"]),
        (GroupPosition.end(), []),
    ):
        broker = make_broker()
        seen = collect(broker, RedisStream("s", group="g", start_at=position))
        async with RustStream("test", broker):
            await eventually_async(lambda seen=seen, expected=expected: len(seen) >= len(expected))
            await eventually_async(lambda: stream.group()["last-delivered-id"].decode() == ids[2])
            assert stream.group()["pending"] == 0 or seen == expected
        assert seen == expected, position


async def test_start_at_is_the_groups_not_the_consumers(make_broker, stream):
    """A second app of the group that starts with start_at moves the first one's cursor too."""
    first, second = make_broker(), make_broker()
    seen = collect(first, RedisStream("s", group="g"))
    stream.add("a")
    stream.create_group(start="$")

    async with RustStream("first", first):
        again = collect(second, RedisStream("s", group="g", start_at=GroupPosition.beginning()))
        async with RustStream("second", second):
            await eventually_async(lambda: seen + again == [b"a"])


async def test_two_groups_each_see_every_entry(any_server, broker, stream):
    """Two groups of one stream in one app: each gets all of it, once."""
    seen = [collect(broker, RedisStream("s", group=group, start_id="0"), name=group) for group in ("ledger", "fraud")]
    stream.add_numbered(1, 300)

    async with RustStream("test", broker):
        await eventually_async(lambda: [len(bodies) for bodies in seen] == [300, 300])
        await eventually_async(lambda: not stream.pending_ids("ledger") and not stream.pending_ids("fraud"))

    assert seen[0] == seen[1]


async def test_two_subscriptions_of_one_group_share_the_entries(any_server, broker, stream):
    """Each entry goes to one of them."""
    seen = [collect(broker, RedisStream("s", group="g", start_id="0", count=10), name=name) for name in ("a", "b")]
    stream.add_numbered(1, 300)

    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen[0]) + len(seen[1]) == 300)
        await eventually_async(lambda: stream.pending_ids() == [])

    assert sorted(map(int, seen[0] + seen[1])) == list(range(1, 301))


@pytest.mark.parametrize("there", ["no stream", "no group"])
async def test_a_group_that_is_missing_and_must_not_be_made(any_server, broker, stream, there):
    """create_group=False: SubscribeError at the start names group, stream and option; nothing is made."""
    if there == "no group":
        stream.create_group("another")
    collect(broker, RedisStream("s", group="ledger", create_group=False))

    with pytest.raises(SubscribeError) as refusal:
        await RustStream("test", broker).__aenter__()

    text = str(refusal.value)
    assert all(word in text for word in ("ledger", "stream s", "create_group"))
    assert stream.client.exists("s") == (there == "no group")


async def test_a_group_that_is_there_needs_no_making(any_server, broker, stream):
    """create_group=False with a group that exists starts and reads."""
    stream.create_group()
    stream.add("x")
    seen = collect(broker, RedisStream("s", group="g", create_group=False))

    async with RustStream("test", broker):
        await eventually_async(lambda: seen == [b"x"])


@pytest.mark.parametrize("any_server", WITHOUT_CLAIM, indirect=True)
async def test_claiming_on_a_server_without_it_fails_at_start(any_server, broker, stream):
    """B062: ServerTooOldError names the subscription, what it needs and what is there; nothing was made there."""
    collect(broker, RedisStream.claiming("payments", min_idle=30, group="ledger"), name="post_payment")
    app = RustStream("test", broker)

    with pytest.raises(ServerTooOldError) as refusal:
        await app.__aenter__()

    error = refusal.value
    assert isinstance(error, RustStreamError)
    assert "payments" in error.subscription
    assert "post_payment" in error.subscription
    assert "8.4" in error.required
    assert any_server.version in error.actual
    assert all(part in str(error) for part in ("payments", "8.4", any_server.version, "recovering"))
    assert not stream.client.keys("*")
    assert app.health().state == "failed"
    assert not app.health().subscriptions


async def test_a_start_that_nothing_recovers_warns(broker, stream, caplog):
    """A `new` subscription alone: what it leaves at a crash stays pending, and the log says what to add."""
    collect(broker, RedisStream("s", group="ledger"), name="post")

    async with RustStream("test", broker):
        pass

    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert all(word in warning for word in ("post", "ledger", "stream s", "reclaim", "recovering"))


async def test_a_start_with_a_recoverer_does_not_warn(broker, stream, caplog):
    """The warning is about the group, not about the subscription: a reclaim beside it is enough."""
    collect(broker, RedisStream("s", group="ledger"), name="post")
    collect(broker, RedisStream.reclaim("s", group="ledger", min_idle=30), name="recover")

    async with RustStream("test", broker):
        pass

    assert not [record for record in caplog.records if record.levelname == "WARNING"]
