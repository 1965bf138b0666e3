"""Killed, cut and refused at every step of a dead letter's way: none is lost, none is written twice (B009, B032)."""

import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from chaos.ledger import add_ids, pending
from chaos.proxy import Proxy
from chaos.service import STREAM
from eventually import eventually

DLQ = f"{STREAM}.dlq"
LETTER = b"x-dead-letter-reason"
"""What only the script that writes letters is sent with."""
MIN_IDLE = 0.5
ENTRIES = 60
SERVERS = {"redis-8.10": "claiming", "redis-8.2": "recovering", "redis-7.0": "recovering", "valkey-9.1": "recovering"}
REFUSING = {"options": {"min_idle": MIN_IDLE, "count": 20}, "subscriber": {"dead_letter": DLQ}, "refuses": True}


@pytest.fixture(params=list(SERVERS))
def place(request, make_server, make_witness):
    server = make_server(request.param)
    return server, make_witness(server), SERVERS[request.param]


def buried(witness):
    """How often each entry has a letter."""
    return Counter(fields[b"h:x-dead-letter-entry-id"].decode() for _, fields in witness.xrange(DLQ))


def once(ids):
    return dict.fromkeys(ids.values(), 1)


@pytest.mark.parametrize("when", ["before", "half", "after"])
def test_a_connection_cut_under_letters_costs_none_and_doubles_none(place, start_worker, note, when):
    """Before they reach the server, half way through them, and with all replies lost: sent again, written once each."""
    server, witness, mode = place
    with Proxy(server) as proxy:
        worker = start_worker(server, mode, url=proxy.url, hold=["effect:1"], **REFUSING).started()
        proxy.cut_at(LETTER, when)
        ids = add_ids(witness, *range(1, ENTRIES + 1))
        worker.at("effect:1")
        worker.go()
        eventually(lambda: not pending(witness) and len(buried(witness)) == ENTRIES, timeout=20)
        assert proxy.cuts == 1
        eventually(lambda: worker.health()["subscriptions"][0]["counts"]["dead_lettered"] == ENTRIES)

    assert buried(witness) == once(ids)
    assert Counter(effect.payment for effect in worker.effects).total() == ENTRIES
    note(cut=when, entries=ENTRIES, letters=witness.xlen(DLQ))


@pytest.mark.parametrize("when", ["before", "half", "after"])
def test_a_process_killed_under_letters_costs_none_and_doubles_none(place, start_worker, note, when):
    """kill -9 at the same three moments: what had no letter is pending, and the next process gives it up."""
    server, witness, mode = place
    with Proxy(server) as proxy:
        first = start_worker(server, mode, url=proxy.url, hold=["effect:1"], **REFUSING).started()
        proxy.cut_at(LETTER, when, then=first.process.kill)
        ids = add_ids(witness, *range(1, ENTRIES + 1))
        first.at("effect:1")
        first.go()
        assert first.ended()[0] == -signal.SIGKILL
    written = buried(witness)
    assert written.keys() | pending(witness).keys() == set(ids.values()), "each has a letter, or is pending"
    assert not written.keys() & pending(witness).keys()

    second = start_worker(server, mode, **REFUSING).started()
    eventually(lambda: not pending(witness), timeout=20)
    eventually(lambda: len(buried(witness)) == ENTRIES)
    assert buried(witness) == once(ids)
    note(killed=when, letters_before=len(written), given_up_again=len(second.effects))


def test_killed_between_the_outcome_and_its_sending_it_is_given_up_by_the_next(place, start_worker):
    """dead_letter() was said by hand, and nothing of it sent: the entry is pending, and has one letter in the end."""
    server, witness, mode = place
    first = start_worker(server, mode, die=["refused:2"], **REFUSING).started()
    ids = add_ids(witness, 1, 2, 3)
    assert first.ended()[0] == -signal.SIGKILL
    assert ids[3] in pending(witness)
    start_worker(server, mode, **REFUSING).started()
    eventually(lambda: not pending(witness), timeout=10)

    assert buried(witness) == once(ids)


def test_letters_that_had_no_answer_are_sent_again(make_server, make_witness, start_worker):
    """The server dies between outcome and letter: on its return the letters come, one each, and nobody runs again."""
    server = make_server("redis-8.10", args=("--appendonly", "yes", "--appendfsync", "always"))
    witness = make_witness(server)
    refusing = REFUSING | {"options": {"min_idle": 30}, "subscriber": {"dead_letter": DLQ, "workers": 3}}
    points = [f"effect:{number}" for number in (1, 2, 3)]
    worker = start_worker(server, "claiming", hold=points, **refusing).started()
    ids = add_ids(witness, 1, 2, 3)
    for point in points:
        worker.at(point)
    server.kill()
    worker.go()
    worker.logged("not answered")
    server.restart()
    eventually(lambda: not pending(witness), timeout=10)

    assert buried(witness) == once(ids)
    assert sorted(effect.payment for effect in worker.effects) == [1, 2, 3]


def test_owned_by_another_when_the_letters_are_sent_again_there_is_none(make_server, make_witness, start_worker):
    """Frozen while the server was away and another consumer took the entry: no letter, and it stays the other's."""
    server = make_server("redis-7.0", args=("--appendonly", "yes", "--appendfsync", "always"))
    witness = make_witness(server)
    refusing = REFUSING | {"options": {"min_idle": 30}}
    worker = start_worker(server, "recovering", hold=["effect:1"], **refusing).started()
    ids = add_ids(witness, 1)
    worker.at("effect:1")
    server.kill()
    worker.go()
    worker.logged("not answered")
    worker.signal(signal.SIGSTOP)
    server.restart()
    witness.xclaim(STREAM, "ledger", "the-next-owner", 0, [ids[1]])
    worker.signal(signal.SIGCONT)
    worker.logged("another consumer")

    [row] = pending(witness).values()
    assert (row.consumer, row.count) == ("the-next-owner", 2)
    assert witness.xlen(DLQ) == 0


@pytest.mark.parametrize("when", ["before", "half", "after"])
@pytest.mark.parametrize("killed", [False, True], ids=["cut", "killed"])
def test_a_replay_that_is_stopped_goes_on_with_the_same_command(place, note, when, killed):
    """1,000 letters, cut or killed on the way: the second run puts back the rest, and each is there once."""
    server, witness, _ = place
    letters = [{"_payload": str(number), "h:x-dead-letter-stream": STREAM} for number in range(1000)]
    with witness.pipeline(transaction=False) as pipe:
        for fields in letters:
            pipe.xadd(DLQ, fields)
        pipe.execute()
    argv = [sys.executable, "-m", "ruststream", "dlq", "replay", DLQ, "--all"]
    with Proxy(server) as proxy:
        # Of the letters' bodies this is one in the middle, as its script has it: quoted by its length.
        started: list[subprocess.Popen[str]] = []
        proxy.cut_at(b"$8\r\n_payload\r\n$3\r\n450\r\n", when, lambda: started[0].kill() if killed else None)
        env = os.environ | {"REDIS_URL": proxy.url}
        started.append(subprocess.Popen(argv, env=env, text=True, stderr=subprocess.PIPE))
        _, said = started[0].communicate(timeout=30)
        assert started[0].returncode == (-signal.SIGKILL if killed else 1)
        assert killed or "the same command goes on" in said
        left = witness.xlen(DLQ)
        assert left + witness.xlen(STREAM) == 1000
        done = subprocess.run(argv, env=env, text=True, capture_output=True, timeout=30, check=True)

    assert done.stderr.splitlines()[-1] == f"replayed {left} of {left}"
    assert Counter(int(fields[b"_payload"]) for _, fields in witness.xrange(STREAM)) == Counter(range(1000))
    assert witness.xlen(DLQ) == 0
    note(stopped=when, killed=killed, replayed_by_the_first=1000 - left)
