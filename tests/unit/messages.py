"""Messages that tests of decoding share, of each kind that a handler may take."""

from dataclasses import dataclass
from typing import TypedDict

import msgspec


class Payment(msgspec.Struct):
    """A Struct with defaults."""

    id: int
    account: str
    paid: bool = False
    amount: float | None = None
    scan: bytes = b""


@dataclass
class PaymentData:
    """A dataclass."""

    id: int
    scan: bytes | None = None


class PaymentDict(TypedDict):
    """A TypedDict."""

    id: int
