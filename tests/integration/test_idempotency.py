"""idempotency=Idempotent(...): one call per message, a mark before each call, and no ack before the mark says done."""

# ruff: noqa: ARG002 - stores have the arguments that they are called with
import asyncio
import itertools
from collections import Counter

import msgspec
import pytest

from eventually import eventually_async
from ruststream import Context, Idempotent, MarkState, RustStream, ack, drop, leave, retry
from ruststream.redis import RedisBroker, RedisIdempotencyStore, RedisStream

MIN_IDLE = 0.4
PLACES = {
    "claiming-8.10": ("redis-8.10", ["claiming"]),
    "recovering-8.2": ("redis-8.2", ["recovering"]),
    "new+reclaim-7.0": ("redis-7.0", ["new", "reclaim"]),
    "recovering-valkey": ("valkey-9.1", ["recovering"]),
    "new-8.10": ("redis-8.10", ["new"]),
    "claiming-memory": ("memory", ["claiming"]),
    "new+reclaim-memory": ("memory", ["new", "reclaim"]),
}
_numbers = itertools.count()


def source(mode="claiming", **options):
    return getattr(RedisStream, mode)("s", group="g", min_idle=MIN_IDLE, start_id="0", **options)


@pytest.fixture(params=list(PLACES))
def place(request):
    """A broker of each server in turn, and the modes to read it with."""
    name, modes = PLACES[request.param]
    if name == "memory":
        return RedisBroker(f"memory://idempotency-{next(_numbers)}"), modes
    request.node.callspec.params.setdefault("server", name)
    from conftest import flush, shared

    server = shared(name, request.getfixturevalue("started_servers"))
    flush(server)
    return RedisBroker(server.url), modes


def subscribe(place, handler, **options):
    broker, modes = place
    for mode in modes:
        given = {"workers": 4, "idempotency": Idempotent(ttl=60)} | options
        broker.add_subscriber(source(mode), handler, name="post" if mode != "reclaim" else "post_again", **given)
    return broker


def counts(app):
    total = Counter()
    for one in app.health().subscriptions:
        total.update(one.counts)
    return total


def mark_of(stream, key):
    return stream.client.get(f"{{s}}:g:idempotency:post:{key}")


async def settled(app, acked):
    await eventually_async(lambda: counts(app)["acked"] >= acked and counts(app)["in_flight"] == 0, timeout=30)


async def test_a_duplicate_waits_for_a_slow_first_handler_and_is_acked_unseen(place):
    """Two publishes with one message-id; the handler takes three leases, which are renewed all the while."""
    calls = []

    async def handle(body: bytes, ctx: Context):
        calls.append(ctx.delivery_count)
        await asyncio.sleep(3 * MIN_IDLE)

    broker = subscribe(place, handle)
    app = RustStream("test", broker)
    async with app:
        await broker.publish(b"a", "s", headers={"message-id": "m"})
        await broker.publish(b"a", "s", headers={"message-id": "m"})
        await eventually_async(lambda: counts(app)["waiting"] == 1, timeout=20)
        await settled(app, 2)
        await broker.publish(b"a", "s", headers={"message-id": "m"})
        await settled(app, 3)
        assert (counts(app)["duplicates_done"], counts(app)["waiting"]) == (2, 0)

    assert calls == [1]


async def test_a_duplicate_runs_when_the_first_one_fails_and_the_wait_was_no_attempt(place):
    """The first one asks for a retry: whichever of the two runs next is handled, the other acknowledged unseen."""
    calls, go = [], asyncio.Event()

    async def handle(body: bytes, ctx: Context):
        calls.append((str(ctx.entry_id), ctx.delivery_count))
        if len(calls) == 1:
            await go.wait()
            return retry()
        return None

    broker = subscribe(place, handle)
    app = RustStream("test", broker)
    async with app:
        first = await broker.publish(b"a", "s", headers={"message-id": "m"})
        second = await broker.publish(b"a", "s", headers={"message-id": "m"})
        await eventually_async(lambda: counts(app)["waiting"] == 1, timeout=20)
        await asyncio.sleep(2 * MIN_IDLE)
        go.set()
        await eventually_async(lambda: len(calls) == 2, timeout=20)
        await eventually_async(lambda: counts(app)["duplicates_done"] == 1, timeout=20)
        await settled(app, 2)

    assert calls[0] == (str(first), 1)
    assert calls[1] != (str(second), 2), "the second entry was delivered once"


async def test_a_retry_is_handled_and_its_copies_match_the_original(place):
    """retry() frees the mark. What a replay puts back later, under the original id, is a duplicate."""
    calls = []

    async def handle(body: bytes, ctx: Context):
        calls.append((body, ctx.delivery_count))
        return retry() if ctx.delivery_count < 3 else None

    broker = subscribe(place, handle)
    app = RustStream("test", broker)
    async with app:
        first = await broker.publish(b"a", "s")
        await eventually_async(lambda: len(calls) == 3, timeout=30)
        await settled(app, 1)
        assert counts(app)["duplicates_done"] == 0

    assert calls == [(b"a", 1), (b"a", 2), (b"a", 3)]
    assert first


async def test_what_is_not_handled_frees_its_mark_and_what_is_dropped_does_not(stream, broker):
    @broker.subscriber(source(), name="post", workers=4, idempotency=Idempotent(ttl=60))
    async def handle(body: bytes):
        if body == b"raises":
            raise ValueError(body)
        return {b"leave": leave(), b"retry": retry(), b"drop": drop(), b"ack": ack()}[body]

    app = RustStream("test", broker)
    async with app:
        ids = {body: stream.add(body) for body in (b"leave", b"retry", b"raises", b"drop", b"ack")}
        await eventually_async(lambda: counts(app)["acked"] == 1 and counts(app)["dropped"] == 1)
        await eventually_async(lambda: mark_of(stream, f"entry:{ids[b'leave']}") is None)
        await eventually_async(lambda: mark_of(stream, f"entry:{ids[b'retry']}") is None)
        await eventually_async(lambda: mark_of(stream, f"entry:{ids[b'raises']}") is None)
        assert mark_of(stream, f"entry:{ids[b'drop']}") == b"done"
        assert mark_of(stream, f"entry:{ids[b'ack']}") == b"done"
        assert 50_000 < stream.client.pttl(f"{{s}}:g:idempotency:post:entry:{ids[b'ack']}") <= 60_000


async def test_a_dead_letter_that_is_put_back_is_a_duplicate_if_it_was_handled(stream, broker):
    """A replay keeps the original id in a header: handled messages are not handled again, given up ones are."""
    calls = []

    @broker.subscriber(source(), name="post", idempotency=Idempotent(ttl=60))
    async def handle(body: bytes):
        calls.append(body)

    app = RustStream("test", broker)
    async with app:
        handled = stream.add(b"a")
        await settled(app, 1)
        stream.add(b"a", x_original_entry_id=handled)
        await settled(app, 2)
        stream.add(b"b", x_original_entry_id="5-0")
        await settled(app, 3)
        assert counts(app)["duplicates_done"] == 1

    assert calls == [b"a", b"b"]


async def test_a_copy_carries_the_id_of_the_first_entry(stream, broker):
    """Of every copy, also of a copy of a copy; none of them shows it to what the handler publishes."""
    copies = []

    @broker.subscriber(source("new"), name="post", idempotency=Idempotent(ttl=60))
    async def handle(ctx: Context):
        copies.append(ctx.headers.get("x-original-entry-id"))
        if ctx.delivery_count == 3:
            await ctx.publish(b"x", "other", headers=ctx.headers.passed_on())
        return retry() if ctx.delivery_count < 3 else None

    app = RustStream("test", broker)
    async with app:
        first = stream.add(b"a")
        await settled(app, 1)
    assert copies == [None, first, first]
    [(_, fields)] = stream.client.xrange("other")
    assert b"h:x-original-entry-id" not in fields


async def test_a_foreign_mark_is_waited_for_and_never_touched(any_server, stream, broker):
    """Another owner's lease: the entry waits, pending, and runs when the lease has ended. Waiting is no delivery."""
    calls = []

    @broker.subscriber(source("recovering"), name="post", idempotency=Idempotent(ttl=60))
    async def handle(ctx: Context):
        calls.append(ctx.delivery_count)

    app = RustStream("test", broker)
    key = "{s}:g:idempotency:post:message:m"
    async with app:
        stream.client.set(key, "working other", px=600_000)
        entry = stream.add(b"a", message_id="m")
        await eventually_async(lambda: counts(app)["waiting"] == 1)
        await asyncio.sleep(3 * MIN_IDLE)
        [row] = stream.pending()
        assert (row["message_id"], row["times_delivered"], calls) == (entry, 1, [])
        assert stream.client.get(key) == b"working other"
        assert stream.client.pttl(key) > 500_000
        stream.client.pexpire(key, 100)
        await settled(app, 1)
        assert stream.client.get(key) == b"done"
    assert calls == [1]


async def test_a_mark_that_another_took_meanwhile_stays_the_others(stream, broker, caplog):
    """The lease ended while the handler ran, another began: its mark is neither removed nor overwritten."""
    running, go = asyncio.Event(), asyncio.Event()

    @broker.subscriber(source(), name="post", idempotency=Idempotent(ttl=60))
    async def handle(body: bytes):
        running.set()
        await go.wait()
        return retry() if body == b"retry" else None

    app = RustStream("test", broker)
    async with app:
        for body in (b"ack", b"retry"):
            running.clear()
            go.clear()
            entry = stream.add(body)
            await running.wait()
            key = f"{{s}}:g:idempotency:post:entry:{entry}"
            stream.client.set(key, "working other", px=600_000)
            await asyncio.sleep(MIN_IDLE)
            go.set()
            await eventually_async(lambda: counts(app)["running"] == 0 and counts(app)["unsettled"] == 0)
            await asyncio.sleep(MIN_IDLE / 2)
            assert stream.client.get(key) == b"working other"
    assert "another consumer had begun to handle them too" in caplog.text


async def test_a_handled_message_whose_entry_was_taken_over_is_marked_as_done(stream, broker):
    """The next owner of the entry finds the mark and does not repeat the work."""
    running, go, calls = asyncio.Event(), asyncio.Event(), []

    @broker.subscriber(source(), name="post", idempotency=Idempotent(ttl=60))
    async def handle(body: bytes):
        calls.append(body)
        running.set()
        await go.wait()

    async with RustStream("test", broker):
        entry = stream.add(b"a")
        await running.wait()
        stream.claim("other", entry)
        await asyncio.sleep(MIN_IDLE)
        go.set()
        await eventually_async(lambda: mark_of(stream, f"entry:{entry}") == b"done")
        # The other one never acknowledges it, so it comes back here.
        await eventually_async(lambda: stream.pending_ids() == [])
        assert calls == [b"a"]


async def test_what_is_handed_back_at_stop_leaves_no_mark(stream, make_broker):
    """The prefetch of a stopped process is taken by the next one at once, not after a lease."""
    running, go = asyncio.Event(), asyncio.Event()
    seen = []

    def app_of(handler):
        broker = make_broker()
        slow = RedisStream.claiming("s", group="g", min_idle=30, start_id="0")
        broker.add_subscriber(slow, handler, name="post", idempotency=Idempotent(ttl=600))
        return RustStream("test", broker)

    async def first(body: bytes):
        running.set()
        await go.wait()

    async def second(body: bytes):
        seen.append(body)

    async with app_of(first):
        for number in range(5):
            stream.add(str(number))
        await running.wait()
        await eventually_async(lambda: len(stream.client.keys("*idempotency*")) == 5)
        asyncio.get_running_loop().call_later(0.3, go.set)
    states = [stream.client.get(key) for key in stream.client.keys("*idempotency*")]
    assert states == [b"done"]
    async with app_of(second):
        await eventually_async(lambda: len(seen) == 4, timeout=10)
    assert seen == [b"1", b"2", b"3", b"4"]


async def test_a_server_that_refuses_marks_has_nothing_handled_unprotected(stream, broker, caplog):
    """Out of memory: reads still work, marks do not. The entry stays pending until they do; attempts are paced."""
    calls = []

    @broker.subscriber(source(), name="post", idempotency=Idempotent(ttl=60))
    async def handle(ctx: Context):
        calls.append(ctx.delivery_count)

    app = RustStream("test", broker)
    async with app:
        entry = stream.add(b"a")
        await settled(app, 1)
        second = stream.add(b"b")
        await settled(app, 2)
        try:
            third = stream.add(b"c") if stream.client.config_set("maxmemory", "0") else ""
            await settled(app, 3)
            stream.client.config_set("maxmemory-policy", "noeviction")
            pipe = stream.client.pipeline(transaction=True)
            pipe.xadd("s", {"_payload": b"d"})
            pipe.config_set("maxmemory", "1")
            fourth = pipe.execute()[0].decode()
            await eventually_async(lambda: counts(app)["mark_errors"] >= 2, timeout=10)
            errors = counts(app)["mark_errors"]
            await asyncio.sleep(1.0)
            said = [record.getMessage() for record in caplog.records if "the store failed" in record.getMessage()]
            assert all("the store failed, 1 entries wait for their mark" in line for line in said), said
            assert said
            assert counts(app)["mark_errors"] - errors < 30
            assert (stream.pending_ids(), calls) == ([fourth], [1, 1, 1])
        finally:
            stream.client.config_set("maxmemory", "0")
        await settled(app, 4)
    assert calls == [1, 1, 1, 1]
    assert entry
    assert second
    assert third


class Flaky:
    """A user's store, in memory, that fails as often as it is told to."""

    def __init__(self):
        self.marks, self.failures, self.calls = {}, Counter(), Counter()

    def _called(self, name):
        self.calls[name] += 1
        if self.failures[name] > 0:
            self.failures[name] -= 1
            raise ConnectionError(f"no {name}")

    async def begin(self, key, owner, lease):
        self._called("begin")
        mark = self.marks.setdefault(key, owner)
        return MarkState.DONE if mark == "done" else MarkState.STARTED if mark == owner else MarkState.WORKING

    async def finish(self, key, owner, ttl):
        self._called("finish")
        if self.marks.get(key, owner) == owner:
            self.marks[key] = "done"

    async def release(self, key, owner):
        self._called("release")
        if self.marks.get(key) == owner:
            del self.marks[key]

    async def renew(self, keys, owner, lease):
        self._called("renew")


@pytest.mark.parametrize("failing", ["begin", "finish"])
async def test_a_store_that_raises_holds_the_entry_back(place, failing, caplog):
    """Before the call: not handled. After it: not acked. Both go on once the store works, one call each."""
    calls, store = [], Flaky()

    async def handle(body: bytes):
        calls.append(body)

    broker, modes = place
    subscribe((broker, modes[:1]), handle, idempotency=Idempotent(ttl=60, store=store))
    app = RustStream("test", broker)
    store.failures[failing] = 5
    async with app:
        await broker.publish(b"a", "s")
        await eventually_async(lambda: store.calls[failing] >= 2, timeout=20)
        assert (calls, counts(app)["acked"]) == ([b"a"] if failing == "finish" else [], 0)
        await settled(app, 1)
        await broker.publish(b"b", "s")
        await settled(app, 2)

    assert calls == [b"a", b"b"]
    assert list(store.marks.values()) == ["done", "done"]
    assert "idempotency: the store failed" in caplog.text
    assert f"no {failing}" in caplog.text


async def test_one_message_that_its_store_does_not_take_holds_up_no_other(broker, stream):
    """A store that fails for one key: that entry waits, its neighbours are handled and acknowledged."""
    calls = []

    class Picky(Flaky):
        async def begin(self, key, owner, lease):
            if key.endswith(":message:bad"):
                raise ValueError(key)
            return await super().begin(key, owner, lease)

        async def finish(self, key, owner, ttl):
            if key.endswith(":message:worse"):
                raise ValueError(key)
            await super().finish(key, owner, ttl)

    @broker.subscriber(source(), name="post", workers=4, idempotency=Idempotent(ttl=60, store=Picky()))
    async def handle(body: bytes):
        calls.append(body)

    app = RustStream("test", broker, drain_timeout=1.0)
    async with app:
        bad, worse = stream.add(b"bad", message_id="bad"), stream.add(b"worse", message_id="worse")
        for number in range(20):
            stream.add(str(number), message_id=str(number))
        await eventually_async(lambda: counts(app)["acked"] == 20, timeout=20)
        assert stream.pending_ids() == [bad, worse]
    assert Counter(calls) == Counter([b"worse", *(str(number).encode() for number in range(20))])


async def test_a_slow_store_does_not_hold_up_what_others_park(any_server, broker, stream):
    """An entry that is due waits for its mark; meanwhile the outcomes of others of its group are carried out."""
    gate, calls = asyncio.Event(), []

    class Slow(Flaky):
        async def begin(self, key, owner, lease):
            state = await super().begin(key, owner, lease)
            if key.endswith(":message:slow") and calls:
                self.calls["waiting"] += 1
                await gate.wait()
            return state

    store, recovering = Slow(), RedisStream.recovering("s", group="g", min_idle=30, start_id="0")

    @broker.subscriber(recovering, workers=4, idempotency=Idempotent(ttl=60, store=store))
    async def handle(body: bytes, ctx: Context):
        calls.append(body)
        if ctx.delivery_count == 1:
            return retry(after=0.05 if body == b"slow" else 60)
        return None

    async with RustStream("test", broker):
        slow = stream.add(b"slow", message_id="slow")
        await eventually_async(lambda: store.calls["waiting"])
        other = stream.add(b"other", message_id="other")
        await eventually_async(lambda: stream.client.zcard("{s}:g:delayed") == 1, timeout=20)
        gate.set()
        await eventually_async(lambda: slow not in stream.pending_ids())
        assert stream.pending_ids() == [other]
    assert calls == [b"slow", b"other", b"slow"]


class Order(msgspec.Struct):
    id: int
    try_: int = msgspec.field(name="try", default=0)


async def test_a_key_is_computed_from_the_payload(place):
    """By a function, in a store of the server or of the user: orders of one number are one message."""
    calls = []

    async def handle(order: Order):
        calls.append((order.id, order.try_))

    broker = subscribe(place, handle, idempotency=Idempotent(ttl=60, key=lambda order: order.id))
    app = RustStream("test", broker)
    async with app:
        for number, attempt in [(1, 1), (2, 1), (1, 2), (1, 3), (2, 2)]:
            await broker.publish(Order(number, attempt), "s")
            await settled(app, 1)
        await settled(app, 5)
    assert sorted(calls) == [(1, 1), (2, 1)]


async def test_an_entry_whose_key_cannot_be_computed_is_a_failure_like_any_other(stream, broker, caplog):
    """What does not decode is `on_decode_error`'s, what the function raises `on_error`'s; neither is handled."""
    calls = []

    def key(order):
        if order.id == 2:
            raise LookupError("no key for 2")
        return None if order.id == 3 else order.id

    @broker.subscriber(
        source(),
        name="post",
        idempotency=Idempotent(ttl=60, key=key),
        on_decode_error=drop(),
        on_error={LookupError: drop()},
    )
    async def handle(order: Order):
        calls.append(order.id)

    app = RustStream("test", broker)
    async with app:
        stream.add(b"no json")
        for number in (1, 2, 3):
            left = stream.add(b'{"id": %d}' % number)
        await eventually_async(lambda: counts(app)["dropped"] == 2 and counts(app)["acked"] == 1)
        await eventually_async(lambda: stream.pending_ids() == [left])
    assert calls == [1]
    assert "no key for 2" in caplog.text
    assert "Idempotent(key) must return" in caplog.text


async def test_marks_may_be_kept_on_another_server(make_broker, stream, make_server, make_witness):
    """`RedisIdempotencyStore(broker)`: of another broker of the app."""
    server = make_server("redis-7.0")
    witness, broker, marks = make_witness(server), make_broker(), RedisBroker(server.url)
    calls = []

    @broker.subscriber(source(), name="post", idempotency=Idempotent(ttl=60, store=RedisIdempotencyStore(marks)))
    async def handle(body: bytes):
        calls.append(body)

    app = RustStream("test", marks, broker)
    async with app:
        stream.add(b"a", message_id="m")
        stream.add(b"a", message_id="m")
        await settled(app, 2)
    assert calls == [b"a"]
    assert witness.get("{s}:g:idempotency:post:message:m") == b"done"
    assert stream.client.keys("*idempotency*") == []


@pytest.mark.parametrize("name", ["any", "memory"])
async def test_the_steps_of_a_mark(name, any_server):
    """The table of states, by hand, on every server and in the model."""
    broker = RedisBroker(any_server.url if name == "any" else f"memory://marks-{next(_numbers)}")
    store = RedisIdempotencyStore(broker)
    async with broker:
        assert await store.begin("k", "a", 30) is MarkState.STARTED
        assert await store.begin("k", "a", 30) is MarkState.STARTED
        assert await store.begin("k", "b", 30) is MarkState.WORKING
        await store.release("k", "b")
        await store.finish("k", "b", 30)
        assert await store.begin("k", "b", 30) is MarkState.WORKING, "a foreign mark was touched"
        await store.release("k", "a")
        assert await store.begin("k", "b", 0.05) is MarkState.STARTED
        await asyncio.sleep(0.1)
        await store.renew(["k", "other"], "a", 30)
        assert await store.begin("k", "b", 30) is MarkState.WORKING
        await store.finish("k", "a", 30)
        for owner in ("a", "b"):
            await store.release("k", owner)
            assert await store.begin("k", owner, 30) is MarkState.DONE
        await store.finish("late", "a", 30)
        assert await store.begin("late", "b", 30) is MarkState.DONE


@pytest.mark.parametrize("refused", [False, True])
async def test_a_reply_is_out_before_its_message_is_done(stream, broker, refused):
    """Done comes after the reply: one that the server refuses is tried again, not taken for handled."""
    calls = []

    @broker.subscriber(source(), name="post", reply_to="replies", idempotency=Idempotent(ttl=60))
    async def handle(body: bytes) -> bytes:
        calls.append(body)
        if len(calls) == 2:
            stream.client.delete("replies")
        return b"re: " + body

    app = RustStream("test", broker)
    if refused:
        stream.client.set("replies", "no stream")
    async with app:
        entry = stream.add(b"a")
        if refused:
            await eventually_async(lambda: len(calls) == 2)
        await eventually_async(lambda: mark_of(stream, f"entry:{entry}") == b"done")
        await eventually_async(lambda: stream.pending_ids() == [])
        stream.add(b"a", x_original_entry_id=entry)
        await eventually_async(lambda: counts(app)["duplicates_done"] == 1)

    assert calls == [b"a"] * (2 if refused else 1)
    assert [fields[b"_payload"] for _, fields in stream.client.xrange("replies")] == [b"re: a"]
