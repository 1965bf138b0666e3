"""kill -9 exactly between two steps of one entry's way: read, started, effect, ack sent, ack answered (B009, B016)."""

import signal

import pytest

from chaos.ledger import add_ids, effects_of, order, pending
from chaos.places import places
from eventually import eventually

MIN_IDLE = 0.5
EVERYWHERE = places("claiming-8.10", "recovering-7.0", "recovering-valkey", "new+reclaim-8.2")


@pytest.fixture(params=list(EVERYWHERE))
def place(request, make_server, make_witness):
    name, modes = EVERYWHERE[request.param]
    server = make_server(name)
    return server, make_witness(server), modes


def test_killed_between_effect_and_ack_it_is_posted_once_more(place, start_worker, note):
    """The effect is there, the ack is not: the entry comes back once, with its count, and then is gone."""
    server, witness, modes = place
    options = {"min_idle": MIN_IDLE}
    first = start_worker(server, *modes, options=options, die=["effect:2"]).started()
    ids = add_ids(witness, 1, 2, 3)
    assert first.ended()[0] == -signal.SIGKILL

    assert [effect.payment for effect in first.effects] == [1, 2]
    left = pending(witness)
    assert {ids[2], ids[3]} <= left.keys()
    second = start_worker(server, *modes, options=options).started()
    eventually(lambda: not pending(witness))

    assert [(effect.payment, effect.delivery) for effect in second.effects if effect.payment != 1] == [(2, 2), (3, 2)]
    note(pending_at_the_kill=len(left), posted_twice=len(second.effects) - 1)


def test_killed_between_reading_and_starting_nothing_is_posted_twice(place, start_worker):
    """What a dead process had read and not begun is posted by the next one, once."""
    server, witness, modes = place
    options = {"min_idle": MIN_IDLE}
    first = start_worker(server, *modes, options=options, hold=["started:1"]).started()
    ids = add_ids(witness, *range(1, 41))
    first.at("started:1")
    eventually(lambda: pending(witness).keys() == set(ids.values()))
    first.kill()

    second = start_worker(server, *modes, options=options).started()
    eventually(lambda: not pending(witness))

    assert first.effects == []
    assert [(effect.payment, effect.delivery) for effect in second.effects] == [(number, 2) for number in range(1, 41)]


def test_killed_after_the_ack_was_answered_it_never_comes_back(place, start_worker):
    """`after_ack` is called once the server has let go of the entry: a kill right then repeats nothing."""
    server, witness, modes = place
    options = {"min_idle": MIN_IDLE}
    first = start_worker(server, *modes, options=options, die=["acked:2"], hold=["started:3"]).started()
    ids = add_ids(witness, 1, 2, 3)
    assert first.ended()[0] == -signal.SIGKILL

    assert pending(witness).keys() == {ids[3]}
    second = start_worker(server, *modes, options=options).started()
    eventually(lambda: not pending(witness))

    assert [effect.payment for effect in second.effects] == [3]
    assert {entry: len(effects) for entry, effects in effects_of(first, second).items()} == dict.fromkeys(
        ids.values(), 1
    )


def test_finished_acks_are_not_held_back(place, start_worker, note):
    """Killed in job 31 of 64, 50 ms each: the 30 that ended are acked but for the last few, not kept for a batch."""
    server, witness, modes = place
    witness.xgroup_create("payments", "ledger", id="0", mkstream=True)
    ids = add_ids(witness, *range(1, 65))
    first = start_worker(server, *modes, options={"min_idle": 30}, takes=0.05, die=["started#31"])
    assert first.ended()[0] == -signal.SIGKILL

    left = pending(witness)
    assert len(first.effects) == 30
    assert {ids[number] for number in range(31, 65)} <= left.keys()
    assert len(left) <= 34 + 8
    note(pending_at_the_kill=len(left))


def test_a_new_subscription_under_a_fixed_name_takes_up_what_its_dead_self_left(
    make_server, make_witness, start_worker
):
    """Nothing recovers the group: the same name, started again, takes up its own pending entries, in order."""
    server = make_server("redis-8.10")
    witness = make_witness(server)
    options = {"consumer": "clerk", "count": 10}
    first = start_worker(server, "new", options=options, die=["effect:3"]).started()
    ids = add_ids(witness, *range(1, 31))
    assert first.ended()[0] == -signal.SIGKILL
    left = sorted(pending(witness), key=order)
    assert ids[3] in left

    second = start_worker(server, "new", options=options).started()
    eventually(lambda: not pending(witness))
    eventually(lambda: effects_of(first, second).keys() == set(ids.values()))
    # New ones may be taken between two of them, as the lanes alternate.
    assert [effect.entry for effect in second.effects if effect.delivery == 2] == left
