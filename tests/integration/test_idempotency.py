"""idempotency=Idempotent(...): one call per message, on every server, in every mode, with every kind of key."""

import asyncio

import msgspec
import pytest

from eventually import eventually_async
from integration.idempotency import MIN_IDLE, Flaky, counts, numbers, settled, source
from ruststream import Context, Idempotent, RustStream, drop, retry
from ruststream.redis import RedisBroker

PLACES = {
    "claiming-8.10": ("redis-8.10", ["claiming"]),
    "recovering-8.2": ("redis-8.2", ["recovering"]),
    "new+reclaim-7.0": ("redis-7.0", ["new", "reclaim"]),
    "recovering-valkey": ("valkey-9.1", ["recovering"]),
    "new-8.10": ("redis-8.10", ["new"]),
    "claiming-memory": ("memory", ["claiming"]),
    "new+reclaim-memory": ("memory", ["new", "reclaim"]),
}


@pytest.fixture(params=list(PLACES))
def place(request):
    """A broker of each server in turn, and the modes to read it with."""
    name, modes = PLACES[request.param]
    if name == "memory":
        return RedisBroker(f"memory://idempotency-{next(numbers)}"), modes
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
