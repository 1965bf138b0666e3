"""What a handler may do inside its own task: on asyncio and on uvloop, awaiting, blocking, or in a thread."""

import asyncio
import contextvars
import threading
import time

import anyio
import msgspec
import pytest
import uvloop

from eventually import eventually_async
from ruststream import Context, RustStream, drop, retry
from ruststream.errors import AlreadySettledError
from ruststream.redis import RedisStream, StreamStart

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def on_loop(request):
    """Run a coroutine on this kind of loop."""

    def run(coroutine):
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(coroutine)

    return run


def recovering(**options: object) -> RedisStream:
    return RedisStream.recovering("s", group="g", min_idle=30, start_id=StreamStart.BEGINNING, **options)


def handled(on_loop, broker, stream, handler, bodies=("x",), expect=None, **options):
    """Run an app over these bodies until everything that was read has ended; return its counts and health."""
    broker.add_subscriber(recovering(), handler, **options)
    for body in bodies:
        stream.add(body)

    async def main():
        app = RustStream("test", broker)
        async with app:
            await eventually_async(lambda: app.health().subscriptions[0].counts["read"] >= len(bodies))
            await eventually_async(lambda: app.health().subscriptions[0].counts["in_flight"] == 0)
            return dict(app.health().subscriptions[0].counts)

    return on_loop(main())


def test_timeouts_inside_handlers_end_what_they_bound(on_loop, broker, stream):
    """asyncio.timeout and wait_for raise inside the handler, and nothing of it reaches the next message."""
    seen = []

    async def handle(body: bytes):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(10)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        async with asyncio.timeout(10):
            await asyncio.sleep(0)
        seen.append(asyncio.current_task().cancelling())

    counts = handled(on_loop, broker, stream, handle, "abc")

    assert seen == [0, 0, 0]
    assert counts["acked"] == 3


def test_a_timeout_that_leaves_the_handler_is_its_failure(on_loop, broker, stream):
    """An unhandled TimeoutError of asyncio.timeout goes through on_error; the lane's task is not cancelled by it."""

    async def handle(body: bytes):
        if body == b"slow":
            async with asyncio.timeout(0.01):
                await asyncio.sleep(10)

    bodies = ["slow", "ok", "slow", "ok"]
    counts = handled(on_loop, broker, stream, handle, bodies, on_error={TimeoutError: drop()})

    assert (counts["dropped"], counts["acked"]) == (2, 2)


def test_task_groups_inside_handlers(on_loop, broker, stream):
    """A TaskGroup awaits its children; the failure of one cancels the others and is the handler's exception group."""
    cancelled = []

    async def child(body):
        try:
            await asyncio.sleep(0 if body == b"ok" else 10)
        except asyncio.CancelledError:
            cancelled.append(body)
            raise

    async def fail():
        raise LookupError

    async def handle(body: bytes):
        async with asyncio.TaskGroup() as group:
            group.create_task(child(body))
            if body == b"bad":
                group.create_task(fail())

    counts = handled(on_loop, broker, stream, handle, ["ok", "bad", "ok"], on_error={LookupError: drop()})

    assert cancelled == [b"bad"]
    assert (counts["dropped"], counts["acked"]) == (1, 2)


def test_anyio_inside_handlers(on_loop, broker, stream):
    """Cancel scopes, task groups and threads of anyio, which find their task by current_task()."""
    seen = []

    async def handle(body: bytes):
        with anyio.move_on_after(0.01) as scope:
            await anyio.sleep(10)
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 0)
        seen.append((scope.cancelled_caught, await anyio.to_thread.run_sync(lambda: body)))

    counts = handled(on_loop, broker, stream, handle, "ab")

    assert seen == [(True, b"a"), (True, b"b")]
    assert counts["acked"] == 2


def test_the_current_task_is_the_lanes_and_is_named(on_loop, broker, stream):
    """current_task() is there before and after an await, is the same, and tells whose it is."""
    tasks = []

    async def post_payment(body: bytes):
        before = asyncio.current_task()
        await asyncio.sleep(0)
        tasks.append((before is asyncio.current_task(), before.get_name()))

    handled(on_loop, broker, stream, post_payment, "ab")

    assert all(same and "post_payment" in name for same, name in tasks)


def test_context_variables_do_not_leak_from_message_to_message(on_loop, broker, stream):
    """Each message has a context of its own: what one handler sets no other sees, before and after its awaits."""
    tenant = contextvars.ContextVar("tenant", default="none")
    seen = []

    async def handle(body: bytes):
        before = tenant.get()
        tenant.set(body)
        await asyncio.sleep(0.002)
        inner = await asyncio.create_task(read())
        seen.append((body, before, tenant.get(), inner))

    async def read():
        return tenant.get()

    bodies = [str(number).encode() for number in range(20)]
    handled(on_loop, broker, stream, handle, bodies, workers=4)

    assert sorted(seen) == sorted((body, "none", body, body) for body in bodies)


def test_context_variables_of_the_start_are_seen(on_loop, broker, stream):
    """What was set before the app started is there in every handler."""
    release, seen = contextvars.ContextVar("release"), []

    async def handle(body: bytes):
        seen.append(release.get())

    token = release.set("v1")
    try:
        handled(on_loop, broker, stream, handle, "ab")
    finally:
        release.reset(token)

    assert seen == ["v1", "v1"]


@pytest.mark.parametrize("how", ["cancels itself", "raises CancelledError", "awaits a cancelled task"])
def test_cancellation_in_a_handler_leaves_no_deaf_lane(on_loop, broker, stream, how):
    """B071: a cancellation that we did not cause is the handler's failure: pending, and the only lane goes on."""
    seen = []

    async def handle(body: bytes):
        seen.append(body)
        if body == b"ok":
            await asyncio.sleep(0)
            return
        if how == "cancels itself":
            asyncio.current_task().cancel()
            await asyncio.sleep(0)
        elif how == "raises CancelledError":
            raise asyncio.CancelledError
        else:
            task = asyncio.create_task(asyncio.sleep(10))
            task.cancel()
            await task

    counts = handled(on_loop, broker, stream, handle, ["bad", "ok", "bad", "ok"])

    assert seen == [b"bad", b"ok", b"bad", b"ok"]
    assert (counts["left"], counts["acked"]) == (2, 2)


def test_a_cancellation_that_a_handler_leaves_behind_does_not_reach_the_next_message(on_loop, broker, stream):
    """C4: it asked for its own cancellation and returned before that could arrive: its entry is done, and the next
    message of the lane is not ended by it.
    """

    async def handle(body: bytes):
        if body == b"bad":
            asyncio.current_task().cancel()
        else:
            await asyncio.sleep(0)

    counts = handled(on_loop, broker, stream, handle, ["bad", "ok", "bad", "ok"])

    assert (counts["left"], counts["acked"]) == (0, 4)


def test_a_swallowed_cancellation_leaves_no_deaf_lane(on_loop, broker, stream):
    """A handler that cancels itself and catches it goes on, returns, and is acked like any other."""
    seen = []

    async def handle(body: bytes):
        asyncio.current_task().cancel()
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            seen.append(body)
        await asyncio.sleep(0)

    counts = handled(on_loop, broker, stream, handle, "abc")

    assert seen == [b"a", b"b", b"c"]
    assert counts["acked"] == 3


def test_a_handler_that_never_ends_holds_its_own_lane_alone(on_loop, broker, stream):
    """Three entries wait for ever, in three of four lanes; the fourth handles everything else; the stop is bounded."""
    seen = []

    @broker.subscriber(recovering(), workers=4)
    async def handle(body: bytes):
        if body == b"stuck":
            await asyncio.Event().wait()
        seen.append(body)

    for body in ["stuck"] * 3 + ["ok"] * 50:
        stream.add(body)

    async def main():
        app = RustStream("test", broker, drain_timeout=0.2)
        async with app:
            await eventually_async(lambda: len(seen) == 50)
            began = time.monotonic()
        return time.monotonic() - began

    assert on_loop(main()) < 1.5
    assert len(stream.pending_ids()) == 3


def test_sync_handlers_run_in_threads_side_by_side(on_loop, broker, stream):
    """`def` handlers block their thread and not the loop: four at once for workers=4, never five."""
    running, most, threads = [], [], set()

    def handle(body: bytes):
        running.append(body)
        most.append(len(running))
        threads.add(threading.get_ident())
        time.sleep(0.02)
        running.pop()

    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    broker.add_subscriber(recovering(), handle, workers=4)
    for number in range(20):
        stream.add(str(number))

    async def main():
        app = RustStream("test", broker)
        async with app:
            ticker = asyncio.create_task(tick())
            await eventually_async(lambda: app.health().subscriptions[0].counts["acked"] == 20)
            ticker.cancel()

    on_loop(main())

    assert max(most) == 4
    assert threading.main_thread().ident not in threads
    assert ticks > 10


def test_sync_handlers_settle_like_async_ones(on_loop, broker, stream):
    """Outcomes, exceptions, StopIteration, payload types and ctx.settle from a thread."""
    seen = []

    class Job(msgspec.Struct):
        number: int

    def handle(job: Job, ctx: Context):
        seen.append(job.number)
        match job.number:
            case 1:
                return drop()
            case 2:
                raise LookupError
            case 3:
                raise StopIteration
            case 4:
                ctx.settle(drop())
                with pytest.raises(AlreadySettledError):
                    ctx.settle(retry())
        return None

    bodies = [msgspec.json.encode(Job(number)) for number in range(6)]
    counts = handled(on_loop, broker, stream, handle, bodies)

    assert seen == list(range(6))
    assert (counts["acked"], counts["dropped"], counts["left"]) == (2, 2, 2)


def test_a_handler_may_publish_and_read_the_apps_state(on_loop, broker, stream):
    """ctx.publish goes through the broker of the entry; ctx.state is what the startup made."""
    published = []

    @broker.subscriber(recovering())
    async def handle(body: bytes, ctx: Context):
        published.append((ctx.state.prefix, await ctx.publish(ctx.state.prefix + body, "next", key="k")))

    async def main():
        app = RustStream("test", broker)
        app.state.prefix = b"seen: "
        async with app:
            stream.add("x")
            await eventually_async(lambda: published)

    on_loop(main())
    [(_, entry_id)] = published
    assert stream.client.xrange("next")[0][0].decode() == str(entry_id)
    assert stream.client.xrange("next")[0][1][b"_payload"] == b"seen: x"
