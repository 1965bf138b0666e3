"""The core's consumer of a subscriber: its settings, and the ways it calls the handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ruststream._core import ACK, DEAD_LETTER, DROP, LEAVE, RETRY, Consumer, Context, RedisClient
from ruststream.redis.stream import group_key

if TYPE_CHECKING:
    from ruststream.codec import Decode
    from ruststream.handler import HandlerPlan
    from ruststream.loop import Bell
    from ruststream.marks import Marking
    from ruststream.signature import Handler
    from ruststream.subscriber import Subscriber

CODES: Final = {"ack": ACK, "drop": DROP, "retry": RETRY, "leave": LEAVE, "dead_letter": DEAD_LETTER}
"""The core's number of each kind of outcome."""


def make_consumer(
    subscriber: Subscriber, client: RedisClient, bell: Bell, consumer: str, marking: Marking | None
) -> Consumer:
    """Make the core's consumer, which reads nothing yet, under this name and with these marks."""
    source = subscriber.source
    return Consumer(
        bell.engine,
        client,
        name=subscriber.name,
        stream=subscriber.stream,
        group=subscriber.group,
        consumer=consumer,
        mode=source.mode,
        min_idle=source.min_idle,
        count=source.count,
        block=source.block,
        start_id=source.start_id,
        start_at=None if source.start_at is None else source.start_at.position,
        create_group=source.create_group,
        recreate_group=source.on_missing_group == "recreate",
        max_in_flight=subscriber.max_in_flight,
        by_key=subscriber.by_key,
        renew_stalled=subscriber.renew_stalled,
        delay_key=subscriber.delay_key,
        fixed_consumer=source.consumer is not None,
        strict=subscriber.strict,
        forget_after=source.forget_after,
        trim=None if source.trim is None else (source.trim.policy, source.trim.figure),
        dead_letter=subscriber.dead_letter,
        workers=subscriber.workers * (subscriber.batch or 1),
        max_attempts=subscriber.max_attempts,
        attempts_key=group_key(subscriber.stream, subscriber.group, "attempts"),
        on_exhausted=CODES[subscriber.on_exhausted.kind],
        marks=None if marking is None else marking.settings(client),
    )


def direct(plan: HandlerPlan) -> tuple[Decode, Handler, bool] | None:
    """Return how the core may call the handler by itself, for the shapes that nearly all handlers have."""
    if plan.decode is None or not plan.is_async or plan.shape == "other":
        return None
    return plan.decode, plan.handler, plan.shape == "payload_context"


def batch(subscriber: Subscriber) -> tuple[int, float, Callable[[Context], Any], Decode | None] | None:
    """Return how the core makes batches for the handler; None where it takes one message at a time."""
    if subscriber.batch is None:
        return None
    return subscriber.batch, subscriber.batch_wait, subscriber.plan.extract, subscriber.plan.decode
