"""The stream or its group goes away under the reader, or turns into something else (B002, B042, B045, B046, B048)."""

import contextlib
import time

import pytest
import redis

from chaos.flow import MODES, Flow, all_settled, feed_and_settle
from chaos.ledger import pending
from chaos.service import GROUP
from eventually import eventually

WINDOW = 2.0


def make_flows(name, server, witness, start_worker, **config):
    flows = []
    for mode in MODES[name]:
        options = {} if mode == "new" else {"min_idle": 0.2}
        worker = start_worker(server, mode, stream=f"payments-{mode}", options=options, **config)
        flows.append(Flow(mode, worker.started(), witness))
    return flows


def make_group(witness, stream):
    with contextlib.suppress(redis.ResponseError):  # the worker was first
        witness.xgroup_create(stream, GROUP, id="0", mkstream=True)


@pytest.mark.parametrize("loss", ["FLUSHALL", "DEL"])
@pytest.mark.parametrize("name", MODES)
def test_the_stream_goes_away_and_the_next_entry_is_handled(loss, name, make_server, make_witness, start_worker, note):
    """The group is made again from the beginning: an entry that came before it is handled too, within a second."""
    server = make_server(name)
    witness = make_witness(server)
    flows = make_flows(name, server, witness, start_worker)
    feed_and_settle(flows, *range(1, 11))
    server.cli(*(["FLUSHALL"] if loss == "FLUSHALL" else ["DEL", *(flow.stream for flow in flows)]))
    for flow in flows:
        if flow.mode == "reclaim":  # it reads what others left: these need the group
            make_group(witness, flow.stream)
    took = feed_and_settle(flows, 11, 12)
    again = feed_and_settle(flows, 13)

    note(server=name, loss=loss, next_entry_after=took, second_after=again)
    assert all(seconds < 2.0 for seconds in took.values()), took
    for flow in flows:
        assert flow.posted() == dict.fromkeys(range(1, 14), 1)
        assert flow.worker.state() == "reading"
        assert len(flow.worker.log.splitlines()) < 12, flow.worker.log


@pytest.mark.parametrize("name", MODES)
def test_a_destroyed_group_repeats_nothing_that_was_acked(name, make_server, make_witness, start_worker, note):
    """The stream is kept: the group begins again behind what this process has acked, and what ran is not lost."""
    server = make_server(name)
    witness = make_witness(server)
    flows = make_flows(name, server, witness, start_worker, hold=["started:51"])
    feed_and_settle(flows, *range(1, 51))
    for flow in flows:
        flow.feed(51)
    for flow in flows:
        flow.worker.at("started:51")
        witness.xgroup_destroy(flow.stream, GROUP)
    for flow in flows:
        eventually(flow.has_group)
        flow.worker.go()
    took = feed_and_settle(flows, *range(52, 62))

    note(server=name, next_entry_after=took, posted={flow.mode: sum(flow.posted().values()) for flow in flows})
    assert all(seconds < 2.0 for seconds in took.values()), took
    for flow in flows:
        posted = flow.posted()
        assert {number: posted[number] for number in range(1, 51)} == dict.fromkeys(range(1, 51), 1)
        assert set(posted) == set(range(1, 62))
        assert all(posted[number] == 1 for number in range(52, 62))
        # It ran while its group went away. For reclaim it is another consumer's entry by then.
        assert posted[51] in ((1, 2) if flow.mode == "reclaim" else (1,))


@pytest.mark.parametrize("name", MODES)
def test_a_key_of_another_type_is_waited_out_quietly(name, make_server, make_witness, start_worker, note):
    """WRONGTYPE: few log lines, a health that says so, hardly any CPU; once the stream is back it is read."""
    server = make_server(name)
    witness = make_witness(server)
    flows = make_flows(name, server, witness, start_worker)
    feed_and_settle(flows, 1, 2)
    before = {flow.mode: (len(flow.worker.log.splitlines()), flow.worker.cpu()) for flow in flows}
    commands = witness.info("stats")["total_commands_processed"]
    for flow in flows:
        witness.set(flow.stream, "not a stream")
    time.sleep(WINDOW)  # what is measured is what they do meanwhile
    lines = {flow.mode: len(flow.worker.log.splitlines()) - before[flow.mode][0] for flow in flows}
    cpu = {flow.mode: round(flow.worker.cpu() - before[flow.mode][1], 2) for flow in flows}
    sent = witness.info("stats")["total_commands_processed"] - commands
    health = {flow.mode: flow.worker.health()["subscriptions"][0] for flow in flows}
    errors = witness.info("errorstats")

    for flow in flows:
        witness.delete(flow.stream)
        if flow.mode == "reclaim":
            make_group(witness, flow.stream)
    took = feed_and_settle(flows, 3)

    note(server=name, log_lines=lines, cpu=cpu, commands=sent, resumed_after=took, errors=errors)
    assert {seen["state"] for seen in health.values()} == {"retrying"}
    assert all("WRONGTYPE" in seen["error"] for seen in health.values())
    assert all(0 < count <= 2 * WINDOW for count in lines.values()), lines
    assert all(used < 0.15 for used in cpu.values()), cpu
    assert sent < len(flows) * 100
    assert all(seconds < 2.0 for seconds in took.values()), took
    for flow in flows:
        all_settled([flow], 1, 2, 3)
        assert flow.posted() == {1: 1, 2: 1, 3: 1}
        eventually(lambda flow=flow: flow.worker.state() == "reading")
        assert pending(witness, stream=flow.stream) == {}
