"""Connections are cut, the server stands still, answers are lost: no entry is (B001, B032, B033, B035)."""

import signal
import time

import pytest

from chaos.flow import MODES, Flow, all_settled, feed_and_settle
from chaos.ledger import add_ids, pending
from chaos.service import GROUP, STREAM
from eventually import eventually

ENTRIES = 600
CUTS = (60, 61, 180, 300, 420)
ROUNDS = 6


def make_flows(name, server, witness, start_worker, min_idle, **config):
    flows = []
    for mode in MODES[name]:
        options = {"count": 20} if mode == "new" else {"count": 20, "min_idle": min_idle}
        worker = start_worker(server, mode, stream=f"payments-{mode}", options=options, **config)
        flows.append(Flow(mode, worker.started(), witness))
    return flows


@pytest.mark.parametrize("name", MODES)
def test_cuts_in_the_middle_of_the_flow_lose_nothing(name, make_server, make_witness, start_worker, note):
    """All connections are killed at five points of the flow, twice in a row at one: every payment is posted."""
    server = make_server(name)
    witness = make_witness(server)
    marks = [f"started#{at}" for at in CUTS]
    flows = make_flows(name, server, witness, start_worker, 0.5, subscriber={"workers": 4}, takes=0.001, mark=marks)
    for flow in flows:
        flow.feed(*range(ENTRIES))
    for mark in marks:
        flows[-1].worker.at(mark)
        server.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    took = all_settled(flows, *range(ENTRIES), timeout=20)

    repeats = {flow.mode: sum(flow.posted().values()) - ENTRIES for flow in flows}
    assert all(flow.worker.state() == "reading" for flow in flows)
    assert not any(repeats.values()), "what was held was acked on the new connection, not handled again"
    note(server=name, cuts=len(CUTS), posted_twice=repeats, settled_after=took)


@pytest.mark.parametrize("name", MODES)
def test_a_cut_while_idle_delays_the_next_entry_by_the_backoff_alone(
    name, make_server, make_witness, start_worker, note
):
    """A blocked read that was cut is asked again at once; also after three cuts in a row."""
    server = make_server(name)
    witness = make_witness(server)
    flows = make_flows(name, server, witness, start_worker, 0.2)
    feed_and_settle(flows, 1)
    took = []
    for number in range(2, 5):
        server.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        took.append(feed_and_settle(flows, number, timeout=5))

    assert all(flow.posted() == dict.fromkeys(range(1, 5), 1) for flow in flows)
    note(server=name, next_entry_after=took)
    assert all(seconds < 1.5 for each in took for seconds in each.values()), took


@pytest.mark.parametrize("name", MODES)
def test_a_server_that_stands_still_costs_only_its_time(name, make_server, make_witness, start_worker, note):
    """Paused for longer than min_idle, with one handler running and one ack on its way: both acked, nothing twice."""
    server = make_server(name)
    witness = make_witness(server)
    flows = make_flows(
        name, server, witness, start_worker, 0.5, subscriber={"workers": 2}, hold=["started:2", "effect:1"]
    )
    for flow in flows:
        flow.feed(1, 2)
    for flow in flows:
        flow.worker.at("effect:1")
        flow.worker.at("started:2")
    server.pause()
    for flow in flows:
        flow.worker.go()
        eventually(lambda flow=flow: set(flow.posted()) == {1, 2})
    time.sleep(2.0)  # what is measured is that this makes no difference
    server.resume()
    took = feed_and_settle(flows, 3, timeout=8)
    recoverers = [flow for flow in flows if flow.mode != "new"]
    for flow in recoverers:
        flow.abandon(4)
    recovered = all_settled(recoverers, 4, timeout=8)

    for flow in flows:
        assert flow.posted() == dict.fromkeys([1, 2, 3] if flow.mode == "new" else [1, 2, 3, 4], 1)
    assert all(seconds < 2.0 for seconds in took.values()), took
    assert all(seconds < 2.5 for seconds in recovered.values()), recovered
    note(server=name, paused=2.0, next_entry_after=took, abandoned_one_after=recovered)


MODES_OF_ONE = {"claiming": ("claiming",), "recovering": ("recovering",), "new+reclaim": ("new", "reclaim")}


@pytest.mark.parametrize("modes", MODES_OF_ONE.values(), ids=MODES_OF_ONE)
def test_acks_that_had_no_answer_are_sent_again(modes, make_server, make_witness, start_worker, note):
    """The server dies between effect and ack: on its return the ack arrives, and no payment is posted again."""
    server = make_server("redis-8.10", args=("--appendonly", "yes", "--appendfsync", "always"))
    witness = make_witness(server)
    points = [f"effect:{number}" for number in (1, 2, 3)]
    worker = start_worker(server, *modes, options={"min_idle": 30}, subscriber={"workers": 3}, hold=points).started()
    ids = add_ids(witness, 1, 2, 3)
    for point in points:
        worker.at(point)
    server.kill()
    worker.go()
    worker.logged("not answered")
    server.restart()
    back = time.monotonic()
    assert pending(witness).keys() <= set(ids.values())
    eventually(lambda: not pending(witness))
    took = time.monotonic() - back

    assert sorted(effect.payment for effect in worker.effects) == [1, 2, 3]
    assert took < 2.5
    note(acked_after=round(took, 2))


@pytest.mark.parametrize("name", ["redis-8.10", "redis-7.0"])
def test_a_resent_ack_does_not_remove_what_another_consumer_owns_by_then(name, make_server, make_witness, start_worker):
    """Its process is frozen while another consumer takes the entry: the ack comes too late and leaves it alone."""
    server = make_server(name, args=("--appendonly", "yes", "--appendfsync", "always"))
    witness = make_witness(server)
    worker = start_worker(server, "recovering", options={"min_idle": 30}, hold=["effect:1"]).started()
    ids = add_ids(witness, 1)
    worker.at("effect:1")
    server.kill()
    worker.go()
    worker.logged("not answered")
    worker.signal(signal.SIGSTOP)
    server.restart()
    witness.xclaim(STREAM, GROUP, "the-next-owner", 0, [ids[1]])
    worker.signal(signal.SIGCONT)

    worker.logged("another consumer")
    add_ids(witness, 2)
    eventually(lambda: [effect.payment for effect in worker.effects] == [1, 2])
    eventually(lambda: set(pending(witness)) == {ids[1]})
    [row] = pending(witness).values()
    assert (row.consumer, row.count) == ("the-next-owner", 2)
    assert worker.health()["subscriptions"][0]["counts"]["lost"] == 1


def test_a_process_that_did_not_run_for_a_while_removes_nothing(make_server, make_witness, start_worker):
    """Stopped for a while, it loses its entry; on waking its ack is checked and leaves the other's alone."""
    server = make_server("redis-8.10")
    witness = make_witness(server)
    points = [f"effect:{number}" for number in range(ROUNDS)]
    worker = start_worker(server, "claiming", options={"min_idle": 0.5, "block": 0.1}, hold=points).started()
    for number, point in enumerate(points):
        entry = add_ids(witness, number)[number]
        worker.at(point)
        worker.signal(signal.SIGSTOP)
        eventually(lambda entry=entry: pending(witness)[entry].idle_ms > 500)
        assert witness.xclaim(STREAM, GROUP, "the-next-owner", 500, [entry])
        worker.go(point)
        worker.signal(signal.SIGCONT)
        eventually(lambda: worker.health()["subscriptions"][0]["counts"]["running"] == 0)
        eventually(lambda: worker.health()["subscriptions"][0]["counts"]["unsettled"] == 0)

        assert [row.consumer for row in pending(witness).values()] == ["the-next-owner"], (
            f"round {number}: {worker.log}"
        )
        assert worker.health()["subscriptions"][0]["counts"]["lost"] == number + 1
        witness.xack(STREAM, GROUP, entry)
    assert [effect.payment for effect in worker.effects] == list(range(ROUNDS))
