"""What is seen of the payments service from outside: by redis-py, with nothing of `ruststream`."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

import redis

GROUPS: Final = ("ledger", "fraud")


def is_locked_account(account: str) -> bool:
    """Tell whether payments to this account have to wait."""
    return account.startswith("migrating-")


class Witness:
    """Reads what the two groups wrote, and asks the server what is pending."""

    def __init__(self, url: str) -> None:
        """Have seen nothing yet."""
        self._redis: Any = redis.Redis.from_url(url, decode_responses=True, protocol=2)
        self._read_up_to = {"payments.posted": "0", "payments.screened": "0"}
        self._last: dict[tuple[str, str], int] = {}
        self.posted: Counter[int] = Counter()
        """How often each payment was posted."""
        self.screened: Counter[int] = Counter()
        """How often each payment was screened."""
        self.recovered: set[int] = set()
        """Payments that were posted at their second delivery or later, although their accounts are not locked."""
        self.retried: set[int] = set()
        """The same of locked accounts."""
        self.disorder = ""
        """Where a worker posted a payment before an earlier one of the same account; empty if nowhere."""

    def look(self) -> None:
        """Read what was posted and screened since the last look."""
        while found := self._redis.xread(self._read_up_to, count=5000):
            for stream, entries in found:
                self._read_up_to[stream] = entries[-1][0]
                for _, fields in entries:
                    record = json.loads(fields["_payload"])
                    if stream == "payments.posted":
                        self._note_posted(**record)
                    else:
                        self.screened[record["payment_id"]] += 1

    def _note_posted(self, payment_id: int, account: str, earlier_deliveries: int, consumer: str) -> None:
        self.posted[payment_id] += 1
        if earlier_deliveries == 0:
            last = self._last.get((consumer, account), -1)
            if payment_id < last and not self.disorder:
                self.disorder = f"{account}: payment {payment_id} came after {last}"
            self._last[consumer, account] = payment_id
        else:
            (self.retried if is_locked_account(account) else self.recovered).add(payment_id)

    def pending(self, group: str) -> int:
        """Return how many entries of the group are delivered and not settled."""
        return int(self._redis.xpending("payments", group)["pending"])

    def in_hand(self, pid: int) -> int:
        """Return how many unsettled entries of `ledger` a process has, those of locked accounts among them."""
        consumers = self._redis.xinfo_consumers("payments", "ledger")
        return sum(consumer["pending"] for consumer in consumers if f"-{pid}-" in consumer["name"])

    def left_by(self, pid: int) -> set[int]:
        """Return the payments that a process has not settled."""
        pending = self._redis.xpending_range("payments", "ledger", "-", "+", 10_000)
        ids = [entry["message_id"] for entry in pending if f"-{pid}-" in entry["consumer"]]
        return {json.loads(self._redis.xrange("payments", each, each)[0][1]["_payload"])["id"] for each in ids}

    def length(self, stream: str) -> int:
        """Return the length of a stream."""
        return int(self._redis.xlen(stream))

    def all_settled(self, payments: int) -> bool:
        """Tell whether every payment is posted and screened, and nothing is pending."""
        self.look()
        return len(self.posted) == len(self.screened) == payments and not any(map(self.pending, GROUPS))
