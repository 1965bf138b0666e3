"""An entry that ends every process it runs in is given up, and nothing that was read beside it is (B013)."""

import signal
from collections import Counter
from collections.abc import Callable

import pytest

from chaos.ledger import add, add_ids, effects_of, pending
from chaos.places import places
from chaos.service import Payment
from chaos.worker import Worker
from eventually import eventually

MIN_IDLE = 0.5
MARKS = "{payments}:ledger:attempts"
OTHERS = 2000
POISON = 1_000_000
VARIANTS = places(
    "claiming-8.10", "recovering-8.10", "recovering-8.2", "recovering-7.0", "recovering-valkey", "new+reclaim-8.2"
)
pytestmark = pytest.mark.timeout(180)
LANES = {"one": {"workers": 1}, "eight": {"workers": 8}, "by-key": {"workers": 8, "by_key": True}}


class Lives:
    """Processes of which each one that dies is followed by another."""

    def __init__(self, start: Callable[[], Worker], at_once: int) -> None:
        self._start = start
        self._live = [start() for _ in range(at_once)]
        self.all = list(self._live)

    def until(self, done: Callable[[], bool]) -> None:
        """Follow them until this is done."""

        def look() -> bool:
            for dead in [worker for worker in self._live if worker.process.poll() is not None]:
                self._live.remove(dead)
                self._live.append(self._start())
                self.all.append(self._live[-1])
            return done()

        eventually(look, timeout=90, every=0.05)

    def end(self) -> None:
        """Have those that live stop, and take in what all of them said."""
        for worker in self._live:
            worker.wait_for(started=...)
            worker.signal(signal.SIGTERM)
        for worker in self.all:
            worker.ended()

    def starts(self, number: int = POISON) -> int:
        """How often the handler of this payment was started."""
        return sum(said.get("at") == f"started:{number}" for worker in self.all for said in worker.said)

    def given_up(self) -> int:
        """How often one of them said that it gave entries up."""
        return sum(worker.log.count("have used up their") for worker in self.all)


@pytest.mark.parametrize("cap", [1, 2, 3])
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("variant", ["claiming-8.10", "recovering-7.0"])
def test_a_poison_ends_at_most_one_process_more_than_its_attempts(
    variant, lanes, cap, make_server, make_witness, start_worker, note
):
    """Two workers that are started again whenever they die: all the others are posted, the poison is given up."""
    check(VARIANTS[variant], LANES[lanes], cap, make_server, make_witness, start_worker, note)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in ("claiming-8.10", "recovering-7.0")])
def test_a_poison_is_given_up_everywhere(variant, make_server, make_witness, start_worker, note):
    """The same on each server and in each mode."""
    check(VARIANTS[variant], LANES["by-key"], 3, make_server, make_witness, start_worker, note)


def check(place, lanes, cap, make_server, make_witness, start_worker, note=lambda **_: None, misdeed="kills"):
    name, modes = place
    server = make_server(name)
    witness = make_witness(server)
    witness.xgroup_create("payments", "ledger", id="0", mkstream=True)
    options = {"min_idle": MIN_IDLE, "count": 100}
    subscriber = {**lanes, "max_attempts": cap, "max_in_flight": 200}

    def start() -> Worker:
        return start_worker(server, *modes, options=options, subscriber=subscriber, mark=[f"started:{POISON}"])

    lives = Lives(start, 2)
    payments = [Payment(number, f"acct-{number % 40}") for number in range(OTHERS)]
    payments.insert(50, Payment(POISON, "acct-7", misdeed=misdeed))
    added = add(witness, payments)
    others = {entry for entry, payment in added.items() if payment.id != POISON}

    lives.until(lambda: effects_of(*lives.all).keys() >= others and not pending(witness))
    lives.end()
    runs = lives.starts()
    posted = Counter(effect.payment for worker in lives.all for effect in worker.effects)
    assert POISON not in posted
    assert posted.keys() == set(range(OTHERS))
    assert 1 <= runs <= cap + 1, f"{runs} runs with a cap of {cap}"
    assert lives.given_up() == 1
    note(runs=runs, cap=cap, processes=len(lives.all), twice=sum(1 for times in posted.values() if times > 1))
    # Those of a process that died between an ack and the removal of its mark; they are found within a minute.
    note(stale_marks=witness.hlen(MARKS))


@pytest.mark.parametrize("workers", [1, 8])
def test_three_crashes_cost_the_neighbours_nothing(workers, make_server, make_witness, start_worker):
    """The poison and the nine read beside it all stand at 4 on the server; the nine are posted, the poison is not."""
    server = make_server("redis-8.10")
    witness = make_witness(server)
    witness.xgroup_create("payments", "ledger", id="0", mkstream=True)
    payments = [Payment(POISON, misdeed="kills"), *(Payment(number) for number in range(9))]
    ids = list(add(witness, payments))
    witness.execute_command("XREADGROUP", "GROUP", "ledger", "first", "COUNT", 10, "STREAMS", "payments", ">")
    for consumer in ["second", "third", "fourth"]:
        witness.xclaim("payments", "ledger", consumer, 0, ids)
    assert {row.count for row in pending(witness).values()} == {4}
    subscriber = {"workers": workers, "max_attempts": 3}

    def start() -> Worker:
        options = {"min_idle": MIN_IDLE}
        return start_worker(server, "recovering", options=options, subscriber=subscriber, mark=[f"started:{POISON}"])

    lives = Lives(start, 1)
    lives.until(lambda: not pending(witness))
    lives.end()
    assert {effect.payment for life in lives.all for effect in life.effects} == set(range(9))
    assert lives.starts() <= 4


@pytest.mark.parametrize("workers", [1, 4])
def test_quick_neighbours_whose_acks_are_under_way_are_not_given_up(workers, make_server, make_witness, start_worker):
    """The poison is the next to be alone after each of them: it starts once the ack before it has been answered."""
    server = make_server("redis-8.10")
    witness = make_witness(server)
    witness.xgroup_create("payments", "ledger", id="0", mkstream=True)
    payments = [Payment(number, misdeed="kills" if number % 2 else "") for number in range(6)]
    add(witness, payments)
    witness.execute_command("XREADGROUP", "GROUP", "ledger", "first", "COUNT", 10, "STREAMS", "payments", ">")
    subscriber = {"workers": workers, "max_attempts": 2}

    def start() -> Worker:
        mark = [f"started:{number}" for number in (1, 3, 5)]
        return start_worker(server, "recovering", options={"min_idle": MIN_IDLE}, subscriber=subscriber, mark=mark)

    lives = Lives(start, 1)
    lives.until(lambda: not pending(witness))
    lives.end()
    assert {effect.payment for life in lives.all for effect in life.effects} == {0, 2, 4}
    assert all(1 <= lives.starts(number) <= 3 for number in (1, 3, 5))
    ids = [line for worker in lives.all for line in worker.log.splitlines() if "have used up their" in line]
    assert sum(int(line.split(" entries have used up")[0].rsplit(" ", 1)[-1]) for line in ids) == 3


def test_a_kill_between_mark_and_start_is_no_attempt_lost(make_server, make_witness, start_worker):
    """Killed twice while a second entry, marked, waits for the lane: what ran is given up, the other one is posted."""
    server = make_server("redis-8.10")
    witness = make_witness(server)
    witness.xgroup_create("payments", "ledger", id="0", mkstream=True)
    ids = add_ids(witness, 1, 2)
    witness.execute_command("XREADGROUP", "GROUP", "ledger", "first", "COUNT", 10, "STREAMS", "payments", ">")
    options, subscriber = {"min_idle": MIN_IDLE}, {"workers": 1, "max_attempts": 2}
    lives = []
    for _ in range(2):
        life = start_worker(server, "recovering", options=options, subscriber=subscriber, hold=["started:1"])
        lives.append(life)
        life.at("started:1")
        eventually(lambda: witness.hget(MARKS, ids[2]))
        life.kill()
    lives.append(start_worker(server, "recovering", options=options, subscriber=subscriber))
    eventually(lambda: not pending(witness), timeout=20)
    assert [effect.payment for life in lives for effect in life.effects] == [2]
    assert "1 entries have used up their 2 attempts" in lives[-1].log


def test_an_exit_in_the_handler_is_the_same_as_a_kill(make_server, make_witness, start_worker):
    """`os._exit` leaves no trace of the outcome either."""
    check(
        VARIANTS["recovering-8.10"], LANES["one"], 2, make_server, make_witness, start_worker, misdeed="exits at once"
    )
