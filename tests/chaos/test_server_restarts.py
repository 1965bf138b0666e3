"""The server dies and comes back, empty or with its data: every read mode goes on by itself (B001, B002, B025)."""

import time

import pytest

from chaos.flow import MODES, Doorkeeper, Flow, all_settled, feed_and_settle
from chaos.ledger import pending

DOWN = 4.0
KEPT = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.mark.parametrize("data", ["kept", "lost"])
@pytest.mark.parametrize("name", MODES)
def test_the_flow_resumes_by_itself_after_an_outage(name, data, make_server, make_witness, start_worker, note):
    """While it is down: few attempts, hardly any CPU. When it is back: what ran is acked, the next entry is handled
    within a second, nothing that was acked comes again. The same in every mode."""
    addresses = {mode: f"127.0.0.{at}" for at, mode in enumerate(MODES[name], 1)}
    args = ("--bind", *addresses.values(), "--protected-mode", "no", *(KEPT if data == "kept" else ()))
    server = make_server(name, args=args)
    witness = make_witness(server)
    flows = []
    for mode, address in addresses.items():
        # With a long one nothing but the reader notices that the server is back.
        min_idle = 0.5 if mode == "reclaim" or data == "kept" else 30
        options = {} if mode == "new" else {"min_idle": min_idle}
        worker = start_worker(
            server,
            mode,
            url=f"redis://{address}:{server.port}",
            stream=f"payments-{mode}",
            options=options,
            hold=["started:21"],
        )
        flows.append(Flow(mode, worker.started(), witness))
    feed_and_settle(flows, *range(1, 21))
    for flow in flows:
        flow.feed(21)
    for flow in flows:
        flow.worker.at("started:21")

    server.kill()
    with Doorkeeper(addresses.values(), server.port) as door:
        before = {flow.mode: flow.worker.cpu() for flow in flows}
        time.sleep(DOWN)  # what is measured is what they do meanwhile
        spent = {flow.mode: round(flow.worker.cpu() - before[flow.mode], 2) for flow in flows}
        states = {flow.mode: flow.worker.state() for flow in flows}
        knocks = {mode: door.knocks[address] for mode, address in addresses.items()}
    server.restart()
    back = time.monotonic()
    for flow in flows:
        flow.worker.go()
        if flow.mode == "reclaim" and data == "lost":
            witness.xgroup_create(flow.stream, "ledger", id="0", mkstream=True)
        flow.feed(22)
    since = time.monotonic() - back
    resumed = {mode: round(since + took, 2) for mode, took in all_settled(flows, 21, 22).items()}

    note(server=name, data=data, attempts=knocks, cpu=spent, resumed_after=resumed, states=states)
    assert all(cpu < 0.15 for cpu in spent.values()), spent
    assert set(states.values()) == {"retrying"}, states
    assert all(after < 1.6 for after in resumed.values()), resumed
    for flow in flows:
        assert flow.posted() == dict.fromkeys(range(1, 23), 1), flow.worker.log
        assert flow.worker.state() == "reading"
        assert pending(witness, stream=flow.stream) == {}
    assert all(0 < count < 30 for count in knocks.values()), knocks
