"""The server is there and says no: a new password, a user removed, a right taken away, scripts forgotten (B032)."""

import time

import pytest

from chaos.flow import MODES, Flow, all_settled, feed_and_settle
from eventually import eventually

WINDOW = 1.5


def make_flows(name, server, witness, start_worker, url=None, min_idle=0.2, **config):
    flows = []
    for mode in MODES[name]:
        options = {} if mode == "new" else {"min_idle": min_idle}
        worker = start_worker(server, mode, url=url, stream=f"payments-{mode}", options=options, **config)
        flows.append(Flow(mode, worker.started(), witness))
    return flows


def kept_out(flows, witness, forbid, allow, note, **figures):
    """Forbid, watch for a while, allow, and say how that went."""
    lines = {flow.mode: len(flow.worker.log.splitlines()) for flow in flows}
    forbidden = time.monotonic()
    forbid()
    for flow in flows:
        eventually(lambda flow=flow: flow.worker.state() == "retrying")
    cpu = {flow.mode: flow.worker.cpu() for flow in flows}
    connections = witness.info("stats")["total_connections_received"]
    time.sleep(WINDOW)  # what is measured is what they do meanwhile
    attempts = witness.info("stats")["total_connections_received"] - connections
    cpu = {flow.mode: round(flow.worker.cpu() - cpu[flow.mode], 2) for flow in flows}
    lines = {flow.mode: len(flow.worker.log.splitlines()) - lines[flow.mode] for flow in flows}
    errors = {flow.mode: flow.worker.health()["subscriptions"][0]["error"] for flow in flows}
    lasted = time.monotonic() - forbidden
    allow()
    took = feed_and_settle(flows, 3)

    note(connections=attempts, log_lines=lines, cpu=cpu, resumed_after=took, **figures)
    assert all(seconds < 1.6 for seconds in took.values()), took
    assert all(0 < count <= 3 * lasted for count in lines.values()), lines
    assert all(used < 0.15 for used in cpu.values()), cpu
    for flow in flows:
        assert flow.posted() == {1: 1, 2: 1, 3: 1}
        eventually(lambda flow=flow: flow.worker.state() == "reading")
        assert "sesame" not in flow.worker.log
    return attempts, errors


@pytest.mark.parametrize("name", MODES)
def test_a_password_is_set_while_it_runs(name, make_server, make_witness, start_worker, note):
    """New connections are refused until it is taken away again: few attempts, few lines, then the flow resumes."""
    server = make_server(name)
    witness = make_witness(server)
    flows = make_flows(name, server, witness, start_worker)
    feed_and_settle(flows, 1, 2)

    def forbid():
        witness.config_set("requirepass", "sesame")
        witness.execute_command("AUTH", "sesame")
        witness.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    attempts, errors = kept_out(
        flows, witness, forbid, lambda: witness.config_set("requirepass", ""), note, server=name
    )

    assert attempts < len(flows) * 30 * WINDOW / 4
    assert all("NOAUTH" in error or "auth" in error.lower() for error in errors.values()), errors


def test_its_user_is_removed_and_made_again(make_server, make_witness, start_worker, note):
    """ACL DELUSER cuts its connections and refuses new ones; with the user the flow comes back."""
    server = make_server("redis-8.10")
    witness = make_witness(server)

    def allow():
        witness.acl_setuser("clerk", enabled=True, passwords=["+sesame"], keys=["*"], categories=["+@all"])

    allow()
    url = f"redis://clerk:sesame@{server.host}:{server.port}"
    flows = make_flows("redis-8.10", server, witness, start_worker, url=url)
    feed_and_settle(flows, 1, 2)
    attempts, errors = kept_out(flows, witness, lambda: witness.acl_deluser("clerk"), allow, note)

    assert attempts < len(flows) * 30 * WINDOW / 4
    assert all("WRONGPASS" in error or "auth" in error.lower() for error in errors.values()), errors


@pytest.mark.parametrize("right", ["xreadgroup", "evalsha"])
def test_a_right_is_taken_away_and_given_back(right, make_server, make_witness, start_worker, note):
    """NOPERM on what it reads by: it waits, says so, and goes on when it may."""
    server = make_server("redis-7.0")
    witness = make_witness(server)

    def rights(change):
        witness.execute_command("ACL", "SETUSER", "clerk", "on", ">sesame", "~*", "+@all", *change)

    rights([])
    url = f"redis://clerk:sesame@{server.host}:{server.port}"
    reads_by = {"xreadgroup": ("new", "recovering"), "evalsha": ("reclaim", "recovering")}[right]
    flows = [flow for flow in make_flows("redis-7.0", server, witness, start_worker, url=url) if flow.mode in reads_by]
    feed_and_settle(flows, 1, 2)
    _, errors = kept_out(
        flows, witness, lambda: rights([f"-{right}"]), lambda: rights([f"+{right}"]), note, right=right
    )

    assert all("NOPERM" in error or "permission" in error for error in errors.values()), errors


def test_refused_acks_are_said_and_cost_no_lane(make_server, make_witness, start_worker, note):
    """Without the right to XACK: each entry is logged and stays pending, uncounted; lanes and credits go on."""
    server = make_server("redis-8.10")
    witness = make_witness(server)

    def rights(*change):
        witness.execute_command("ACL", "SETUSER", "clerk", "on", ">sesame", "~*", "+@all", *change)

    rights()
    url = f"redis://clerk:sesame@{server.host}:{server.port}"
    flows = make_flows("redis-8.10", server, witness, start_worker, url=url, min_idle=1.0)
    feed_and_settle(flows, 1, 2)
    rights("-xack")
    many = range(3, 1003)
    for flow in flows:
        flow.feed(*many)
    for flow in flows:
        eventually(lambda flow=flow: flow.posted().keys() >= set(many), timeout=10)
        flow.worker.logged("stay pending")
        eventually(lambda flow=flow: flow.worker.health()["subscriptions"][0]["counts"]["unsettled"] == 0)
        assert flow.worker.health()["subscriptions"][0]["counts"]["acked"] == 2
    rights("+xack")
    recoverers = [flow for flow in flows if flow.mode != "new"]
    took = all_settled(recoverers, *many)

    for flow in flows:
        flow.feed(2000)
        eventually(lambda flow=flow: 2000 in flow.posted())
        log = len(flow.worker.log.splitlines())
        assert log < 100, f"{flow.mode} wrote {log} lines"
    note(acked_after=took)


@pytest.mark.parametrize("name", MODES)
def test_forgotten_scripts_are_loaded_again(name, make_server, make_witness, start_worker, note):
    """SCRIPT FLUSH while a handler runs for longer than min_idle: it is renewed, handled once, and all go on."""
    server = make_server(name)
    witness = make_witness(server)
    flows = make_flows(name, server, witness, start_worker, min_idle=0.5, hold=["started:2"])
    feed_and_settle(flows, 1)
    for flow in flows:
        flow.feed(2)
    for flow in flows:
        flow.worker.at("started:2")
    for _ in range(4):
        witness.script_flush()
        time.sleep(0.4)  # what is measured is that this makes no difference
    for flow in flows:
        flow.worker.go()
    all_settled(flows, 1, 2)
    took = feed_and_settle(flows, 3)

    for flow in flows:
        assert flow.posted() == {1: 1, 2: 1, 3: 1}, flow.worker.log
    note(server=name, next_entry_after=took)
