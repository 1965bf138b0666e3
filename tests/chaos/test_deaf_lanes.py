"""Handlers that do what no handler should: the entry suffers, no lane goes deaf (B015, B070, B071)."""

import signal

import pytest

from chaos.ledger import add, add_ids, effects_of, pending, unread
from chaos.service import Payment
from eventually import eventually

WORKERS = 3
LONG = {"min_idle": 3600}
SOUND = [f"started:{number}" for number in range(101, 101 + WORKERS)]

FAILS = (
    "cancels itself and waits",
    "raises CancelledError",
    "awaits a task that is cancelled",
    "raises GeneratorExit",
    "has a failing group",
    "runs into its own timeout",
)
ENDS_WELL = ("cancels itself and returns", "swallows its cancellation")


@pytest.fixture
def place(make_server, make_witness):
    server = make_server("redis-8.10")
    return server, make_witness(server)


def misdeeds(witness, misdeed, count):
    return add(witness, [Payment(number, f"acct-{number}", misdeed) for number in range(1, count + 1)])


@pytest.mark.parametrize("misdeed", FAILS + ENDS_WELL)
def test_every_lane_goes_on_after_a_handler_that(misdeed, place, start_worker):
    """Twice as many misdeeds as lanes: then each lane takes a sound entry, all at once; failures stay pending."""
    server, witness = place
    worker = start_worker(
        server, "claiming", options=LONG, subscriber={"workers": WORKERS}, hold=SOUND, takes=0.001
    ).started()
    bad = misdeeds(witness, misdeed, 2 * WORKERS)
    for number in range(1, 2 * WORKERS + 1):
        worker.wait_for(does=misdeed, payment=number)
    good = add_ids(witness, *range(101, 131))
    for point in SOUND:
        worker.at(point)
    worker.go()
    left = bad.keys() if misdeed in FAILS else set()
    eventually(lambda: pending(witness).keys() == left)

    posted = [effect.payment for effect in worker.effects]
    assert sorted(posted) == sorted([*(good if misdeed in FAILS else [*range(1, 2 * WORKERS + 1), *good])])
    worker.signal(signal.SIGTERM)
    assert worker.ended()[0] == 0, worker.log[-2000:]
    assert pending(witness).keys() == left
    if misdeed in FAILS:
        assert all(entry in worker.log for entry in bad)


def test_a_cancellation_that_outlives_its_handler_does_not_hit_the_next_message(place, start_worker):
    """One lane: the handler cancels its own task and returns; the next message, which waits, is posted all the same."""
    server, witness = place
    worker = start_worker(server, "claiming", options=LONG, takes=0.01, hold=["started:1"]).started()
    add(witness, [Payment(1), Payment(2, misdeed="cancels itself and returns"), Payment(3), Payment(4)])
    worker.at("started:1")
    eventually(lambda: len(pending(witness)) == 4)
    worker.go()
    eventually(lambda: not pending(witness))

    assert [effect.payment for effect in worker.effects] == [1, 2, 3, 4]


def test_a_swallowed_cancellation_does_not_change_how_the_next_one_fails(place, start_worker):
    """One lane: after it, a failing TaskGroup fails with its own error, not with CancelledError."""
    server, witness = place
    worker = start_worker(server, "claiming", options=LONG, hold=["started:1"]).started()
    entries = add(
        witness,
        [Payment(1), Payment(2, misdeed="swallows its cancellation"), Payment(3, misdeed="has a failing group")],
    )
    worker.at("started:1")
    eventually(lambda: len(pending(witness)) == 3)
    worker.go()
    eventually(lambda: pending(witness).keys() == {list(entries)[2]})

    worker.logged("this one fails")
    assert "CancelledError" not in worker.log, worker.log


def test_a_handler_that_never_ends_keeps_one_lane_alone(place, start_worker):
    """The others go on; its entry is listed at the stop, and pending."""
    server, witness = place
    sound = SOUND[1:]
    worker = start_worker(
        server, "claiming", options=LONG, subscriber={"workers": WORKERS}, hold=sound, drain_timeout=0.5
    ).started()
    bad = misdeeds(witness, "never ends", 1)
    worker.wait_for(does="never ends")
    add_ids(witness, *range(102, 131))
    for point in sound:
        worker.at(point)
    worker.go()
    eventually(lambda: pending(witness).keys() == bad.keys())
    worker.signal(signal.SIGTERM)

    assert worker.ended()[0] == 1
    assert all(entry in worker.logged("stay pending") for entry in bad)
    assert pending(witness).keys() == bad.keys()


@pytest.mark.parametrize("threaded", [False, True], ids=["async", "def"])
@pytest.mark.parametrize(("misdeed", "code"), [("exits", 3), ("interrupts", None)])
def test_a_handler_that_ends_the_process_loses_nothing(misdeed, code, threaded, place, start_worker, note):
    """sys.exit(3) in a handler ends the process with 3, KeyboardInterrupt with an error; its entry is pending, what
    others had not begun is given back, and nothing is acked without its effect."""
    server, witness = place
    first = start_worker(
        server, "claiming", options=LONG, subscriber={"workers": 2}, takes=0.05, threaded=threaded, drain_timeout=2
    ).started()
    bad, *good = [*add(witness, [Payment(1, misdeed=misdeed)]), *add_ids(witness, *range(2, 41)).values()]
    ended, took = first.ended()

    assert ended != 0 if code is None else ended == code, first.log[-3000:]
    rows = pending(witness)
    assert rows[bad].count == 1
    running = {entry for entry, row in rows.items() if row.count == 1}
    acked = {bad, *good} - rows.keys() - unread(witness, good)
    assert acked <= effects_of(first).keys()
    second = start_worker(
        server, "claiming", options={"min_idle": 0.5}, subscriber={"workers": 2}, threaded=threaded
    ).started()
    eventually(lambda: effects_of(first, second).keys() == {bad, *good})
    eventually(lambda: not pending(witness))
    twice = {entry for entry, effects in effects_of(first, second).items() if len(effects) > 1}
    assert twice <= running - {bad}, "only what ran at that moment may have been cut off"
    assert all(effect.delivery == 1 for effect in second.effects if effect.entry not in running)
    note(code=ended, took=round(took, 2), cut_off=len(running) - 1, posted_twice=len(twice))
