"""kill -9 of one worker process among three, in the middle of many payments (B009, and the crash half of B066).

CHAOS_PAYMENTS (20,000) is how many payments a case has, CHAOS_SEED (1) where among them the worker is killed.
"""

import os
import random
import signal
import time

import pytest

from chaos.ledger import add, effects_of, out_of_order, pending
from chaos.places import places
from chaos.service import Payment
from chaos.worker import Effect, Worker
from eventually import eventually

PAYMENTS = int(os.environ.get("CHAOS_PAYMENTS", "20000"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
MIN_IDLE = 2.0
MAX_IN_FLIGHT = 400

VARIANTS = places(
    "claiming-8.10", "recovering-8.10", "recovering-8.2", "recovering-7.0", "recovering-valkey", "new+reclaim-8.2"
)


def by_worker(rows, worker):
    return {entry: row for entry, row in rows.items() if f"-{worker.pid}-" in row.consumer}


def first_deliveries(effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if effect.delivery == 1]


def recovered(effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if effect.delivery > 1]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_killed_worker_costs_duplicates_of_what_was_in_flight_and_nothing_else(
    variant, make_server, make_witness, start_worker, note
):
    """No payment is lost; only what was pending at the kill is posted again; consumers keep each account's order."""
    name, modes = VARIANTS[variant]
    server = make_server(name)
    witness = make_witness(server)
    rng = random.Random(SEED)
    point = f"effect#{rng.randint(PAYMENTS // 20, PAYMENTS // 8)}"
    options = {"min_idle": MIN_IDLE, "count": 100}
    subscriber = {"workers": 8, "by_key": True, "max_in_flight": MAX_IN_FLIGHT}
    workers: list[Worker] = [
        start_worker(server, *modes, options=options, subscriber=subscriber, die=[point] if victim else [])
        for victim in (True, False, False)
    ]
    victim, *survivors = [worker.started() for worker in workers]

    begun = time.monotonic()
    added = add(witness, (Payment(number, f"acct-{rng.randrange(60)}") for number in range(PAYMENTS)))
    assert victim.ended()[0] == -signal.SIGKILL
    killed = time.monotonic()
    in_flight = by_worker(pending(witness), victim)

    eventually(lambda: effects_of(*workers).keys() == added.keys(), timeout=40, every=0.1)
    eventually(lambda: not pending(witness), timeout=10)
    took = time.monotonic() - killed
    for worker in survivors:
        worker.signal(signal.SIGTERM)
    assert [worker.ended()[0] for worker in survivors] == [0, 0]

    posted = effects_of(*workers)
    twice = {entry for entry, effects in posted.items() if len(effects) > 1}
    assert in_flight
    assert len(in_flight) <= MAX_IN_FLIGHT * len(modes)
    assert twice <= in_flight.keys(), f"{len(twice - in_flight.keys())} payments twice that were not in flight"
    assert all(len(effects) <= 2 for effects in posted.values())
    assert {effect.payment for effects in posted.values() for effect in effects} == set(range(PAYMENTS))
    again = [effect for worker in survivors for effect in recovered(worker.effects)]
    assert {effect.entry for effect in again} == in_flight.keys()
    assert {effect.delivery for effect in again} == {2}
    for worker in workers:
        assert not out_of_order(first_deliveries(worker.effects))
        assert not out_of_order(recovered(worker.effects))
    note(
        payments=PAYMENTS,
        killed_at=point,
        in_flight=len(in_flight),
        duplicates=len(twice),
        recovered_after=round(took, 2),
        whole_case=round(time.monotonic() - begun, 2),
    )
