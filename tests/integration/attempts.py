"""Capped subscriptions under test: where they run, and what they count."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eventually import eventually_async
from integration.conftest import Stream
from ruststream import RustStream, drop
from ruststream.redis import RedisBroker, RedisStream

MIN_IDLE = 0.2
MARKS = "{s}:g:attempts"


@dataclass
class Place:
    """A server or the model, and how the group is read there."""

    url: str
    modes: tuple[str, ...]
    stream: Stream | None

    def app(self, handler: Callable[..., Any], min_idle: float = MIN_IDLE, **options: Any) -> RustStream:
        broker = RedisBroker(self.url)
        options = {"max_attempts": 3, "on_exhausted": drop(), **options}
        for mode in self.modes:
            given = {} if mode == "new" else {"min_idle": min_idle}
            source = getattr(RedisStream, mode)("s", group="g", start_id="0", **given)
            broker.add_subscriber(source, handler, name=mode, **options)
        return RustStream("test", broker)

    async def nothing_left(self, app: RustStream) -> None:
        """Nothing is pending, and no mark is left."""
        await eventually_async(lambda: counts(app, "in_flight") == 0)
        if self.stream is not None:
            stream = self.stream
            await eventually_async(lambda: stream.pending_ids() == [])
            await eventually_async(lambda: not stream.client.exists(MARKS))


def counts(app: RustStream, name: str) -> int:
    return sum(subscription.counts[name] for subscription in app.health().subscriptions)


def broker_of(app: RustStream) -> RedisBroker:
    return app.brokers[0]
