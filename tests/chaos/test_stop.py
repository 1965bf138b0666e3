"""SIGTERM and SIGINT: what runs ends and is acked, what was never started is given back, exit 0 (B016, B073)."""

import re
import signal
import time

import pytest

from chaos.ledger import add, add_ids, effects_of, pending, unread
from chaos.places import places
from chaos.service import GROUP, STREAM, Payment
from eventually import eventually

EVERYWHERE = places(
    "claiming-8.10",
    "recovering-8.10",
    "recovering-8.2",
    "recovering-7.0",
    "recovering-valkey",
    "new+reclaim-8.10",
    "new+reclaim-7.0",
)
TERM, INT = signal.SIGTERM, signal.SIGINT
# Both signals go the same way: SIGINT is tried once with each kind of give-back.
SIGNALLED = [pytest.param(place, TERM, id=f"{place}-TERM") for place in EVERYWHERE] + [
    pytest.param(place, INT, id=f"{place}-INT") for place in ("claiming-8.10", "new+reclaim-7.0")
]
LONG = {"min_idle": 3600, "count": 100}


@pytest.fixture(params=list(EVERYWHERE))
def place(request, make_server, make_witness):
    name, modes = EVERYWHERE[request.param]
    server = make_server(name)
    return server, make_witness(server), modes


def counted(line: str) -> dict[str, int]:
    """Sum the counts of a `drain complete` line over its subscriptions."""
    found: dict[str, int] = {}
    for name, number in re.findall(r"(acked|released|left pending) (\d+)", line):
        found[name] = found.get(name, 0) + int(number)
    return found


@pytest.mark.parametrize(("place", "number"), SIGNALLED, indirect=["place"])
def test_stopped_under_load_acked_and_pending_and_unread_are_all(number, place, start_worker, note):
    """Nothing is lost or handled twice by a stop: what was acked has its effect, the rest goes to the next instance."""
    server, witness, modes = place
    subscriber = {"workers": 8, "by_key": True, "max_in_flight": 400}
    first = start_worker(
        server, *modes, options=LONG, subscriber=subscriber, takes=0.002, hold=["started#400"]
    ).started()
    added = add(witness, (Payment(payment, f"acct-{payment % 40}") for payment in range(2000)))
    held = first.at("started#400")
    first.signal(number)
    first.logged(f"{number.name}: stopping")
    begun = time.monotonic()
    first.go()
    code, _ = first.ended()
    took = time.monotonic() - begun

    assert code == 0, first.log[-2000:]
    back, new = pending(witness), unread(witness, added)
    acked = added.keys() - back.keys() - new
    done = effects_of(first)
    assert done.keys() == acked
    assert all(len(effects) == 1 for effects in done.values())
    assert held["entry"] in acked
    assert back, "nothing was given back: the stop came too late"
    assert {row.count for row in back.values()} == {0}
    assert counted(first.logged("drain complete")) == {
        "acked": len(acked),
        "released": len(back),
        "left pending": 0,
    }
    assert took < 2, f"it took {took:.2f} s to end after the last handler"

    second = start_worker(server, *modes, options=LONG, subscriber=subscriber).started()
    eventually(lambda: second.effects)
    eventually(lambda: effects_of(first, second).keys() == added.keys(), timeout=20)
    eventually(lambda: not pending(witness))
    assert {effect.delivery for effect in second.effects} == {1}, "a give-back must not cost an attempt"
    assert len(second.effects) == len(added) - len(acked)
    note(acked=len(acked), given_back=len(back), unread=len(new), exit_after_handler=round(took, 3))


def test_what_is_given_back_goes_to_the_next_reader_at_once(place, start_worker, note):
    """Another consumer gets it by its first command: from 8.8 on whatever its min_idle, below as long idle."""
    server, witness, modes = place
    first = start_worker(server, *modes, options=LONG, hold=["started:1"]).started()
    ids = add_ids(witness, *range(1, 65))
    first.at("started:1")
    eventually(lambda: len(pending(witness)) == 64)
    first.signal(signal.SIGTERM)
    first.logged("SIGTERM: stopping")
    eventually(lambda: {row.count for entry, row in pending(witness).items() if entry != ids[1]} == {0})
    begun = time.monotonic()
    if server.name == "redis-8.10":
        reply = witness.xreadgroup(GROUP, "next", {STREAM: ">"}, count=100, claim_min_idle_time=3_600_000)
        [entries] = reply.values() if isinstance(reply, dict) else [found for _, found in reply]
        entries = entries[0] if entries and isinstance(entries[0], list) else entries
        taken = {entry[0].decode(): int(entry[3]) for entry in entries}
    else:
        reply = witness.xautoclaim(STREAM, GROUP, "next", min_idle_time=3_600_000, count=100)
        taken = {entry[0].decode(): pending(witness)[entry[0].decode()].count - 1 for entry in reply[1]}
    took = time.monotonic() - begun

    assert taken == {ids[payment]: 0 for payment in range(2, 65)}
    first.go()
    assert first.ended()[0] == 0
    assert [effect.payment for effect in first.effects] == [1]
    assert pending(witness).keys() == taken.keys(), "the running handler's entry is acked, nobody else's is touched"
    note(given_back=len(taken), one_command_took=round(took, 3))


def test_an_instance_that_runs_already_takes_over_what_is_given_back(place, start_worker, note):
    """A rolling restart: the other instance, blocked in its read, gets it long before min_idle, without an attempt."""
    server, witness, modes = place
    options = {"min_idle": 3600, "block": 30}
    first = start_worker(server, *modes, options=options, hold=["started:1"]).started()
    add_ids(witness, *range(1, 65))
    first.at("started:1")
    eventually(lambda: len(pending(witness)) == 64)
    second = start_worker(server, *modes, options=options).started()
    eventually(lambda: witness.info("clients")["blocked_clients"] >= (2 if "reclaim" not in modes else 1))
    begun = time.monotonic()
    first.signal(signal.SIGTERM)
    eventually(lambda: len(second.effects) == 63, timeout=8)
    took = time.monotonic() - begun
    first.go()

    assert first.ended()[0] == 0, first.log[-2000:]
    eventually(lambda: not pending(witness))
    assert {effect.delivery for effect in second.effects} == {1}
    assert [effect.payment for effect in first.effects] == [1]
    note(taken_over_after=round(took, 3))
    scans = server.name != "redis-8.10" or "reclaim" in modes
    assert took < (2.5 if scans else 0.5), "a scan looks once a second, a blocked CLAIM is woken"


@pytest.mark.parametrize(("place", "number"), SIGNALLED, indirect=["place"])
def test_stopped_while_idle_it_ends_at_once(number, place, start_worker, note):
    """A read that is blocked for a minute is woken by the stop."""
    server, witness, modes = place
    worker = start_worker(server, *modes, options={"min_idle": 30, "block": 60}).started()
    add_ids(witness, 1)
    eventually(lambda: worker.effects and not pending(witness))
    eventually(lambda: witness.info("clients")["blocked_clients"] >= 1)
    begun = time.monotonic()
    worker.signal(number)
    code, _ = worker.ended()
    took = time.monotonic() - begun

    assert code == 0, worker.log[-2000:]
    assert took < 1.5
    assert counted(worker.logged("drain complete")) == {"acked": 1, "released": 0, "left pending": 0}
    note(exit_after=round(took, 3))


def test_a_new_subscription_without_a_recoverer_works_its_queue_off(make_server, make_witness, start_worker, note):
    """Nobody would take up what it gives back, so it gives nothing back: all that was read is handled, then exit 0."""
    server = make_server("redis-8.10")
    witness = make_witness(server)
    witness.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    ids = add_ids(witness, *range(1, 301))
    worker = start_worker(server, "new", options={"count": 50}, takes=0.005, hold=["started:1"]).started()
    worker.at("started:1")
    read = eventually(lambda: len(pending(witness)) == 200 and pending(witness))
    worker.signal(signal.SIGTERM)
    worker.logged("SIGTERM: stopping")
    worker.go()
    code, took = worker.ended()

    assert code == 0, worker.log[-2000:]
    assert [effect.entry for effect in worker.effects] == sorted(read, key=lambda entry: [*map(int, entry.split("-"))])
    assert pending(witness) == {}
    assert unread(witness, ids.values()) == set(ids.values()) - read.keys()
    assert counted(worker.logged("drain complete"))["acked"] == 200
    note(worked_off=len(read), took=round(took, 2))
