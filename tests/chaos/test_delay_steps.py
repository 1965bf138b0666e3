"""kill -9 or a cut connection at each step of a delayed retry: asked for, scheduled, due, handed over (B104)."""

import signal

import pytest

from chaos.ledger import add_ids, effects_of, pending
from chaos.service import STREAM
from chaos.tollgate import Tollgate, script
from eventually import eventually

MIN_IDLE, AFTER = 0.5, 0.4
DELAYED = f"{{{STREAM}}}:ledger:delayed"
SERVERS = ("redis-8.10", "redis-8.2", "redis-7.0", "valkey-9.1")
# Which command a step is, and what its answer has when it did something.
STEPS = {
    "park": (script("PARK"), b""),
    "hand over": (script("DUE"), b"_payload"),
    "claim early": (script("EARLY"), b"$"),
    "schedule": (script("RETRY"), b":1"),
    "move back": (script("DUE"), b"*8\r\n:1\r\n"),
}
IN_PLACE, COPIED = ("park", "hand over", "claim early"), ("schedule", "move back")
MOVES = [(step, "recovering") for step in IN_PLACE] + [(step, "new") for step in COPIED]


@pytest.fixture(params=SERVERS)
def server(request, make_server):
    return make_server(request.param)


def options_of(mode):
    # A fixed name: what the first life of a `new` consumer left pending is its second one's.
    return {"consumer": "clerk"} if mode == "new" else {"min_idle": MIN_IDLE}


@pytest.mark.parametrize("answered", [False, True], ids=["sent", "answered"])
@pytest.mark.parametrize("how", ["cut", "killed"])
@pytest.mark.parametrize(("step", "mode"), MOVES, ids=[step.replace(" ", "-") for step, _ in MOVES])
def test_a_delayed_retry_survives_each_of_its_steps(
    server, make_witness, start_worker, note, step, mode, how, answered
):
    """Whatever was lost at the step, request or answer or process: posted once, and nothing is left anywhere."""
    witness = make_witness(server)
    after = 3 * MIN_IDLE if step == "claim early" else AFTER
    what, expected = STEPS[step]
    with Tollgate(server) as gate:
        first = start_worker(server, mode, url=gate.url, options=options_of(mode)).started()

        def strike() -> None:
            if how == "killed":
                first.kill()

        if step in ("park", "schedule", "claim early"):
            gate.stop_at(what, strike, answered=answered, expected=expected)
            ids = add_ids(witness, 1, misdeed=f"retries after {after}")
        else:
            ids = add_ids(witness, 1, misdeed=f"retries after {after}")
            [(_, due)] = eventually(lambda: witness.zrange(DELAYED, 0, -1, withscores=True))
            gate.stop_at(what, strike, answered=answered, expected=expected, not_before=int(due) / 1000)
        assert gate.reached.wait(20), "the step was never reached"
        workers = [first]
        if how == "killed":
            assert first.ended()[0] == -signal.SIGKILL
            workers.append(start_worker(server, mode, options=options_of(mode)).started())
        eventually(lambda: sum(map(len, effects_of(*workers).values())) and not pending(witness), timeout=20)
        eventually(lambda: not witness.exists(DELAYED), timeout=20)
        effects = [effect for found in effects_of(*workers).values() for effect in found]

    # What was moved back comes by another connection than the answer: its reader may have it before the kill.
    most = 2 if (step, how, answered) == ("move back", "killed", True) else 1
    assert [effect.payment for effect in effects] in ([1], [1] * most)
    assert effects[0].delivery >= 2
    if mode == "recovering":
        assert effects[0].entry == ids[1]
        assert witness.xlen(STREAM) == 1
    note(step=step, how=how, answered=answered, delivery=effects[0].delivery)


@pytest.mark.parametrize("after", [0.3, 1.5])
def test_killed_while_an_entry_is_parked_it_comes_back_when_due(server, make_witness, start_worker, note, after):
    """Another process hands it over: not before its time, and, where the delay is shorter than its poll, soon after."""
    witness = make_witness(server)

    def clock() -> float:
        seconds, micros = witness.time()
        return seconds + micros / 1e6

    first = start_worker(server, "recovering", options=options_of("recovering")).started()
    second = start_worker(server, "recovering", options=options_of("recovering")).started()
    workers = [first, second]
    ids = add_ids(witness, 1, misdeed=f"retries after {after}")
    [(_, due)] = eventually(lambda: witness.zrange(DELAYED, 0, -1, withscores=True))
    [row] = pending(witness).values()
    asked = next(worker for worker in workers if str(worker.pid) in row.consumer)
    asked.kill()
    eventually(lambda: effects_of(*workers))
    late = clock() - int(due) / 1000

    [[effect]] = effects_of(*workers).values()
    assert (effect.entry, effect.delivery) == (ids[1], 2)
    assert late >= 0
    assert late < 0.5 + MIN_IDLE
    eventually(lambda: not pending(witness) and not witness.exists(DELAYED))
    note(after=after, late=round(late, 3))
