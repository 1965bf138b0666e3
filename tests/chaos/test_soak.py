"""One process under a server that stands still and connections that are cut, in an order that a seed draws.

The process lives all the time and is the only one, so however slow everything is: each payment is posted once, nothing
is left behind. CHAOS_SEED says which order (1 unless it is given).
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from chaos.ledger import add, pending
from chaos.places import places
from chaos.proxy import Proxy, When
from chaos.service import GROUP, STREAM, Payment
from eventually import eventually

MIN_IDLE = 0.3
PAYMENTS = 300
ACTIONS = 12
REPLIES = "posted"
WHENS: tuple[When, ...] = ("before", "half", "after")

EVERYWHERE = places("claiming-8.10", "recovering-7.0", "recovering-valkey", "new+reclaim-8.2")
KEYED: dict[str, Any] = {"workers": 8, "by_key": True, "max_in_flight": 60}
VARIANTS: dict[str, dict[str, Any]] = {
    "retries": {"subscriber": KEYED},
    "replies": {"subscriber": KEYED | {"reply_to": REPLIES, "max_attempts": 3}, "replies": True},
    "strict": {"subscriber": KEYED | {"order": "strict", "max_attempts": 3}},
}


@pytest.fixture
def seed() -> int:
    """The seed of all cases."""
    return int(os.environ.get("CHAOS_SEED", "1"))


def payments(rng: random.Random) -> Iterator[Payment]:
    for number in range(PAYMENTS):
        misdeed = f"retries after {rng.choice([0.05, 0.4])}" if rng.random() < 0.1 else ""
        yield Payment(number, f"acct-{rng.randrange(12)}", misdeed)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("place", EVERYWHERE)
def test_a_process_that_lives_posts_each_payment_once(
    place, variant, seed, make_server, make_witness, start_worker, note
):
    """Its own claims, late replies and acks sent again notwithstanding (B032); a strict order is kept too (B067)."""
    name, modes = EVERYWHERE[place]
    server = make_server(name)
    witness = make_witness(server)
    rng = random.Random(seed)
    todo = list(payments(rng))
    with Proxy(server) as proxy:
        options = {"min_idle": MIN_IDLE, "count": 20}
        worker = start_worker(
            server, *modes, url=proxy.url, options=options, takes=0.002, **VARIANTS[variant]
        ).started()
        for number in range(ACTIONS):
            add(witness, todo[number * PAYMENTS // ACTIONS : (number + 1) * PAYMENTS // ACTIONS])
            # A read whose reply is lost comes back behind others of its key: that is no strict order.
            if variant != "strict" and rng.random() < 0.5:
                proxy.cut_at(rng.choice([b"XACK", b"XREADGROUP", b"EVALSHA"]), rng.choice(WHENS))
            if rng.random() < 0.7:
                server.pause()
                time.sleep(rng.choice([0.1, 0.8, 1.2, 2.0]) * MIN_IDLE)
                server.resume()
            time.sleep(rng.uniform(0, 0.5 * MIN_IDLE))
        delayed = f"{{{STREAM}}}:{GROUP}:delayed"
        eventually(lambda: {effect.payment for effect in worker.effects} == set(range(PAYMENTS)), 40, every=0.1)
        eventually(lambda: not pending(witness) and not witness.exists(delayed), 20, every=0.05)
        worker.signal(signal.SIGTERM)
        assert worker.ended()[0] == 0, worker.log[-3000:]

    posted = Counter(effect.payment for effect in worker.effects)
    assert [payment for payment, times in posted.items() if times > 1] == []
    assert "settled too late" not in worker.log
    if variant == "replies":
        assert witness.xlen(REPLIES) == PAYMENTS
    if variant == "strict":
        for account in {effect.account for effect in worker.effects}:
            of_account = [effect.payment for effect in worker.effects if effect.account == account]
            assert of_account == sorted(of_account)
    note(seed=seed, cuts=proxy.cuts)
