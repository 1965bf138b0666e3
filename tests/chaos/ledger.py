"""What the tests know from outside: the payments they added, the group as redis-py shows it, and the effects."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import redis

from chaos.service import GROUP, STREAM, Payment
from chaos.worker import Effect, Worker


@dataclass(frozen=True)
class Pending:
    """One row of XPENDING."""

    consumer: str
    idle_ms: int
    count: int


def order(entry: str) -> tuple[int, int]:
    """Return an entry id as something to sort by."""
    ms, _, seq = entry.partition("-")
    return int(ms), int(seq)


def add(witness: redis.Redis, payments: Iterable[Payment], stream: str = STREAM) -> dict[str, Payment]:
    """Add payments to the stream with redis-py, and return them by entry id."""
    added: dict[str, Payment] = {}
    waiting: list[Payment] = []

    def flush() -> None:
        with witness.pipeline(transaction=False) as pipe:
            for payment in waiting:
                pipe.xadd(stream, {"_payload": msgspec.json.encode(payment), "h:redis-partition-key": payment.account})
            added.update(zip((entry.decode() for entry in pipe.execute()), waiting, strict=True))
        waiting.clear()

    for payment in payments:
        waiting.append(payment)
        if len(waiting) == 500:
            flush()
    flush()
    return added


def add_ids(witness: redis.Redis, *ids: int, stream: str = STREAM, misdeed: str = "") -> dict[int, str]:
    """Add payments of these ids, and return their entry ids."""
    added = add(witness, (Payment(number, misdeed=misdeed) for number in ids), stream)
    return {payment.id: entry for entry, payment in added.items()}


def pending(witness: redis.Redis, consumer: str | None = None, stream: str = STREAM) -> dict[str, Pending]:
    """Return the group's pending entries by id, those of one consumer if it is given."""
    rows: list[dict[str, Any]] = witness.xpending_range(stream, GROUP, "-", "+", 100_000, consumername=consumer)
    return {
        row["message_id"].decode(): Pending(
            row["consumer"].decode(), row["time_since_delivered"], row["times_delivered"]
        )
        for row in rows
    }


def unread(witness: redis.Redis, added: Iterable[str], stream: str = STREAM) -> set[str]:
    """Return those of the added ids that the group has not delivered to anyone."""
    [group] = [group for group in witness.xinfo_groups(stream) if group["name"].decode() == GROUP]
    last = order(group["last-delivered-id"].decode())
    return {entry for entry in added if order(entry) > last}


def effects_of(*workers: Worker) -> dict[str, list[Effect]]:
    """Return all effects by entry id."""
    found: dict[str, list[Effect]] = defaultdict(list)
    for worker in workers:
        for effect in worker.effects:
            found[effect.entry].append(effect)
    return dict(found)


def out_of_order(effects: Iterable[Effect]) -> list[tuple[Effect, Effect]]:
    """Return neighbours of one consumer and key that were handled in the wrong order."""
    last: dict[tuple[str, str], Effect] = {}
    wrong = []
    for effect in effects:
        before = last.get((effect.consumer, effect.account))
        if before is not None and order(before.entry) > order(effect.entry):
            wrong.append((before, effect))
        last[effect.consumer, effect.account] = effect
    return wrong
