"""Acks and reads of pending entries have connections of their own: whichever is first, no entry is handled twice."""

from typing import Any

import pytest
import redis

from chaos.ledger import add_ids, pending
from chaos.places import places
from chaos.proxy import Proxy
from chaos.service import GROUP, STREAM
from eventually import eventually

# A scan goes by the same connection as acks, in their order: only CLAIM has one of its own.
CLAIMING = places("claiming-8.10", "recovering-8.10")
EVERYWHERE = CLAIMING | places("recovering-7.0", "recovering-valkey", "new+reclaim-8.2")
OPTIONS = {"min_idle": 30, "block": 0.2}
WRITTEN = "written"
DELAYED = f"{{{STREAM}}}:{GROUP}:delayed"
WRITES: dict[str, dict[str, Any]] = {
    "reply": {"replies": True, "subscriber": {"reply_to": WRITTEN}},
    "letter": {"refuses": True, "subscriber": {"dead_letter": WRITTEN}},
}
"""What a handler's outcome puts into that stream."""


@pytest.fixture(params=list(EVERYWHERE))
def place(request, make_server, make_witness):
    name, modes = EVERYWHERE[request.param]
    server = make_server(name)
    return server, make_witness(server), modes


def deliver_again(witness, entry):
    """As its own process does that claims it once more: the count goes up, the owner stays."""
    witness.xclaim(STREAM, GROUP, pending(witness)[entry].consumer, 0, [entry])


def hold_a_claim(proxy, witness, entry):
    """Make an entry look as if nobody had renewed it, so that its own process claims it, and hold the reply."""
    proxy.hold_replies(entry.encode())
    witness.xclaim(STREAM, GROUP, pending(witness)[entry].consumer, 0, [entry], idle=60_000, justid=True)
    eventually(lambda: proxy.holds)


@pytest.mark.parametrize("place", list(CLAIMING), indirect=True)
def test_a_reply_that_its_ack_overtook_is_not_handled(place, start_worker, note):
    """B032: read again by its own process while its handler ends; the reply comes after the ack has been answered."""
    server, witness, modes = place
    with Proxy(server) as proxy:
        worker = start_worker(server, *modes, url=proxy.url, options=OPTIONS, hold=["effect:1"]).started()
        ids = add_ids(witness, 1)
        worker.at("effect:1")
        hold_a_claim(proxy, witness, ids[1])
        worker.go()
        eventually(lambda: not pending(witness))
        eventually(lambda: sum(each["counts"]["acked"] for each in worker.health()["subscriptions"]) == 1)
        proxy.release_replies()
        add_ids(witness, 2)
        eventually(lambda: not pending(witness) and len(worker.effects) >= 2)

    assert sorted(effect.payment for effect in worker.effects) == [1, 2]
    duplicates = sum(each["counts"]["duplicates"] for each in worker.health()["subscriptions"])
    assert duplicates == 1
    note(replies_held=proxy.holds, duplicates=duplicates)


def test_an_ack_finds_its_entry_delivered_once_more_to_its_own_process(place, start_worker):
    """The read was first, and raised the count; the ack, sent again by owner, removes the entry all the same."""
    server, witness, modes = place
    with Proxy(server) as proxy:
        worker = start_worker(server, *modes, url=proxy.url, options=OPTIONS, hold=["effect:1"]).started()
        ids = add_ids(witness, 1)
        worker.at("effect:1")
        deliver_again(witness, ids[1])
        proxy.cut_at(b"XACK", "before")
        worker.go()
        eventually(lambda: not pending(witness))

    assert proxy.cuts == 1
    assert [effect.payment for effect in worker.effects] == [1]


@pytest.mark.parametrize("what", WRITES)
def test_what_is_written_with_an_ack_is_written_once_where_the_entry_was_delivered_once_more(place, start_worker, what):
    """The same with an outcome that writes: carried out once, and the handler is not called again to do so."""
    server, witness, modes = place
    worker = start_worker(server, *modes, options=OPTIONS, hold=["effect:1"], **WRITES[what]).started()
    ids = add_ids(witness, 1)
    worker.at("effect:1")
    deliver_again(witness, ids[1])
    worker.go()
    eventually(lambda: not pending(witness))

    assert witness.xlen(WRITTEN) == 1
    assert [effect.payment for effect in worker.effects] == [1]


@pytest.mark.parametrize("subscriber", [{}, {"max_attempts": 5}], ids=["uncapped", "capped"])
def test_the_head_of_a_key_runs_again_where_its_process_has_claimed_it_once_more(place, start_worker, subscriber):
    """With a strict order it stays the next of its key: a claim of the same process is no reason to give it up."""
    server, witness, modes = place
    strict = {"by_key": True, "order": "strict"} | subscriber
    worker = start_worker(server, *modes, options=OPTIONS, subscriber=strict, hold=["started:1"]).started()
    [entry] = add_ids(witness, 1, misdeed="retries after 0.5").values()
    worker.at("started:1")
    add_ids(witness, 2)
    # It comes once more before it is run again; whoever runs it does not know of that yet.
    deliver_again(witness, entry)
    worker.go()
    eventually(lambda: not pending(witness) and len(worker.effects) >= 2)

    assert [effect.payment for effect in worker.effects] == [1, 2]
    assert "settled too late" not in worker.log


def test_a_retry_is_delayed_where_its_process_has_claimed_the_entry_once_more(place, start_worker):
    """It comes back when it is due, not when min_idle is over: a claim of the same process keeps the delay."""
    server, witness, modes = place
    worker = start_worker(server, *modes, options=OPTIONS, hold=["started:1"]).started()
    [entry] = add_ids(witness, 1, misdeed="retries after 0.5").values()
    worker.at("started:1")
    deliver_again(witness, entry)
    worker.go()
    eventually(lambda: not pending(witness) and worker.effects)

    assert [(effect.payment, effect.delivery) for effect in worker.effects] == [(1, 2)]
    assert "settled too late" not in worker.log


@pytest.mark.parametrize("place", list(CLAIMING), indirect=True)
def test_a_reply_that_its_parking_overtook_is_not_handled_before_it_is_due(place, start_worker):
    """The reply shows the entry as it was before it was parked."""
    server, witness, modes = place
    with Proxy(server) as proxy:
        worker = start_worker(server, *modes, url=proxy.url, options=OPTIONS, hold=["started:1"]).started()
        [entry] = add_ids(witness, 1, misdeed="retries after 2").values()
        worker.at("started:1")
        hold_a_claim(proxy, witness, entry)
        worker.go()
        [(_, due)] = eventually(lambda: witness.zrange(DELAYED, 0, -1, withscores=True))
        proxy.release_replies()
        eventually(lambda: worker.effects)
        seconds, micros = witness.time()
        eventually(lambda: not pending(witness))

    assert seconds * 1000 + micros / 1000 >= int(due)
    assert [(effect.payment, effect.delivery) for effect in worker.effects] == [(1, 2)]
    assert not witness.exists(DELAYED)


@pytest.mark.parametrize("place", list(CLAIMING), indirect=True)
def test_a_reply_that_its_ack_overtook_is_not_handled_where_the_acks_answer_was_lost(place, start_worker):
    """Sent again, the ack finds nothing to remove: that too says that the reply is from before."""
    server, witness, modes = place
    with Proxy(server) as proxy:
        worker = start_worker(server, *modes, url=proxy.url, options=OPTIONS, hold=["effect:1"]).started()
        ids = add_ids(witness, 1)
        worker.at("effect:1")
        hold_a_claim(proxy, witness, ids[1])
        proxy.cut_at(b"XACK", "after")
        worker.go()
        eventually(lambda: proxy.cuts and not pending(witness))
        eventually(lambda: sum(each["counts"]["acked"] for each in worker.health()["subscriptions"]) == 1)
        proxy.release_replies()
        add_ids(witness, 2)
        eventually(lambda: not pending(witness) and len(worker.effects) >= 2)

    assert sorted(effect.payment for effect in worker.effects) == [1, 2]


@pytest.mark.parametrize("place", ["new+reclaim-8.2"], indirect=True)
def test_an_outcome_finds_its_entry_claimed_by_another_subscription_of_its_process(place, start_worker):
    """One app reads and recovers the group: what its one half holds while the other claims it is settled, and not lost.

    The claim is first at the server, and what it read is still on its way when the outcome is refused.
    """
    server, witness, modes = place
    monitor = redis.Redis.from_url(server.url, socket_timeout=20)
    with Proxy(server) as proxy, monitor.monitor() as seen:
        worker = start_worker(server, *modes, url=proxy.url, options=OPTIONS, hold=["effect:1"], **WRITES["reply"])
        [entry] = add_ids(witness, 1).values()
        worker.started().at("effect:1")
        proxy.hold_replies(entry.encode())
        reader = pending(witness)[entry].consumer
        # As if nobody had renewed it.
        witness.xclaim(STREAM, GROUP, reader, 0, [entry], idle=60_000, justid=True)
        eventually(lambda: proxy.holds)
        assert pending(witness)[entry].consumer != reader
        worker.go()
        assert any("EVALSHA" in each["command"] and WRITTEN in each["command"] for each in seen.listen())
        assert witness.xlen(WRITTEN) == 0
        proxy.release_replies()
        eventually(lambda: not pending(witness))

    assert witness.xlen(WRITTEN) == 1
    assert [effect.payment for effect in worker.effects] == [1]
    assert "settled too late" not in worker.log
