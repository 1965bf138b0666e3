"""Whether an app makes progress: what `app.health()` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

AppState: TypeAlias = Literal["stopped", "starting", "running", "stopping", "failed"]


@dataclass(frozen=True, slots=True)
class SubscriptionHealth:
    """One subscription at one moment."""

    name: str
    """The subscription's name."""
    stream: str
    """The stream it reads."""
    group: str
    """The consumer group it reads through."""
    consumer: str
    """The consumer name it reads under."""
    state: str
    """`reading`, `retrying` (the server is away), `stopped` or `failed`."""
    error: str | None = None
    """The last error's text, while it is not `reading`."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Counters since the start (`acked`, `retried`, ...) and gauges (`queued`, `running`, `unsettled`)."""

    @property
    def healthy(self) -> bool:
        """Whether it reads."""
        return self.state == "reading"


@dataclass(frozen=True, slots=True)
class Health:
    """An app at one moment."""

    state: AppState
    """Where the app is between its start and its end."""
    subscriptions: list[SubscriptionHealth] = field(default_factory=list)
    """Its subscriptions; empty while the app does not run."""

    @property
    def healthy(self) -> bool:
        """Whether the app runs and every subscription reads."""
        return self.state == "running" and all(subscription.healthy for subscription in self.subscriptions)
