"""Consumers: what they are called, what is theirs after a restart or a cut connection, and how they connect."""

import asyncio

import redis

from eventually import eventually_async
from ruststream import Context, RustStream
from ruststream.redis import RedisBroker, RedisStream, StreamStart
from servers import Server


def source(**options: object) -> RedisStream:
    """New entries, from the stream's beginning."""
    return RedisStream("s", group="g", start_id=StreamStart.BEGINNING, **options)


async def test_own_entries_of_an_earlier_life_are_read_again_under_a_fixed_name(any_server, make_broker, stream):
    """B009: a consumer that restarts under the same name gets again what it had read and not settled."""
    stream.create_group()
    left = [stream.add("left"), stream.add("left")]
    stream.deliver("worker-1")
    others = stream.add("of another consumer")
    stream.deliver("worker-2")
    fresh = stream.add("new")
    seen = []
    broker = make_broker()

    @broker.subscriber(source(consumer="worker-1"))
    async def handle(ctx: Context):
        seen.append((str(ctx.entry_id), ctx.delivery_count))

    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 3)
        await eventually_async(lambda: stream.pending_ids() == [others])

    # What it had comes in its own order; one that is new may be taken between two of them, as the lanes alternate.
    assert [call for call in seen if call[0] in left] == [(left[0], 2), (left[1], 2)]
    assert (fresh, 1) in seen


async def test_entries_whose_reply_was_lost_with_the_connection_are_read_again(any_server, broker, stream):
    """B033: what the server delivered under our name while our connection was cut does not stay with us unread.

    The lost reply is made from outside: entries are delivered under the app's own consumer name, which is what the
    server has done when a reply does not arrive; then the reader's connection is cut.
    """
    seen = []

    @broker.subscriber(source())
    async def handle(body: bytes, ctx: Context):
        seen.append((body, ctx.delivery_count))

    app = RustStream("test", broker)
    async with app:
        stream.add("first")
        await eventually_async(lambda: len(seen) == 1)
        await eventually_async(lambda: stream.pending_ids() == [])
        [subscription] = app.health().subscriptions
        lost = deliver_as(stream, subscription.consumer)
        cut(stream.client, subscription.consumer)
        await eventually_async(lambda: len(seen) == 2)
        await eventually_async(lambda: stream.pending_ids() == [])
        stream.add("after")
        await eventually_async(lambda: len(seen) == 3)

    assert lost
    assert seen == [(b"first", 1), (b"lost", 1), (b"after", 1)]


def deliver_as(stream, consumer: str) -> str:
    """Add an entry and hand it to the consumer in one step, so that its blocked read does not see it."""
    script = """
    local id = redis.call('XADD', KEYS[1], '*', '_payload', 'lost')
    redis.call('XREADGROUP', 'GROUP', 'g', ARGV[1], 'STREAMS', KEYS[1], '>')
    return id
    """
    return stream.client.eval(script, 1, stream.name, consumer).decode()


def cut(client: redis.Redis, name: str) -> None:
    """Close the connection of the reader that goes by this name."""
    reader = next(row for row in client.client_list() if row["name"] == name)
    client.client_kill_filter(_id=reader["id"])


async def test_a_running_entry_is_not_run_again_when_its_connection_is_cut(any_server, broker, stream):
    """What is held here is not handed to a second lane when the reader comes back and looks at its own entries."""
    calls, release = [], asyncio.Event()

    @broker.subscriber(source(), workers=4)
    async def handle(body: bytes):
        calls.append(body)
        await release.wait()

    app = RustStream("test", broker)
    async with app:
        stream.add("slow")
        await eventually_async(lambda: calls)
        cut(stream.client, app.health().subscriptions[0].consumer)
        stream.add("after")
        await eventually_async(lambda: len(calls) == 2)
        release.set()
        await eventually_async(lambda: stream.pending_ids() == [])

    assert calls == [b"slow", b"after"]


async def test_two_apps_are_two_consumers(make_broker, stream):
    """B061: by default no two apps share a consumer name, nor two subscriptions of one app."""
    brokers = [make_broker(), make_broker()]
    for broker in brokers:
        for name in ("one", "two"):

            async def handle(body: bytes):
                pass

            broker.add_subscriber(source(), handle, name=name)

    async with RustStream("a", brokers[0]) as first, RustStream("b", brokers[1]) as second:
        names = [part.consumer for app in (first, second) for part in app.health().subscriptions]
        assert len(set(names)) == 4
        assert all(name.startswith("ruststream-") for name in names)


async def test_the_environment_names_the_consumers(broker, stream, monkeypatch):
    """RUSTSTREAM_CONSUMER replaces the front part of the name; names stay unique per subscription."""
    monkeypatch.setenv("RUSTSTREAM_CONSUMER", "pod-7")
    for name in ("one", "two"):

        async def handle(body: bytes):
            pass

        broker.add_subscriber(source(), handle, name=name)

    stream.add("x")
    async with RustStream("test", broker) as app:
        names = {part.consumer for part in app.health().subscriptions}
        await eventually_async(lambda: stream.group()["entries-read"] == 1)
        assert set(stream.consumers()) <= names

    assert len(names) == 2
    assert all(name.startswith("pod-7-") for name in names)


async def test_a_server_behind_a_unix_socket_and_a_password(make_server):
    """The hot read speaks AUTH and uses the socket like every other connection."""
    server: Server = make_server(password="s3cret", unix=True)
    broker = RedisBroker(f"unix://{server.socket_path}?db=3", password="s3cret")
    seen = []

    @broker.subscriber(source())
    async def handle(body: bytes):
        seen.append(body)

    async with RustStream("test", broker):
        server.cli("-n", "3", "XADD", "s", "*", "_payload", "x")
        await eventually_async(lambda: seen == [b"x"])
