"""The connection is cut, or the process killed, between a publication and its answer: what is in the stream then."""

import asyncio
import contextlib
import signal

import pytest

from chaos.relay import Relay
from eventually import eventually, eventually_async
from ruststream.errors import ConnectError, PublishError, PublishUncertainError
from ruststream.redis import RedisBroker

ONCE = "redis-8.10"
"""Has IDMP."""
UNKNOWN = ("redis-8.2", "redis-7.0", "valkey-9.1")
"""Have not."""
REPLIES = {"replies": True, "subscriber": {"reply_to": "replies"}}


@pytest.fixture
def cut(make_server, make_witness):
    """A server, a witness of it, and what stands between it and the broker."""

    @contextlib.asynccontextmanager
    async def make(name=ONCE):
        server = make_server(name)
        async with Relay(server.port) as relay:
            yield make_witness(server), relay

    return make


def bodies(witness, stream="s"):
    return [fields[b"_payload"] for _, fields in witness.xrange(stream)]


async def test_a_publish_whose_answer_is_lost_is_there_once(cut):
    """IDMP: the server added it, the answer was cut off: it is sent again, is not added again, and has its first id."""
    async with cut() as (witness, relay), RedisBroker(relay.url) as broker:
        await broker.publish(b"before", "s")
        relay.swallow(b"XADD")
        entry_id = await asyncio.wait_for(broker.publish(b"once", "s"), 10)

        assert relay.swallowed == 1
        assert [(entry.decode(), fields[b"_payload"]) for entry, fields in witness.xrange("s")][1:] == [
            (str(entry_id), b"once")
        ]
        await broker.publish(b"after", "s")
        assert bodies(witness) == [b"before", b"once", b"after"]


async def test_a_publish_that_never_arrived_is_sent_again(cut):
    """IDMP: cut before the server had it, as well; nobody can tell, and it is there once."""
    async with cut() as (witness, relay), RedisBroker(relay.url) as broker:
        await broker.publish(b"before", "s")
        relay.drop(b"XADD")
        await asyncio.wait_for(broker.publish(b"once", "s"), 10)
        assert relay.dropped == 1
        assert bodies(witness) == [b"before", b"once"]


async def test_many_messages_whose_answers_are_lost_are_there_once_each(cut):
    """2,500 in three pipelines over two cuts: each of them once, in order, with the id that was given for it."""
    async with cut() as (witness, relay), RedisBroker(relay.url) as broker:
        relay.swallow(b"XADD", times=2)
        messages = [str(number).encode() for number in range(2500)]
        ids = await asyncio.wait_for(broker.publish_many(messages, "s"), 30)

        assert relay.swallowed == 2
        assert [(entry.decode(), fields[b"_payload"]) for entry, fields in witness.xrange("s")] == [
            (str(entry_id), body) for entry_id, body in zip(ids, messages, strict=True)
        ]


@pytest.mark.parametrize("body", [b"0100", b"0260", b"0999", b"1700"])
async def test_many_messages_that_are_cut_half_way_are_there_once_each(cut, body):
    """The server has a part of them when the connection goes, in whichever message: each is there once, in order."""
    async with cut() as (witness, relay), RedisBroker(relay.url) as broker:
        await broker.publish(b"before", "s")
        relay.drop(b"$4\r\n" + body + b"\r\n")
        messages = [b"%04d" % number for number in range(2000)]
        ids = await asyncio.wait_for(broker.publish_many(messages, "s"), 30)

        assert relay.dropped == 1
        assert [(entry.decode(), fields[b"_payload"]) for entry, fields in witness.xrange("s")][1:] == [
            (str(entry_id), body) for entry_id, body in zip(ids, messages, strict=True)
        ]


@pytest.mark.parametrize("name", UNKNOWN)
async def test_without_idmp_it_is_uncertain(cut, name):
    """No IDMP: PublishUncertainError, sent once, and the next publish goes through."""
    async with cut(name) as (witness, relay), RedisBroker(relay.url) as broker:
        await broker.publish(b"before", "s")
        relay.swallow(b"XADD")
        with pytest.raises(PublishUncertainError, match="may or may not"):
            await asyncio.wait_for(broker.publish(b"doubtful", "s"), 10)
        await broker.publish(b"after", "s")
        assert bodies(witness) == [b"before", b"doubtful", b"after"]


@pytest.mark.parametrize("setting", [("IDMP-MAXSIZE", 1), ("IDMP-DURATION", 1)])
async def test_a_stream_that_forgets_too_soon_leaves_doubt(cut, setting):
    """The stream keeps too few numbers, or not long enough: nothing is sent again, since it might be added twice."""
    async with cut() as (witness, relay), RedisBroker(relay.url) as broker:
        await broker.publish(b"before", "s")
        witness.execute_command("XCFGSET", "s", *setting)
        relay.swallow(b"XADD")
        with pytest.raises(PublishUncertainError):
            await asyncio.wait_for(broker.publish_many([b"a", b"b"], "s"), 10)
        assert bodies(witness) == [b"before", b"a", b"b"]


async def test_another_server_in_its_place_leaves_doubt(make_server, make_witness):
    """The server was started anew and knows no numbers: the message is not sent again."""
    server = make_server(ONCE)
    async with Relay(server.port) as relay, RedisBroker(relay.url) as broker:
        await broker.publish(b"before", "s")
        relay.swallow(b"XADD", then=server.kill)
        publishing = asyncio.create_task(broker.publish(b"doubtful", "s"))
        await eventually_async(lambda: relay.swallowed)
        server.restart()
        with pytest.raises(PublishUncertainError):
            await asyncio.wait_for(publishing, 20)
        await eventually_async(lambda: _published(broker, b"after"), timeout=10)
        assert bodies(make_witness(server)) == [b"after"]


async def _published(broker, body):
    try:
        return await broker.publish(body, "s")
    except (ConnectError, PublishError, PublishUncertainError):
        return None


@pytest.mark.parametrize("name", [ONCE, "redis-7.0", "valkey-9.1"])
async def test_a_transaction_that_is_cut_before_exec_leaves_nothing(cut, name):
    """The server has MULTI and the messages but no EXEC: nothing is visible. With IDMP the block is sent again."""
    async with cut(name) as (witness, relay), RedisBroker(relay.url) as broker:
        relay.drop(b"EXEC")
        tx = broker.transaction()

        async def commit():
            async with tx:
                await tx.publish(b"a", "a")
                await tx.publish(b"b", "b")

        committing = asyncio.create_task(commit())
        await eventually_async(lambda: relay.dropped)
        if name == ONCE:
            await asyncio.wait_for(committing, 10)
            assert (bodies(witness, "a"), bodies(witness, "b"), len(tx.ids)) == ([b"a"], [b"b"], 2)
        else:
            with pytest.raises(PublishUncertainError):
                await asyncio.wait_for(committing, 10)
            assert witness.exists("a", "b") == 0


async def test_a_transaction_whose_answer_is_lost_is_there_once(cut):
    """EXEC was carried out, its answer cut off: sent again, and each message is there once."""
    async with cut() as (witness, relay), RedisBroker(relay.url) as broker:
        relay.swallow(b"EXEC")
        async with broker.transaction() as tx:
            await tx.publish(b"a", "a")
            await tx.publish(b"b", "b")
        assert relay.swallowed == 1
        assert (bodies(witness, "a"), bodies(witness, "b")) == ([b"a"], [b"b"])
        assert [entry.decode() for entry, _ in witness.xrange("a")] == [str(tx.ids[0])]


@pytest.mark.parametrize("name", [ONCE, "redis-8.2", "redis-7.0", "valkey-9.1"])
@pytest.mark.parametrize("where", ["swallow", "drop"])
async def test_killed_between_the_reply_and_its_answer(make_server, make_witness, start_worker, name, where):
    """kill -9 with the reply's script sent: reply and ack are both there, or neither; in the end one reply each."""
    server = make_server(name)
    witness = make_witness(server)
    witness.xgroup_create("payments", "ledger", id="0", mkstream=True)
    for number in (1, 2, 3):
        witness.xadd("payments", {"_payload": b'{"id":%d}' % number, "h:message-id": f"m-{number}"})
    options = {"min_idle": 0.5}
    async with Relay(server.port) as relay:
        getattr(relay, where)(b"h:correlation-id", keep=True)
        first = start_worker(server, "recovering", options=options, url=relay.url, **REPLIES)
        await eventually_async(lambda: relay.dropped or relay.swallowed, timeout=20)
        first.kill()

    pending = {row["message_id"] for row in witness.xpending_range("payments", "ledger", "-", "+", 10)}
    replied = [fields[b"h:correlation-id"] for _, fields in witness.xrange("replies")]
    assert len(pending) + len(replied) == 3
    assert first.process.returncode == -signal.SIGKILL

    start_worker(server, "recovering", options=options, **REPLIES).started()
    eventually(lambda: not witness.xpending("payments", "ledger")["pending"], timeout=20)
    replied = sorted(fields[b"h:correlation-id"] for _, fields in witness.xrange("replies"))
    assert replied == [b"m-1", b"m-2", b"m-3"]
