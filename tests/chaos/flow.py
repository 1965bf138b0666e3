"""One read mode under an outage: its worker, a way to feed it, and what knocks at the server's door meanwhile."""

import contextlib
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Self

import msgspec
import redis

from chaos.ledger import add_ids, pending
from chaos.service import GROUP, Payment
from chaos.worker import Worker

MODES = {"redis-8.10": ("new", "reclaim", "claiming", "recovering"), "redis-7.0": ("new", "reclaim", "recovering")}
OTHERS = "someone-else"


class Flow:
    """A worker with one subscription on a stream of its own."""

    def __init__(self, mode: str, worker: Worker, witness: redis.Redis) -> None:
        """Take a worker that has started."""
        self.mode, self.worker, self.witness = mode, worker, witness
        self.stream = worker.config.stream

    def feed(self, *ids: int) -> None:
        """Give it payments to post; to `reclaim`, ones that another consumer read and left."""
        if self.mode == "reclaim":
            self.abandon(*ids)
        else:
            add_ids(self.witness, *ids, stream=self.stream)

    def abandon(self, *ids: int) -> None:
        """Add payments that another consumer reads in the same moment, and never settles."""
        with self.witness.pipeline(transaction=True) as pipe:
            for number in ids:
                pipe.xadd(self.stream, {"_payload": msgspec.json.encode(Payment(number))})
            pipe.xreadgroup(GROUP, OTHERS, {self.stream: ">"}, count=10_000)
            pipe.execute()

    def has_group(self) -> bool:
        """Whether the group is there."""
        with contextlib.suppress(redis.ResponseError):
            return any(group["name"].decode() == GROUP for group in self.witness.xinfo_groups(self.stream))
        return False

    def posted(self) -> Counter[int]:
        """Return how often each payment was posted."""
        return Counter(effect.payment for effect in self.worker.effects)

    def settled(self, *ids: int) -> bool:
        """Whether these are posted and nothing is pending."""
        return set(ids) <= self.posted().keys() and not pending(self.witness, stream=self.stream)


def all_settled(flows: Iterable[Flow], *ids: int, timeout: float = 10.0) -> dict[str, float]:
    """Wait until these payments are posted and acked in each flow; return by mode the seconds that took."""
    begun = time.monotonic()
    waiting, took = list(flows), {}
    while waiting:
        for flow in [flow for flow in waiting if flow.settled(*ids)]:
            waiting.remove(flow)
            took[flow.mode] = round(time.monotonic() - begun, 3)
        if waiting and time.monotonic() > begun + timeout:
            flow = waiting[0]
            rows = pending(flow.witness, stream=flow.stream)
            missing = sorted(set(ids) - flow.posted().keys())
            raise AssertionError(
                f"not settled in {timeout} s: {[flow.mode for flow in waiting]}; {flow.mode} has not posted "
                f"{missing[:10]} and has pending {dict(list(rows.items())[:10])}\n{flow.worker.log[-2500:]}"
            )
        time.sleep(0.005)
    return took


def feed_and_settle(flows: Sequence[Flow], *ids: int, timeout: float = 10.0) -> dict[str, float]:
    """Feed all flows, wait until it is settled, and return by mode the seconds that took."""
    for flow in flows:
        flow.feed(*ids)
    return all_settled(flows, *ids, timeout=timeout)


class Doorkeeper:
    """Stands where a dead server was: opens to everyone, shuts the door at once, and counts, per address."""

    def __init__(self, addresses: Iterable[str], port: int) -> None:
        """Listen."""
        self.knocks: Counter[str] = Counter()
        self._selector = selectors.DefaultSelector()
        self._doors = []
        for address in addresses:
            door = socket.create_server((address, port), reuse_port=False)
            self._doors.append(door)
            self._selector.register(door, selectors.EVENT_READ, address)
        self._closed = False
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(0.05):
                visitor, _ = key.fileobj.accept()  # type: ignore[union-attr]
                visitor.close()
                self.knocks[key.data] += 1

    def __enter__(self) -> Self:
        """Begin to count."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the port to the server."""
        self._closed = True
        self._thread.join()
        self._selector.close()
        for door in self._doors:
            door.close()
