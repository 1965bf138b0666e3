"""A handler blocks the event loop: leases are renewed beside it, until it has gone on for too long (B004, B108)."""

import signal
import time

import pytest

from chaos.ledger import add_ids, effects_of, pending
from eventually import eventually

MIN_IDLE = 0.3
STALLED = 1.0
PLACES = {
    "claiming-8.10": ("redis-8.10", ("claiming",)),
    "recovering-7.0": ("redis-7.0", ("recovering",)),
    "new+reclaim-8.10": ("redis-8.10", ("new", "reclaim")),
}


@pytest.fixture(params=list(PLACES))
def place(request, make_server, make_witness):
    name, modes = PLACES[request.param]
    server = make_server(name)
    return server, make_witness(server), modes


def test_a_loop_blocked_for_ten_times_min_idle_keeps_its_entries(place, start_worker, note):
    """Another process waits for them in vain: what runs and what is queued is handled once, by the one that has it."""
    server, witness, modes = place
    options = {"min_idle": MIN_IDLE}
    first = start_worker(server, *modes, options=options, freeze=["started:1"]).started()
    ids = add_ids(witness, *range(1, 21))
    first.at("started:1")
    eventually(lambda: len(pending(witness)) == 20)
    second = start_worker(server, *modes, options=options).started()
    oldest = 0
    until = time.monotonic() + 10 * MIN_IDLE
    while time.monotonic() < until:
        oldest = max(oldest, *(row.idle_ms for row in pending(witness).values()))
        time.sleep(0.02)
    first.go()
    eventually(lambda: not pending(witness))

    assert [effect.payment for effect in first.effects] == list(range(1, 21))
    assert second.effects == []
    assert oldest < MIN_IDLE * 1000, f"an entry lay idle for {oldest} ms"
    assert effects_of(first, second).keys() == set(ids.values())
    note(blocked=10 * MIN_IDLE, min_idle=MIN_IDLE, longest_idle_ms=oldest)


def test_a_loop_that_stalls_too_long_gives_its_entries_up(place, start_worker, note):
    """Beyond renew_stalled it lets go of what ran and what was queued, and does not take it again; another process
    gets it, and the first one's late ack leaves it alone."""
    server, witness, modes = place
    options = {"min_idle": MIN_IDLE}
    subscriber = {"renew_stalled": STALLED}
    first = start_worker(server, *modes, options=options, subscriber=subscriber, freeze=["started:1"]).started()
    ids = add_ids(witness, *range(1, 6))
    first.at("started:1")
    eventually(lambda: len(pending(witness)) == 5)
    begun = time.monotonic()
    eventually(lambda: all(row.idle_ms > 2000 * MIN_IDLE for row in pending(witness).values()))
    given_up = time.monotonic() - begun
    assert {row.count for row in pending(witness).values()} == {1}
    begun = time.monotonic()
    second = start_worker(server, *modes, options=options, hold=["effect:1"]).started()
    second.at("effect:1")
    took = time.monotonic() - begun
    first.go()
    eventually(lambda: first.health()["subscriptions"][0]["counts"]["running"] == 0)
    first.logged("renew_stalled")

    owned = pending(witness)
    assert owned.keys() == set(ids.values()), "a late ack removed what another process owns"
    assert all(f"-{second.pid}-" in row.consumer for row in owned.values())
    assert {row.count for row in owned.values()} == {2}
    assert [effect.payment for effect in first.effects] == [1], "what was queued belongs to the other one now"
    second.go()
    eventually(lambda: not pending(witness))
    assert [effect.payment for effect in second.effects] == [1, 2, 3, 4, 5]
    add_ids(witness, 6)
    eventually(lambda: 6 in [effect.payment for effect in [*first.effects, *second.effects]])
    note(renew_stalled=STALLED, idle_for_two_min_idle_after=round(given_up, 2), taken_over_after=round(took, 2))


def test_a_stop_that_comes_while_the_loop_is_blocked_is_obeyed_after_it(place, start_worker):
    """SIGTERM during the block: the handler ends, its entry is acked, the rest goes back, exit 0."""
    server, witness, modes = place
    worker = start_worker(server, *modes, options={"min_idle": 3600}, freeze=["started:1"]).started()
    ids = add_ids(witness, 1, 2, 3)
    worker.at("started:1")
    eventually(lambda: len(pending(witness)) == 3)
    worker.signal(signal.SIGTERM)
    worker.go()
    code, _ = worker.ended()

    assert code == 0, worker.log[-2000:]
    posted = [effect.payment for effect in worker.effects]
    assert posted == list(range(1, len(posted) + 1))
    assert 1 <= len(posted) <= 3
    rows = pending(witness)
    assert rows.keys() == {ids[number] for number in (1, 2, 3) if number not in posted}
    assert {row.count for row in rows.values()} <= {0}
