"""kill -9 between the steps of an idempotent message: working, effect, done, ack. Nothing is lost."""

import signal

import pytest

from chaos.ledger import add_ids, pending
from chaos.places import places
from eventually import eventually

MIN_IDLE = 0.5
EVERYWHERE = places("claiming-8.10", "recovering-7.0", "recovering-valkey", "recovering-8.2")


@pytest.fixture(params=list(EVERYWHERE))
def place(request, make_server, make_witness):
    name, modes = EVERYWHERE[request.param]
    server = make_server(name)
    return server, make_witness(server), modes


def marks(witness):
    """State by entry id."""
    return {key.rsplit(b":", 1)[1].decode(): witness.get(key) for key in witness.keys("*:idempotency:*")}


def start(start_worker, place, **config):
    server, _, modes = place
    return start_worker(server, *modes, options={"min_idle": MIN_IDLE}, idempotent=60.0, **config).started()


def test_killed_between_effect_and_mark_the_work_is_repeated(place, start_worker):
    """The mark says working and ends with its lease: once more for that message, once for all others."""
    _, witness, _ = place
    first = start(start_worker, place, die=["effect:2"])
    ids = add_ids(witness, 1, 2, 3)
    assert first.ended()[0] == -signal.SIGKILL
    assert marks(witness)[ids[2]].startswith(b"working ")

    second = start(start_worker, place)
    eventually(lambda: not pending(witness), timeout=20)

    effects = [effect.payment for worker in (first, second) for effect in worker.effects]
    assert sorted(effects) in ([1, 2, 2, 3], [1, 1, 2, 2, 3]), "the ack of 1 may not have got out"
    eventually(lambda: set(marks(witness).values()) == {b"done"})


def test_killed_between_mark_and_ack_the_work_is_not_repeated(place, start_worker):
    """The mark says done, the entry is pending: it is acknowledged without a call."""
    _, witness, _ = place
    first = start(start_worker, place, marked_dies=2)
    ids = add_ids(witness, 1)
    eventually(lambda: not pending(witness))
    ids |= add_ids(witness, 2)
    assert first.ended()[0] == -signal.SIGKILL
    assert marks(witness)[ids[2]] == b"done"
    assert ids[2] in pending(witness)

    second = start(start_worker, place)
    ids |= add_ids(witness, 3)
    eventually(lambda: not pending(witness), timeout=20)

    assert [effect.payment for effect in first.effects] == [1, 2]
    assert [effect.payment for effect in second.effects] == [3]


def test_killed_while_a_duplicate_waits_neither_is_lost(place, start_worker):
    """Two publishes of one message, the process dies in the first: the message is handled once more, and once only."""
    _, witness, _ = place
    first = start(start_worker, place, hold=["started:1"], subscriber={"workers": 4})
    body = {"_payload": b'{"id": 1}', "h:message-id": "m"}
    for _ in range(2):
        witness.xadd("payments", body)
    first.at("started:1")
    eventually(lambda: len(pending(witness)) == 2)
    first.kill()

    second = start(start_worker, place, subscriber={"workers": 4})
    eventually(lambda: not pending(witness), timeout=20)
    assert first.effects == []
    assert [effect.payment for effect in second.effects] == [1]


def test_a_restarted_server_finds_the_marks_asked_for_again(make_server, make_witness, start_worker):
    """The server goes away and comes back empty of scripts: nothing is handled twice, all of it is handled."""
    server = make_server("redis-8.10", args=("--appendonly", "yes", "--appendfsync", "always"))
    witness = make_witness(server)
    worker = start_worker(
        server, "claiming", options={"min_idle": 5.0}, idempotent=60.0, subscriber={"workers": 4}, takes=0.02
    ).started()
    ids = add_ids(witness, *range(1, 101))
    eventually(lambda: len(worker.effects) >= 20)
    server.restart()
    eventually(lambda: not pending(make_witness(server)), timeout=30)
    eventually(lambda: len(worker.effects) >= 100)
    assert sorted(effect.payment for effect in worker.effects) == list(range(1, 101))
    assert len(ids) == 100
