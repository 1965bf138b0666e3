"""Processes that trim, and delete dead consumers, are killed while they do: nothing that a group needs is gone (B055).

Each step of both is one script on the server, so a kill falls before it or after it. What a process leaves half way is
what another one has to end: a stream above its bound, a name with entries pending.
"""

import random
import signal
import time

import pytest

from chaos.ledger import add_ids, effects_of, pending
from eventually import eventually

SERVERS = ["redis-8.10", "redis-7.0", "valkey-9.1"]


@pytest.mark.parametrize("name", SERVERS)
def test_killed_again_and_again_while_it_trims_every_entry_is_handled(name, make_server, make_witness, start_worker):
    """Far more comes than may stay; five processes in turn are killed at random moments, the sixth ends the work."""
    server = make_server(name)
    witness = make_witness(server)
    rng = random.Random(7)
    options, workers, ids = {"min_idle": 0.5, "count": 20}, [], {}
    for turn in range(5):
        workers.append(start_worker(server, "recovering", options=options, trim=["max_length", 10]).started())
        ids |= add_ids(witness, *range(turn * 200 + 1, turn * 200 + 201))
        time.sleep(rng.uniform(0, 1.5))
        workers[-1].kill()
    workers.append(start_worker(server, "recovering", options=options, trim=["max_length", 10]).started())
    eventually(lambda: not pending(witness), timeout=60)
    eventually(lambda: witness.xlen("payments") == 10, timeout=60)

    assert effects_of(*workers).keys() == set(ids.values())


@pytest.mark.parametrize("name", ["redis-8.10", "redis-8.2"])
def test_killed_between_effect_and_ack_the_entry_is_still_there(name, make_server, make_witness, start_worker):
    """`Trim.acked()` deletes with the ack and not before it: what was not acknowledged comes back, body and all."""
    server = make_server(name)
    witness = make_witness(server)
    first = start_worker(server, "recovering", options={"min_idle": 0.5}, trim=["acked"], die=["effect:2"]).started()
    ids = add_ids(witness, 1, 2, 3)
    first.ended()
    assert {ids[2], ids[3]} <= pending(witness).keys()
    second = start_worker(server, "recovering", options={"min_idle": 0.5}, trim=["acked"]).started()
    eventually(lambda: not pending(witness))
    eventually(lambda: witness.xlen("payments") == 0, timeout=30)

    assert [effect.payment for effect in second.effects if effect.payment != 1] == [2, 3]


def test_a_killed_process_keeps_its_name_while_entries_are_pending_under_it(make_server, make_witness, start_worker):
    """Its entries are taken over first; its name goes by a clean stop of nobody, and by age only."""
    server = make_server("redis-8.10")
    witness = make_witness(server)
    first = start_worker(server, "recovering", options={"min_idle": 30}, hold=["started:1"]).started()
    ids = add_ids(witness, 1, 2)
    first.at("started:1")
    eventually(lambda: pending(witness).keys() == set(ids.values()))
    first.kill()
    second = start_worker(server, "recovering", options={"min_idle": 30}).started()
    add_ids(witness, 3)
    eventually(lambda: [effect.payment for effect in second.effects] == [3])
    second.signal(signal.SIGTERM)
    assert second.ended()[0] == 0

    [left] = witness.xinfo_consumers("payments", "ledger")
    assert left["pending"] == 2
    assert pending(witness).keys() == set(ids.values())
