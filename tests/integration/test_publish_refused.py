"""What a server refuses to take, and what the publisher is told: a code, whether to try again, what to change."""

import pytest

from eventually import eventually_async
from ruststream import Context, RustStream
from ruststream.errors import PublishError
from ruststream.redis import RedisBroker, RedisStream

LIMIT = 1 << 20


async def refusal_of(publish) -> PublishError:
    with pytest.raises(PublishError) as refusal:
        await publish
    return refusal.value


async def test_a_replica_takes_no_writes(make_server, stream_of):
    """READONLY: the code, that it may pass, and where to connect; as a master again it takes the next one."""
    server = make_server()
    stream, broker = stream_of(server), RedisBroker(server.url)
    async with broker:
        stream.client.replicaof("127.0.0.1", "1")
        error = await refusal_of(broker.publish(b"x", "s"))
        assert (error.code, error.retryable) == ("READONLY", True)
        assert "connect to its master" in str(error)
        many = await refusal_of(broker.publish_many([b"a", b"b"], "s"))
        assert (many.code, len(many.results)) == ("READONLY", 2)
        stream.client.replicaof("NO", "ONE")
        await broker.publish(b"after", "s")
    assert stream.length() == 1


async def test_a_stream_whose_ids_are_used_up(any_server, broker, stream):
    """B144: the greatest id there is was given out: no retry will help, and the error says so."""
    stream.client.xadd("s", {"f": "v"}, id="18446744073709551615-18446744073709551615")
    async with broker:
        error = await refusal_of(broker.publish(b"x", "s"))
    assert (error.code, error.retryable) == ("ERR", False)
    assert "ids are used up: take a new stream" in str(error)


async def test_a_key_of_another_type(any_server, broker, stream):
    """B048: WRONGTYPE is not to be tried again; the neighbours in the same pipeline are added."""
    stream.client.set("text", "x")
    async with broker:
        error = await refusal_of(broker.publish(b"x", "text"))
        assert (error.code, error.retryable) == ("WRONGTYPE", False)
        assert "take another name, or remove what it holds" in str(error)


async def test_a_value_that_is_too_long_is_refused_before_it_is_sent(any_server, make_broker, stream):
    """B115: past `proto-max-bulk-len` the server would cut everything that is under way: PublishError, and all else
    goes on; a reply that is too long goes by `on_error`."""
    stream.client.config_set("proto-max-bulk-len", LIMIT)
    broker = make_broker()

    @broker.subscriber(RedisStream.recovering("in", group="g", min_idle=30), reply_to="out")
    async def grow(body: bytes, ctx: Context):
        return bytes(LIMIT + 1)

    try:
        app = RustStream("test", broker)
        async with app:
            await broker.publish(bytes(LIMIT), "s")
            tx = broker.transaction()
            for publish in (
                broker.publish(bytes(LIMIT + 1), "s"),
                broker.publish_many([b"a", bytes(LIMIT + 1)], "s"),
                _commit(tx, b"a", bytes(LIMIT + 1)),
            ):
                error = await refusal_of(publish)
                assert "1048577 bytes" in str(error)
                assert "1048576 bytes at most (proto-max-bulk-len)" in str(error)
                assert (error.code, error.retryable) == (None, False)
            await broker.publish(b"after", "s")
            await broker.publish(b"x", "in")
            await eventually_async(lambda: app.health().subscriptions[0].counts["left"] == 1)
    finally:
        stream.client.config_set("proto-max-bulk-len", 512 * LIMIT)
    assert [len(fields[b"_payload"]) for _, fields in stream.entries()] == [LIMIT, 5]
    assert stream.client.exists("out") == 0


async def _commit(tx, *bodies):
    async with tx:
        for body in bodies:
            await tx.publish(body, "s")


async def test_a_user_who_may_use_few_keys(any_server, stream):
    """A user with two streams and what belongs to them reads, replies and publishes; elsewhere it is NOPERM."""
    keys = ("~s", "~{s}:*", "~out")
    stream.client.execute_command("ACL", "SETUSER", "clerk", "on", ">pw", *keys, "+@all", "-config")
    broker = RedisBroker(any_server.url.replace("redis://", "redis://clerk:pw@"))
    broker.add_subscriber(RedisStream.recovering("s", group="g", min_idle=30), _echo, reply_to="out")
    try:
        async with RustStream("test", broker):
            await broker.publish(b"x", "s")
            await eventually_async(lambda: stream.client.xlen("out") == 1)
            error = await refusal_of(broker.publish(b"x", "elsewhere"))
            assert (error.code, error.retryable) == ("NOPERM", False)
            assert "+xadd" in str(error)
    finally:
        stream.client.execute_command("ACL", "DELUSER", "clerk")


async def _echo(body: bytes):
    return body


async def test_numbers_go_with_each_entry_where_the_server_takes_them(broker, stream):
    """IDMP on Redis 8.10: every entry is known by its number, so that it can be sent again."""
    async with broker:
        await broker.publish_many([b"x"] * 150, "s")
        await broker.publish(b"y", "s")
    info = stream.client.execute_command("XINFO", "STREAM", "s")
    info = info if isinstance(info, dict) else dict(zip(info[::2], info[1::2], strict=True))
    assert {str(name, "ascii"): number for name, number in info.items() if name.startswith((b"iids", b"pids"))} == {
        "pids-tracked": 2, "iids-tracked": 150, "iids-added": 151, "iids-duplicates": 0,
    }  # fmt: skip
