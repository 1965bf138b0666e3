"""Consumers of processes that are no more: their names do not pile up, and nobody who lives loses one (B059)."""

import asyncio
from pathlib import Path

import pytest

from eventually import eventually_async
from ruststream import RustStream, leave
from ruststream.redis import RedisBroker, RedisStream, StreamStart, Trim

FORGET_AFTER = 2.0
DEAD = "ruststream-host-1-0badc0de"
SCRIPTS = Path(__file__).parents[2] / "rust" / "core" / "src" / "redis" / "lua"


@pytest.fixture
def soon(monkeypatch):
    """Dead after two seconds instead of five minutes."""
    monkeypatch.setattr(RedisStream, "forget_after", property(lambda _: FORGET_AFTER))


def source(make=RedisStream.recovering, **options):
    """New entries, and pending ones."""
    options = {"min_idle": 0.5, **options}
    return make("s", group="g", start_id=StreamStart.BEGINNING, **options)


def app_of(broker, source, handle=None):
    async def ignore(body: bytes): ...

    broker.add_subscriber(source, handle or ignore, name="handle")
    return RustStream("test", broker)


async def test_names_of_ended_processes_go_and_others_stay(any_server, soon, broker, stream, caplog):
    """What was made for one process goes once nothing is pending under it; other names are never touched."""
    caplog.set_level("INFO", "ruststream")
    stream.create_group()
    stream.add("left")
    stream.deliver(DEAD)
    others = ["worker-1", "ruststream-host-1", "celery-17-0badc0de"]
    for name in others:
        stream.client.xgroup_createconsumer("s", "g", name)
    app = app_of(broker, source())
    async with app:
        # It had an entry pending, which is taken over first.
        await eventually_async(lambda: DEAD not in stream.consumers(), timeout=30)
        counts = app.health().subscriptions[0].counts
        assert (counts["claimed"], counts["acked"], counts["forgotten"]) == (1, 1, 1)
        assert set(others) < set(stream.consumers())
    assert set(stream.consumers()) == set(others)
    assert f"deleted 1 consumers of ended processes: nothing was pending under their names ({DEAD})" in caplog.text


async def test_a_quiet_process_keeps_its_name(any_server, soon, make_broker, stream):
    """Two processes with nothing to do, in reads that block for longer than anybody is given: they speak for theirs."""
    stream.create_group()
    stream.add("one"), stream.add("two")
    apps = [app_of(make_broker(), source(RedisStream, block=60, count=1, min_idle=None)) for _ in range(2)]
    async with apps[0], apps[1]:
        names = {app.health().subscriptions[0].consumer for app in apps}
        for name in names:
            stream.client.xgroup_createconsumer("s", "g", name)
        stream.client.xgroup_createconsumer("s", "g", DEAD)
        await eventually_async(lambda: stream.pending_ids() == [])
        await eventually_async(lambda: DEAD not in stream.consumers(), timeout=30)
        consumers = stream.consumers()
        assert names == set(consumers)
    assert stream.consumers() == {}


@pytest.mark.parametrize("mode", ["new", "reclaim", "recovering"])
async def test_a_clean_stop_leaves_no_name_behind(any_server, broker, stream, mode):
    """Fifty deployments leave no more names than one."""
    stream.create_group()
    stream.add("one")
    if mode == "reclaim":
        stream.deliver("gone")
    app = app_of(broker, source(getattr(RedisStream, mode), min_idle=0.05))
    async with app:
        await eventually_async(lambda: app.health().subscriptions[0].counts["acked"] == 1)
        assert app.health().subscriptions[0].consumer in stream.consumers()
    assert set(stream.consumers()) == ({"gone"} if mode == "reclaim" else set())


async def test_a_stop_keeps_the_name_that_has_entries_or_is_fixed(any_server, make_broker, stream):
    """What is left pending stays whose it is."""

    async def handle(body: bytes):
        return leave()

    stream.create_group()
    entry = stream.add("left")
    app = app_of(make_broker(), source(min_idle=30), handle)
    async with app:
        name = app.health().subscriptions[0].consumer
        await eventually_async(lambda: app.health().subscriptions[0].counts["left"] == 1)
    async with app_of(make_broker(), source(consumer="clerk", min_idle=30)):
        stream.add("more")
        await eventually_async(lambda: "clerk" in stream.consumers())
    assert {row["consumer"]: row["message_id"] for row in stream.pending()} == {name: entry}
    assert set(stream.consumers()) == {name, "clerk"}


async def test_a_consumer_that_reads_just_as_it_is_deleted_loses_nothing(any_server, broker, stream):
    """The step that deletes looks first: one that got an entry meanwhile stays; one that got none is made again."""
    forget = stream.client.register_script((SCRIPTS / "forget.lua").read_text())
    stream.create_group()
    handled = []

    async def handle(body: bytes):
        handled.append(int(body))

    app = app_of(broker, source(count=3, min_idle=30), handle)
    async with app:
        name = app.health().subscriptions[0].consumer
        deleted = 0
        for number in range(400):
            stream.add(str(number))
            deleted += len(await asyncio.to_thread(forget, ["s"], ["g", 0, name]))
        await eventually_async(lambda: len(handled) >= 400)
        await eventually_async(lambda: stream.pending_ids() == [])
        deleted += len(forget(["s"], ["g", 0, name]))
        stream.add("400")
        await eventually_async(lambda: len(handled) == 401)
    assert deleted > 0
    assert sorted(handled) == list(range(401))


async def test_a_user_without_the_rights_is_told_once(any_server, make_server, make_witness, soon, caplog):
    """Neither trimming nor deleting a consumer is allowed: one line each, and entries are handled all the same."""
    server = make_server(any_server.name)
    witness = make_witness(server)
    witness.execute_command("ACL", "SETUSER", "limited", "on", ">pw", "~*", "+@all", "-xtrim", "-xgroup|delconsumer")
    witness.xgroup_create("s", "g", id="0", mkstream=True)
    witness.xgroup_createconsumer("s", "g", DEAD)
    handled = []

    async def handle(body: bytes):
        handled.append(body)

    broker = RedisBroker(server.url, username="limited", password="pw")
    async with app_of(broker, source(trim=Trim.max_length(1)), handle):
        for number in range(20):
            witness.xadd("s", {"_payload": str(number)})
        await eventually_async(lambda: len(handled) == 20)
        for part in ("looking after the group's consumers failed", "trimming the stream failed"):
            await eventually_async(lambda part=part: part in caplog.text, timeout=30)
        handled.clear()
        witness.xadd("s", {"_payload": "after"})
        await eventually_async(lambda: handled == [b"after"])
    lines = [record.getMessage() for record in caplog.records if "failed" in record.getMessage()]
    assert len(lines) == 2, lines
    assert witness.xlen("s") == 21
    assert DEAD in {row["name"].decode() for row in witness.xinfo_consumers("s", "g")}
