"""Consume Redis Streams and Kinesis with at-least-once handling: async handlers on a Rust core.

The brokers are in `ruststream.redis`, the exceptions in `ruststream.errors`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ruststream._core import __version__
    from ruststream.app import RustStream
    from ruststream.codec import Codec
    from ruststream.context import (
        DELIVERY_COUNT_HEADER,
        IDLE_MS_HEADER,
        PARTITION_KEY_HEADER,
        BatchContext,
        Context,
        EntryId,
        Header,
        Headers,
        HeadersView,
    )
    from ruststream.health import Health, SubscriptionHealth
    from ruststream.idempotency import IdempotencyStore, Idempotent, MarkState
    from ruststream.message import Reply, outgoing
    from ruststream.outcome import Outcome, Settle, ack, dead_letter, drop, leave, retry
    from ruststream.policy import Backoff
    from ruststream.publisher import Publisher
    from ruststream.router import Router
    from ruststream.transaction import Transaction

__all__ = [
    "DELIVERY_COUNT_HEADER",
    "IDLE_MS_HEADER",
    "PARTITION_KEY_HEADER",
    "Backoff",
    "BatchContext",
    "Codec",
    "Context",
    "EntryId",
    "Header",
    "Headers",
    "HeadersView",
    "Health",
    "IdempotencyStore",
    "Idempotent",
    "MarkState",
    "Outcome",
    "Publisher",
    "Reply",
    "Router",
    "RustStream",
    "Settle",
    "SubscriptionHealth",
    "Transaction",
    "__version__",
    "ack",
    "dead_letter",
    "drop",
    "leave",
    "outgoing",
    "retry",
]

if not TYPE_CHECKING:  # hidden from type checkers, so that they see a name that is not there
    # Loaded when first asked for: of the 60 ms that everything takes, asyncio and msgspec are 50.
    _HOME = {
        "DELIVERY_COUNT_HEADER": "context",
        "IDLE_MS_HEADER": "context",
        "PARTITION_KEY_HEADER": "context",
        "Backoff": "policy",
        "BatchContext": "context",
        "Codec": "codec",
        "Context": "context",
        "EntryId": "context",
        "Header": "context",
        "Headers": "context",
        "HeadersView": "context",
        "Health": "health",
        "IdempotencyStore": "idempotency",
        "Idempotent": "idempotency",
        "MarkState": "idempotency",
        "Outcome": "outcome",
        "Publisher": "publisher",
        "Reply": "message",
        "Router": "router",
        "RustStream": "app",
        "Settle": "outcome",
        "SubscriptionHealth": "health",
        "Transaction": "transaction",
        "__version__": "_core",
        "ack": "outcome",
        "dead_letter": "outcome",
        "drop": "outcome",
        "leave": "outcome",
        "outgoing": "message",
        "retry": "outcome",
    }

    def __getattr__(name: str) -> object:
        """Load a public name."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """List the public names."""
        return sorted({*globals(), *__all__})
