"""The same test leads to the same calls in the same order, however often it runs."""

import asyncio
import random
from typing import Any

from ruststream import Backoff, Context, RustStream, retry
from ruststream.redis import RedisBroker, RedisStream
from ruststream.testing import TestApp

LANES = 8
Step = tuple[float, str, str, int, str]


def service(steps: list[Step], release: asyncio.Event) -> RustStream:
    """Eight lanes by key over claimed entries, eight without keys over copies; both fail now and then.

    A third subscription holds what it gets until it is released.
    """
    broker = RedisBroker("redis://localhost:1")
    dice = random.Random(3)

    async def handle(body: int, ctx: Context):
        steps.append((ctx.timestamp + ctx.lag, ctx.subscription, str(ctx.entry_id), ctx.delivery_count, "begins"))
        for _ in range(body % 3):
            await asyncio.sleep(0)
        if body % 5 == 0:
            await ctx.publish(body + 1, "copied")
        steps.append((ctx.timestamp + ctx.lag, ctx.subscription, str(ctx.entry_id), ctx.delivery_count, "ends"))
        if dice.random() < 0.3:
            return retry()
        if dice.random() < 0.1:
            raise ValueError(body)
        return None

    async def hold(_: int, ctx: Context):
        steps.append((ctx.timestamp + ctx.lag, ctx.subscription, str(ctx.entry_id), ctx.delivery_count, "begins"))
        await release.wait()
        steps.append((ctx.timestamp + ctx.lag, ctx.subscription, str(ctx.entry_id), ctx.delivery_count, "ends"))

    broker.add_subscriber(RedisStream.recovering("held", min_idle=0.7, group="g"), hold, name="held")
    options: dict[str, Any] = {"workers": LANES, "on_error": retry()}
    claimed = RedisStream.claiming("claimed", min_idle=3, group="g")
    broker.add_subscriber(claimed, handle, name="claimed", by_key=True, **options)
    broker.add_subscriber(
        RedisStream("copied", group="g", min_idle=5), handle, name="copied", backoff=Backoff(0.5, 4), **options
    )
    return RustStream("same", broker)


async def run() -> list[Step]:
    steps: list[Step] = []
    release = asyncio.Event()
    async with TestApp(service(steps, release)) as t:
        for number in range(10):
            await t.publish(number, "claimed", key=f"key-{number % 4}", wait=number % 2 == 0)
            await t.publish(number, "copied", wait=False)
        await t.settle()
        await t.publish(0, "held", wait=False)
        await t.advance(20)
        release.set()
        await t.settle()
        assert t.pending("claimed", "g") == []
    return steps


async def test_a_thousand_runs_are_one(caplog: Any):
    caplog.set_level("CRITICAL")
    first = await run()
    assert len(first) > 60
    assert len({step[3] for step in first}) > 1, "some came again"
    for _ in range(999):
        assert await run() == first
