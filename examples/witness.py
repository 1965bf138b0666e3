"""What is seen of the payments service from outside: by redis-py, with nothing of `ruststream`."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

import redis

GROUPS: Final = ("ledger", "fraud")


class Witness:
    """Reads what the groups wrote, and asks the server what is pending."""

    def __init__(self, url: str) -> None:
        """Have seen nothing yet."""
        self._redis: redis.Redis = redis.Redis.from_url(url, decode_responses=True)
        self._seen = {"payments.posted": "0", "payments.screened": "0"}
        self._last: dict[tuple[str, str], int] = {}
        self.posted: Counter[int] = Counter()
        """How often each payment was posted."""
        self.screened: Counter[int] = Counter()
        """How often each payment was screened."""
        self.recovered: set[int] = set()
        """Payments of accounts that are not locked which took more than one delivery."""
        self.disorder = ""
        """The first payment that a worker posted before an earlier one of the same account, if there is one."""

    def look(self) -> None:
        """Read what was posted and screened since the last look."""
        while found := self._redis.xread(self._seen, count=5000):
            streams: list[Any] = list(found.items()) if isinstance(found, dict) else found
            for stream, entries in streams:
                if entries and isinstance(entries[0], list):  # RESP3 nests them
                    entries = entries[0]
                for entry_id, fields in entries:
                    self._seen[stream] = entry_id
                    self._note(stream, json.loads(fields["_payload"]))

    def _note(self, stream: str, record: dict[str, Any]) -> None:
        payment = record["payment_id"]
        if stream == "payments.screened":
            self.screened[payment] += 1
            return
        self.posted[payment] += 1
        if record["earlier_deliveries"] == 0:
            last = self._last.get((record["consumer"], record["account"]), -1)
            if payment < last:
                self.disorder = self.disorder or f"payment {payment} came after {last} of {record['account']}"
            self._last[record["consumer"], record["account"]] = payment
        elif not record["account"].startswith("migrating-"):
            self.recovered.add(payment)

    def pending(self, group: str) -> int:
        """Return how many entries of the group are delivered and not settled."""
        return sum(each["pending"] for each in self._redis.xinfo_groups("payments") if each["name"] == group)

    def in_hand(self, group: str, pid: int) -> int:
        """Return how many unsettled entries the consumer of this process has."""
        consumers = self._redis.xinfo_consumers("payments", group)
        return sum(each["pending"] for each in consumers if f"-{pid}-" in each["name"])

    def length(self, stream: str) -> int:
        """Return the length of a stream."""
        return int(self._redis.xlen(stream))

    def lost(self, published: int) -> list[int]:
        """Return the payments that were published, and not posted."""
        return [payment for payment in range(published) if payment not in self.posted]

    def settled(self, published: int) -> bool:
        """Tell whether everything is posted and screened, and nothing is pending."""
        if any(self.pending(group) for group in GROUPS):
            return False
        self.look()
        return len(self.posted) == len(self.screened) == published
