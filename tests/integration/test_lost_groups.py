"""Groups that are lost while they are read: made again or given up, and no entry or outcome is lost with them."""

import asyncio

import pytest

from eventually import eventually_async
from integration.conftest import collect
from ruststream import Context, Reply, RustStream, dead_letter, retry
from ruststream.errors import SubscribeError
from ruststream.redis import RedisStream


@pytest.mark.parametrize("mode", ["new", "recovering", "reclaim"])
async def test_a_lost_group_ends_the_app_where_that_is_asked_for(any_server, broker, stream, mode):
    """B042: on_missing_group="fail": the app ends with SubscribeError, in every mode, and its body is cancelled."""
    options = {} if mode == "new" else {"min_idle": 0.1}
    collect(broker, getattr(RedisStream, mode)("s", group="ledger", on_missing_group="fail", **options))
    app = RustStream("test", broker)

    async def body():
        async with app:
            await eventually_async(lambda: app.health().healthy)
            stream.client.xgroup_destroy("s", "ledger")
            await asyncio.sleep(10)

    with pytest.raises(SubscribeError, match=r"ledger.*on_missing_group"):
        await body()
    assert app.health().state == "failed"


@pytest.mark.parametrize("mode", ["new", "recovering", "reclaim"])
@pytest.mark.parametrize("loss", ["group", "stream", "everything"])
async def test_a_lost_group_is_made_again_within_a_second(any_server, broker, stream, mode, loss):
    """B002, B025, B046: after XGROUP DESTROY, DEL or FLUSHALL the next entry comes soon, without a flood of reads."""
    seen = []

    async def handle(ctx: Context):
        seen.append(ctx.payload)

    options = {} if mode == "new" else {"min_idle": 0.05}
    broker.add_subscriber(getattr(RedisStream, mode)("s", group="g", **options), handle)

    def bring(body):
        stream.add(body)
        if mode == "reclaim":
            stream.deliver("dead", count=1)

    app = RustStream("test", broker)
    async with app:
        bring("before")
        await eventually_async(lambda: seen == [b"before"])
        await eventually_async(lambda: stream.pending_ids() == [])
        {
            "group": lambda: stream.client.xgroup_destroy("s", "g"),
            "stream": lambda: stream.client.delete("s"),
            "everything": stream.client.flushall,
        }[loss]()
        await eventually_async(lambda: stream.client.exists("s") and stream.client.xinfo_groups("s"), timeout=2)
        bring("after")
        await eventually_async(lambda: b"after" in seen, timeout=2)
        [subscription] = app.health().subscriptions
        assert subscription.counts["read_errors"] < 30
        await eventually_async(lambda: app.health().healthy)

    assert seen.count(b"before") == 1


@pytest.mark.parametrize(
    ("mode", "outcome"),
    [
        ("recovering", lambda: retry(after=0.1)),
        ("recovering", retry),
        ("new", retry),
        ("new", lambda: retry(after=0.1)),
        ("recovering", lambda: dead_letter("bad")),
        ("recovering", lambda: Reply(b"answer")),
    ],
    ids=["parked", "left", "copied", "delayed", "dead-lettered", "replied"],
)
async def test_an_outcome_whose_group_is_lost_meanwhile_is_asked_for_again(any_server, broker, stream, mode, outcome):
    """B002, B042: the group goes while the handler runs, and there is no room to read: delivered again, not lost."""
    seen, given = [], asyncio.Event()
    options = {} if mode == "new" else {"min_idle": 1}
    source = getattr(RedisStream, mode)("s", group="g", start_id="0", block=0.1, **options)

    @broker.subscriber(source, max_in_flight=1, dead_letter="letters", reply_to="answers")
    async def handle(ctx: Context):
        seen.append(str(ctx.entry_id))
        await given.wait()
        return outcome() if len(seen) < 3 else None

    async with RustStream("test", broker):
        entry = stream.add("x")
        await eventually_async(lambda: seen)
        stream.client.xgroup_destroy("s", "g")
        given.set()
        sent = ("letters", "answers")
        await eventually_async(lambda: len(seen) > 2 or any(stream.client.exists(name) for name in sent))
        await eventually_async(lambda: stream.pending_ids() == [])

    assert seen[:2] == [entry, entry]


async def test_outcomes_around_the_making_of_a_lost_group_are_not_lost(any_server, broker, stream):
    """B002: handlers end before, while and after their group is made again; each reply comes."""
    bodies = {str(number).encode() for number in range(60)}

    @broker.subscriber(RedisStream.recovering("s", group="g", min_idle=1, start_id="0"), workers=60, reply_to="answers")
    async def handle(body: bytes):
        await asyncio.sleep(int(body) * 0.01)
        return Reply(body)

    async with RustStream("test", broker):
        stream.add_numbered(0, 59)
        await eventually_async(lambda: stream.client.xlen("answers") >= 20)
        stream.client.xgroup_destroy("s", "g")
        await eventually_async(lambda: {fields[b"_payload"] for _, fields in stream.client.xrange("answers")} == bodies)
        await eventually_async(lambda: stream.pending_ids() == [])


async def test_a_kept_head_whose_group_is_lost_is_run_again(any_server, broker, stream):
    """B002: order="strict", the group goes while the head of a key waits: it gives way, and is delivered again."""
    seen = []
    source = RedisStream.recovering("s", group="g", min_idle=1, start_id="0", block=0.1)

    @broker.subscriber(source, by_key=True, order="strict", max_in_flight=2)
    async def handle(body: bytes):
        seen.append(body)
        return retry(after=0.5) if seen == [b"1"] else None

    async with RustStream("test", broker):
        stream.add_numbered(1, 3)
        await eventually_async(lambda: seen)
        stream.client.xgroup_destroy("s", "g")
        await eventually_async(lambda: seen.count(b"1") == 2 and b"3" in seen)
        await eventually_async(lambda: stream.pending_ids() == [])


async def test_a_group_destroyed_under_a_stream_that_is_kept_repeats_nothing_acked(broker, stream, figure):
    """Upstream reads everything again, 50 of 50. Here the group begins after what was acknowledged."""
    stream.add_numbered(1, 50)
    seen = collect(broker, RedisStream.claiming("s", group="g", min_idle=30, start_id="0"))

    async with RustStream("test", broker):
        await eventually_async(lambda: len(seen) == 50)
        await eventually_async(lambda: stream.pending_ids() == [])
        stream.client.xgroup_destroy("s", "g")
        await eventually_async(lambda: stream.client.xinfo_groups("s"))
        stream.add("51")
        await eventually_async(lambda: b"51" in seen)

    figure("handled again after XGROUP DESTROY", f"{len(seen) - 51} of 50")
    assert len(seen) == 51


async def test_a_group_destroyed_before_anything_was_handled_does_not_bring_back_the_past(broker, stream):
    """The app asked for what comes after its start: losing the group at once must not hand it the whole history."""
    stream.add_numbered(1, 50)
    seen = collect(broker, RedisStream("s", group="g"))

    async with RustStream("test", broker) as app:
        await eventually_async(lambda: app.health().healthy)
        stream.client.xgroup_destroy("s", "g")
        await eventually_async(lambda: stream.client.xinfo_groups("s"))
        stream.add("51")
        await eventually_async(lambda: b"51" in seen)

    assert seen == [b"51"]
