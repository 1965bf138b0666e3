"""Where a conformance case runs: on the model by its clock, or on a server by its own time."""

from dataclasses import dataclass
from typing import Any

from ruststream import RustStream
from ruststream.redis import RedisBroker, RedisStream
from ruststream.testing import Call, TestApp
from server_builds import SPECS

__all__ = ["BACKENDS", "HALF", "MIN_IDLE", "Backend"]

BACKENDS = ["model", *SPECS]
MIN_IDLE = 0.4
"""Seconds that an entry lies pending before it is recovered: short, so that a server's time can be waited for."""
HALF = MIN_IDLE / 2


@dataclass
class Backend:
    """One of them."""

    name: str
    url: str | None

    @property
    def is_model(self) -> bool:
        """Whether time passes only when it is told to."""
        return self.url is None

    @property
    def claims(self) -> bool:
        """Whether XREADGROUP has CLAIM."""
        return self.name in ("model", "redis-8.10")

    def __call__(self, app: RustStream, **options: Any) -> TestApp:
        return TestApp(app, live=self.url, patience=20.0, **options)

    def broker(self, **options: Any) -> RedisBroker:
        """A broker whose own server nobody can reach."""
        return RedisBroker("redis://localhost:1", **options)

    def app(self, handler: Any, source: RedisStream, **options: Any) -> RustStream:
        """An app of one subscription named `main`."""
        broker = self.broker()
        broker.add_subscriber(source, handler, name="main", **options)
        return RustStream("conformance", broker)

    def waited(self, call: Call, seconds: float) -> None:
        """Check how long an entry lay before a call: exactly so long by the model's clock, no less by a server's."""
        assert call.idle == seconds if self.is_model else call.idle >= seconds, call
