"""kill -9 or a cut connection while the head of a key is kept (order="strict"): its due time outlives that (B067)."""

import signal

import pytest

from chaos.ledger import add_ids, effects_of, pending
from chaos.places import places
from chaos.service import STREAM
from chaos.tollgate import Tollgate, script
from eventually import eventually

MIN_IDLE = 0.8
DELAYED = f"{{{STREAM}}}:ledger:delayed"
STRICT = {"by_key": True, "order": "strict"}
OPTIONS = {"options": {"min_idle": MIN_IDLE}, "subscriber": STRICT}
EVERYWHERE = places("claiming-8.10", "recovering-8.2", "recovering-7.0", "recovering-valkey")


@pytest.fixture(params=list(EVERYWHERE))
def place(request, make_server, make_witness):
    name, modes = EVERYWHERE[request.param]
    server = make_server(name)
    return server, make_witness(server), modes


def clock(witness) -> float:
    seconds, micros = witness.time()
    return seconds + micros / 1e6


@pytest.fixture
def pair(place, start_worker):
    """Two processes of one service, and what tells who of them holds an entry, and who does not."""
    server, witness, modes = place
    workers = [start_worker(server, *modes, **OPTIONS) for _ in range(2)]
    for worker in workers:
        worker.started()

    def holder_first(entry: str):
        holder = pending(witness)[entry].consumer
        return sorted(workers, key=lambda worker: f"-{worker.pid}-" not in holder)

    return holder_first


@pytest.mark.parametrize("after", [MIN_IDLE / 4, 4 * MIN_IDLE], ids=["shorter", "longer"])
def test_a_kept_head_whose_process_dies_comes_back_when_due(place, pair, note, after):
    """Not before its time, however long it lay; and soon after, or once the hold of the dead has lapsed. Only once."""
    _, witness, _ = place
    begun = clock(witness)
    [entry] = add_ids(witness, 1, misdeed=f"retries after {after}").values()
    eventually(lambda: entry in pending(witness))
    first, second = pair(entry)
    first.wait_for(does=...)
    asked = clock(witness)
    if after > MIN_IDLE:
        [(_, score)] = eventually(lambda: witness.zrange(DELAYED, 0, -1, withscores=True))
        # Times are cut to milliseconds on the way.
        assert begun - 0.002 < int(-score) / 1000 - after < clock(witness) + 0.002
    first.kill()
    if after > MIN_IDLE:
        # It was claimed too early, and is parked now: a timer's to hand over.
        eventually(lambda: witness.zcount(DELAYED, 0, "+inf") == 1, timeout=20)
        assert second.effects == []
    eventually(lambda: second.effects, timeout=20)
    took = clock(witness) - asked
    eventually(lambda: not pending(witness) and not witness.exists(DELAYED), timeout=20)

    [effect] = second.effects
    assert (first.effects, effect.entry, effect.delivery) == ([], entry, 2)
    # It asked a moment after it said that it would, but the retry counts from before this looked at the clock.
    assert took > after - (asked - begun) - 0.005
    note(after=after, back_after=round(took, 3))


def test_what_waits_behind_a_head_whose_process_dies_is_not_lost(place, start_worker, note):
    """The next process takes all over: what waited behind comes when the hold has lapsed, the head when it is due."""
    server, witness, modes = place
    first = start_worker(server, *modes, **OPTIONS).started()
    [head] = add_ids(witness, 1, misdeed=f"retries after {4 * MIN_IDLE}").values()
    first.wait_for(does=...)
    eventually(lambda: witness.exists(DELAYED))
    behind = add_ids(witness, *range(2, 12))
    eventually(lambda: len(pending(witness)) == 11)
    first.kill()
    second = start_worker(server, *modes, **OPTIONS).started()
    eventually(lambda: len(second.effects) == 11, timeout=20)
    eventually(lambda: not pending(witness) and not witness.exists(DELAYED), timeout=20)

    assert first.effects == []
    assert {entry: len(effects) for entry, effects in effects_of(second).items()} == dict.fromkeys(
        [head, *behind.values()], 1
    )
    note(place_of_the_head=[effect.entry for effect in second.effects].index(head))


@pytest.mark.parametrize("answered", [False, True], ids=["sent", "answered"])
@pytest.mark.parametrize("how", ["cut", "killed"])
@pytest.mark.parametrize("step", ["KEEP", "AGAIN", "PARK"])
def test_a_kept_head_survives_each_of_its_steps(place, start_worker, note, step, how, answered):
    """Its due time noted, its next run counted, parked at a stop: cut or killed there, posted once, nothing is left."""
    server, witness, modes = place
    with Tollgate(server) as gate:
        first = start_worker(server, *modes, url=gate.url, **OPTIONS).started()

        def strike() -> None:
            if how == "killed":
                first.kill()

        gate.stop_at(script(step), strike, answered=answered)
        [entry] = add_ids(witness, 1, misdeed=f"retries after {2 * MIN_IDLE}").values()
        first.wait_for(does=...)
        if step == "PARK":
            eventually(lambda: witness.exists(DELAYED))
            first.signal(signal.SIGTERM)
        assert gate.reached.wait(20), "the step was never reached"
        workers = [first]
        if how == "killed" or step == "PARK":
            assert first.ended()[0] == (-signal.SIGKILL if how == "killed" else 0)
            workers.append(start_worker(server, *modes, **OPTIONS).started())
        eventually(lambda: effects_of(*workers) and not pending(witness), timeout=20)
        eventually(lambda: not witness.exists(DELAYED), timeout=20)
        [[effect]] = effects_of(*workers).values()

    assert effect.entry == entry
    # A run that was counted and never began counts as a delivery.
    assert effect.delivery == 2 + ((step, how, answered) == ("AGAIN", "killed", True))
    note(step=step, how=how, answered=answered, delivery=effect.delivery)


def test_a_holder_that_stands_still_loses_its_head_to_one_that_runs_it_when_due(place, pair):
    """SIGSTOP for longer than `min_idle`: another claims the head and parks it; the holder gives way afterwards."""
    _, witness, _ = place
    [entry] = add_ids(witness, 1, misdeed=f"retries after {4 * MIN_IDLE}").values()
    eventually(lambda: witness.exists(DELAYED))
    first, second = pair(entry)
    first.signal(signal.SIGSTOP)
    eventually(lambda: witness.zcount(DELAYED, 0, "+inf") == 1, timeout=20)
    first.signal(signal.SIGCONT)
    eventually(lambda: effects_of(first, second) and not pending(witness), timeout=20)

    [[effect]] = effects_of(first, second).values()
    assert effect.entry == entry
    # A read of the one that stands still may be served meanwhile: that is a claim, which costs a count.
    assert effect.delivery in (2, 3)
    eventually(lambda: not witness.exists(DELAYED), timeout=20)
