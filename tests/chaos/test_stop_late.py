"""Stops that cannot end well: slow handlers, an impatient operator, a server that is away (B017, B072, B108)."""

import signal
import time

import pytest

from chaos.ledger import add, add_ids, pending
from chaos.service import Payment
from eventually import eventually

PLACES = {
    "claiming-8.10": ("redis-8.10", ("claiming",)),
    "recovering-7.0": ("redis-7.0", ("recovering",)),
    "new+reclaim-8.10": ("redis-8.10", ("new", "reclaim")),
}
LONG = {"min_idle": 3600}
SHORT = {"min_idle": 0.5, "block": 0.2}


def listed(worker):
    """Return the line that lists what is left."""
    return worker.logged("stay pending")


def test_handlers_past_the_drain_timeout_are_cancelled_and_listed(make_server, make_witness, start_worker, note):
    """Exit 1 at the deadline, the running entries named and still pending, the queued ones given back."""
    server = make_server("redis-8.10")
    witness = make_witness(server)
    worker = start_worker(
        server,
        "claiming",
        options=LONG,
        subscriber={"workers": 2},
        drain_timeout=0.5,
        hold=["started:1", "started:2"],
    ).started()
    ids = add_ids(witness, *range(1, 11))
    worker.at("started:1")
    worker.at("started:2")
    begun = time.monotonic()
    worker.signal(signal.SIGTERM)
    code, _ = worker.ended()
    took = time.monotonic() - begun

    assert code == 1, worker.log[-2000:]
    assert 0.5 <= took < 2.5
    line = listed(worker)
    assert {number for number in ids if ids[number] in line} == {1, 2}
    assert "drain incomplete" in worker.log
    assert worker.effects == []
    rows = pending(witness)
    assert {entry for entry, row in rows.items() if row.count == 1} == {ids[1], ids[2]}
    assert {entry for entry, row in rows.items() if row.count == 0} == {ids[number] for number in range(3, 11)}
    note(drain_timeout=0.5, exit_after=round(took, 3))


@pytest.mark.parametrize("stubborn", ["cannot be cancelled", "in a thread"])
def test_a_handler_that_nothing_can_end_does_not_hold_up_the_exit(
    stubborn, make_server, make_witness, start_worker, note
):
    """One that swallows cancellation, or sits in a thread, is left behind: exit 1, its entry listed and pending."""
    server = make_server("redis-8.10")
    witness = make_witness(server)
    threaded = stubborn == "in a thread"
    worker = start_worker(
        server, "claiming", options=LONG, drain_timeout=0.5, threaded=threaded, takes=60 if threaded else 0
    ).started()
    [entry] = add(witness, [Payment(1, misdeed="" if threaded else stubborn)])
    worker.wait_for(payment=1)
    begun = time.monotonic()
    worker.signal(signal.SIGTERM)
    code, _ = worker.ended()
    took = time.monotonic() - begun

    assert code == 1, worker.log[-2000:]
    assert took < 5
    assert entry in listed(worker)
    assert pending(witness).keys() == {entry}
    note(drain_timeout=0.5, exit_after=round(took, 3))


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_second_signal_stops_at_once(second, make_server, make_witness, start_worker, note):
    """Exit 1 without waiting for the handler; what it was at is listed and stays pending."""
    server = make_server("redis-8.10")
    witness = make_witness(server)
    worker = start_worker(server, "claiming", options=LONG, drain_timeout=30, hold=["started:1"]).started()
    ids = add_ids(witness, 1, 2)
    worker.at("started:1")
    worker.signal(signal.SIGTERM)
    worker.logged("SIGTERM: stopping")
    begun = time.monotonic()
    worker.signal(second)
    code, _ = worker.ended()
    took = time.monotonic() - begun

    assert code == 1, worker.log[-2000:]
    assert took < 2.5
    assert ids[1] in listed(worker)
    assert ids[1] in pending(witness)
    assert worker.effects == []
    note(exit_after=round(took, 3))


@pytest.mark.parametrize("away", ["killed", "paused"])
@pytest.mark.parametrize(("name", "modes"), PLACES.values(), ids=PLACES)
def test_stopped_while_the_server_is_away(name, modes, away, make_server, make_witness, start_worker, note):
    """An ack that cannot be sent does not hang the stop: exit 1 within the drain timeout, the id listed."""
    server = make_server(name)
    witness = make_witness(server)
    drain_timeout = 1.5
    worker = start_worker(
        server, *modes, options=SHORT, drain_timeout=drain_timeout, hold=["effect:1"], subscriber={"workers": 2}
    ).started()
    ids = add_ids(witness, 1)
    worker.at("effect:1")
    server.kill() if away == "killed" else server.pause()
    worker.go()
    time.sleep(0.6)  # by now each of its timers has asked the server something
    begun = time.monotonic()
    worker.signal(signal.SIGTERM)
    code, _ = worker.ended()
    took = time.monotonic() - begun

    assert code == 1, worker.log[-2000:]
    assert ids[1] in listed(worker)
    assert took < drain_timeout + 1.0, worker.log[-3000:]
    note(drain_timeout=drain_timeout, exit_after=round(took, 3))


@pytest.mark.parametrize("away", ["killed", "paused"])
@pytest.mark.parametrize(("name", "modes"), PLACES.values(), ids=PLACES)
def test_stopped_idle_while_the_server_is_away(name, modes, away, make_server, make_witness, start_worker, note):
    """With nothing in flight there is nothing to wait for."""
    server = make_server(name)
    witness = make_witness(server)
    worker = start_worker(server, *modes, options=SHORT, drain_timeout=4.0).started()
    add_ids(witness, 1)
    eventually(lambda: worker.effects and not pending(witness))
    server.kill() if away == "killed" else server.pause()
    time.sleep(0.6)  # by now each of its timers has asked the server something
    begun = time.monotonic()
    worker.signal(signal.SIGTERM)
    worker.ended()
    took = time.monotonic() - begun

    assert took < 3.0, worker.log[-3000:]
    note(exit_after=round(took, 3))


def test_stopped_while_it_starts(make_server, start_worker, note):
    """A start that waits for a silent server is given up at the first signal."""
    server = make_server("redis-8.10")
    server.pause()
    worker = start_worker(server, "claiming", options=LONG)
    worker.wait_for(starting=...)
    begun = time.monotonic()
    worker.signal(signal.SIGTERM)
    worker.ended()
    took = time.monotonic() - begun

    assert took < 2.5, worker.log[-3000:]
    note(exit_after=round(took, 3))
