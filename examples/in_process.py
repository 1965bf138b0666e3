"""The same story without a server: three workers on one stream server within this process, by a clock that is moved.

One of the workers is lost as by SIGKILL: its acks are under way and never arrive. What is counted at the end is what
the stream server holds.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ruststream import RustStream
from ruststream.testing import TestApp

WORKERS: Final = 3
BURST: Final = 100
"""Payments that are published before anybody waits for them."""
GROUPS: Final = ("ledger", "fraud")
ROUNDS: Final = 20
"""Times that `min_idle` may pass until all is settled."""


def load_service(number: int) -> ModuleType:
    """Load the service once more, as another process would."""
    spec = importlib.util.spec_from_file_location(f"service_{number}", Path(__file__).with_name("service.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pending(t: TestApp) -> dict[str, int]:
    """Return how many entries each group has not settled."""
    return {group: len(t.pending("payments", group)) for group in GROUPS}


async def lose_one(t: TestApp, services: list[ModuleType]) -> set[int]:
    """Crash the worker that has most in hand. Return the payments that it has not settled."""
    rows = t.pending("payments", "ledger")
    victim, count = Counter(row.consumer for row in rows).most_common(1)[0]
    left = {row.entry_id for row in rows if row.consumer == victim}
    for service in services:
        if any(call.consumer == victim for call in t.subscriber(service.post_payment).calls):
            await t.crash(service.post_payment)
    print(f"worker {victim} was lost (crash) with {count} payments in hand", flush=True)
    return {entry.value["id"] for entry in t.stream("payments") if entry.entry_id in left}


async def story(payment: Callable[[int], dict[str, Any]], total: int) -> int:
    """Run it all and return the exit code."""
    logging.disable(logging.ERROR)
    services = [load_service(number) for number in range(WORKERS)]
    app = RustStream("payments", *(service.broker for service in services))
    began = time.monotonic()
    left: set[int] = set()
    async with TestApp(app, max_calls=100 * total) as t:
        min_idle = services[0].MIN_IDLE
        print(f"{WORKERS} workers run on a stream server within this process, min_idle {min_idle:g} s", flush=True)
        start = t.now
        for number in range(total):
            if number == total // 3 // BURST * BURST:
                t.fail_next("ack")
            message = payment(number)
            await t.publish(message, "payments", key=message["account"], wait=number % BURST == BURST - 1)
            if number == total // 3 // BURST * BURST + BURST // 2:
                left = await lose_one(t, services)
        for _ in range(ROUNDS):
            await t.advance(min_idle)
            if not any(pending(t).values()):
                break
        print(f"{t.now - start:g} s of the stream server's time took {time.monotonic() - began:.1f} s")
        return verdict(t, payment, total, left)


def verdict(t: TestApp, payment: Callable[[int], dict[str, Any]], total: int, left: set[int]) -> int:
    """Print what the stream server holds, and return the exit code."""
    records = t.stream("payments.posted").values
    posted = Counter(record["payment_id"] for record in records)
    again = {number for number, times in posted.items() if times > 1}
    locked = {number for number in range(total) if payment(number)["account"].startswith("migrating-")}
    retried = {record["payment_id"] for record in records if record["earlier_deliveries"]}
    missing = [number for number in range(total) if number not in posted]
    print(
        f"published   {total:,} payments; the stream has {t.stream('payments').length:,} entries, so none was copied",
        f"posted      {len(posted):,} payments at least once",
        f"twice       {len(again & left):,} payments in the lost worker's hand, {len(again - left):,} others",
        f"retried     {len(locked & retried):,} of the {len(locked):,} payments of locked accounts",
        f"screened    {len({entry['payment_id'] for entry in t.stream('payments.screened').values}):,} payments",
        f"XPENDING    {', '.join(f'{group} {count}' for group, count in pending(t).items())}",
        sep="\n",
    )
    if missing or any(pending(t).values()) or not left:
        print(f"FAILED: {len(missing)} payments lost, {len(left)} in the lost worker's hand", flush=True)
        return 1
    print("nothing was lost", flush=True)
    return 0
