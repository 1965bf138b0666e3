"""Transactions: all messages of a block are added at once when it ends, or none of them."""

import asyncio

import pytest

from eventually import eventually_async
from ruststream import EntryId, RustStream
from ruststream.errors import ConfigError, PublishError, ShutDownError, TransactionError
from ruststream.redis import RedisBroker, RedisStream


async def commit(tx, *streams, body=b"x", error=None):
    """Publish a message to each of these streams in one block, which this error leaves."""
    async with tx:
        for name in streams:
            await tx.publish(body, name)
        if error is not None:
            raise error


async def test_nothing_is_there_before_the_end_and_all_of_it_after(any_server, broker, stream):
    """Two streams, an option of each message; the ids are known once the block has ended."""
    async with broker:
        async with broker.transaction() as tx:
            await tx.publish({"id": 1}, "a", key="k")
            await tx.publish(b"x", "b", headers={"h": "1"}, content_type="text/plain")
            await tx.publish(b"y", "b", maxlen=1, approximate=False)
            assert tx.ids == []
            assert stream.client.exists("a", "b") == 0
        first, _, third = tx.ids

    [(found, fields)] = stream.client.xrange("a")
    assert (found.decode(), fields[b"h:redis-partition-key"]) == (str(first), b"k")
    assert [entry.decode() for entry, _ in stream.client.xrange("b")] == [str(third)]
    assert all(isinstance(entry_id, EntryId) for entry_id in tx.ids)


async def test_an_exception_leaves_nothing_behind(any_server, broker, stream):
    """Whatever leaves the block: nothing is sent, and the broker publishes on."""
    async with broker:
        for error in (ValueError, asyncio.CancelledError):
            tx = broker.transaction()
            with pytest.raises(error):
                await commit(tx, "s", error=error())
            assert tx.ids == []
        await broker.publish(b"after", "s")
    assert [fields[b"_payload"] for _, fields in stream.entries()] == [b"after"]


async def test_a_stream_of_the_wrong_type_undoes_the_others(any_server, broker, stream):
    """B048: the third message can't be added: none is, and the error names its stream and what is wrong with it."""
    stream.client.lpush("list", "x")
    async with broker:
        with pytest.raises(PublishError, match="WRONGTYPE") as refusal:
            await commit(broker.transaction(), "a", "b", "list")
    assert '"list"' in str(refusal.value)
    assert refusal.value.code == "WRONGTYPE"
    assert not refusal.value.retryable
    assert len(refusal.value.results) == 3
    assert stream.client.exists("a", "b") == 0


async def test_a_full_server_takes_none_of_it(make_server, stream_of):
    """B021: OOM while the messages are queued: none is added, and the error says that it may be tried again."""
    server = make_server()
    stream, broker = stream_of(server), RedisBroker(server.url)
    async with broker:
        stream.client.config_set("maxmemory", 1)
        with pytest.raises(PublishError, match="OOM") as refusal:
            await commit(broker.transaction(), "a", "b")
        assert refusal.value.retryable
        assert "raise maxmemory" in str(refusal.value)
        stream.client.config_set("maxmemory", 0)
    assert stream.client.exists("a", "b") == 0


async def test_other_clients_see_all_or_nothing(any_server, broker, stream):
    """While transactions of ten messages commit, whoever looks sees a multiple of ten in each of two streams."""
    seen = set()
    done = asyncio.Event()

    async def look():
        while not done.is_set():
            with stream.client.pipeline(transaction=True) as pipe:
                pipe.xlen("a").xlen("b")
                seen.add(tuple(await asyncio.to_thread(pipe.execute)))

    async with broker:
        looking = asyncio.create_task(look())
        for _ in range(50):
            async with broker.transaction() as tx:
                for number in range(20):
                    await tx.publish(b"x", "ab"[number % 2])
        done.set()
        await looking
    assert stream.client.xlen("a") == stream.client.xlen("b") == 500
    assert all(a == b and a % 10 == 0 for a, b in seen)


async def test_wrong_use_is_said(broker):
    """Before its block, after it, twice, within itself, while it commits: TransactionError with the right form."""
    tx = broker.transaction()
    with pytest.raises(TransactionError, match="has not begun"):
        await tx.publish(b"x", "s")
    with pytest.raises(ShutDownError):
        async with tx:
            pass
    async with broker:
        async with tx:
            with pytest.raises(TransactionError, match="has begun already"):
                async with tx:
                    pass
            with pytest.raises(ConfigError, match="name of a stream"):
                await tx.publish({"id": 1})
            with pytest.raises(PublishError, match="can't be encoded"):
                await tx.publish(object(), "s")
            await tx.publish(b"x", "s")
        for again in (tx.publish(b"x", "s"), tx.__aenter__()):
            with pytest.raises(TransactionError, match="is over"):
                await again
        other = broker.transaction()
        async with other:
            for _ in range(10_000):
                await other.publish(b"x", "many")
            with pytest.raises(TransactionError, match="10000 messages at most"):
                await other.publish(b"x", "many")
        assert len(other.ids) == 10_000
        async with broker.transaction() as empty:
            pass
        assert empty.ids == []


async def test_blocks_that_overlap_add_each_its_own(broker, stream):
    """Two transactions side by side, one of them given up."""
    async with broker, broker.transaction() as outer:
        await outer.publish(b"outer", "s")
        with pytest.raises(ValueError, match="inner"):
            await commit(broker.transaction(), "s", body=b"inner", error=ValueError("inner"))
        async with broker.transaction() as third:
            await third.publish(b"third", "s")
    assert [fields[b"_payload"] for _, fields in stream.entries()] == [b"third", b"outer"]


async def test_a_transaction_in_memory_and_in_a_handler():
    """On `memory://`, from a handler: the same, all or nothing."""
    broker = RedisBroker("memory://transactions")
    got = []

    @broker.subscriber(RedisStream("start", group="g"))
    async def begin(body: bytes):
        async with broker.transaction() as tx:
            await tx.publish(body + b"1", "next")
            await tx.publish(body + b"2", "next")

    @broker.subscriber(RedisStream("next", group="g"))
    async def follow(body: bytes):
        got.append(body)

    async with RustStream("test", broker):
        await broker.publish(b"x", "start")
        await eventually_async(lambda: got == [b"x1", b"x2"])
