"""The server dies and comes back, empty or with its data: every read mode goes on by itself (B001, B002, B025)."""

import contextlib
import time

import pytest

from chaos.flow import MODES, Doorkeeper, Flow, all_settled, feed_and_settle
from chaos.ledger import pending
from chaos.service import GROUP

DOWN = 4.0
KEPT = ("--appendonly", "yes", "--appendfsync", "always")


class Place:
    """A server, and a flow in each mode that it is good for, each at an address of its own."""

    def __init__(self, name, data, make_server, make_witness, start_worker):
        self.addresses = {mode: f"127.0.0.{at}" for at, mode in enumerate(MODES[name], 1)}
        args = ("--bind", *self.addresses.values(), "--protected-mode", "no", *(KEPT if data == "kept" else ()))
        self.name, self.data = name, data
        self.server = make_server(name, args=args)
        self.witness = make_witness(self.server)
        self.workers = {mode: start_worker(self.server, mode, **self.config(mode)) for mode in MODES[name]}
        self.flows = []

    def config(self, mode):
        # With a long one nothing but the reader notices that the server is back.
        min_idle = 0.5 if mode == "reclaim" or self.data == "kept" else 30
        return {
            "url": f"redis://{self.addresses[mode]}:{self.server.port}",
            "stream": f"payments-{mode}",
            "options": {} if mode == "new" else {"min_idle": min_idle},
            "hold": ["started:21"],
        }

    def begin(self):
        self.flows = [Flow(mode, worker.started(), self.witness) for mode, worker in self.workers.items()]
        feed_and_settle(self.flows, *range(1, 21))
        for flow in self.flows:
            flow.feed(21)
        for flow in self.flows:
            flow.worker.at("started:21")

    def resume(self):
        """Start the server again; return the seconds from then to the first entry, by mode."""
        self.server.restart()
        back = time.monotonic()
        for flow in self.flows:
            flow.worker.go()
            if flow.mode == "reclaim" and self.data == "lost":
                self.witness.xgroup_create(flow.stream, GROUP, id="0", mkstream=True)
            flow.feed(22)
        fed = time.monotonic() - back
        return {mode: round(fed + took, 2) for mode, took in all_settled(self.flows, 21, 22).items()}


@pytest.mark.parametrize("data", ["kept", "lost"])
def test_the_flow_resumes_by_itself_after_an_outage(data, make_server, make_witness, start_worker, note):
    """While it is down: few attempts, hardly any CPU. When it is back: what ran is acked, the next entry is handled
    within a second, nothing that was acked comes again. The same in every mode."""
    places = [Place(name, data, make_server, make_witness, start_worker) for name in MODES]
    for place in places:
        place.begin()
    flows = [flow for place in places for flow in place.flows]
    for place in places:
        place.server.kill()
    with contextlib.ExitStack() as doors:
        doorkeepers = [doors.enter_context(Doorkeeper(each.addresses.values(), each.server.port)) for each in places]
        before = [flow.worker.cpu() for flow in flows]
        time.sleep(DOWN)  # what is measured is what they do meanwhile
        spent = [round(flow.worker.cpu() - used, 2) for flow, used in zip(flows, before, strict=True)]
        states = {flow.worker.state() for flow in flows}
        knocks = {
            place.name: {mode: door.knocks[address] for mode, address in place.addresses.items()}
            for place, door in zip(places, doorkeepers, strict=True)
        }
    resumed = {place.name: place.resume() for place in places}

    note(data=data, attempts=knocks, cpu=spent, resumed_after=resumed)
    assert states == {"retrying"}
    assert all(cpu < 0.15 for cpu in spent), spent
    assert all(after < 1.6 for each in resumed.values() for after in each.values()), resumed
    for flow in flows:
        assert flow.posted() == dict.fromkeys(range(1, 23), 1), flow.worker.log
        assert flow.worker.state() == "reading"
        assert pending(flow.witness, stream=flow.stream) == {}
    assert all(0 < count < 30 for each in knocks.values() for count in each.values()), knocks
