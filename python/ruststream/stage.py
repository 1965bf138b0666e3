"""Where an app runs: on the servers that its brokers name, or where a test puts it."""

from __future__ import annotations

from typing import Any

from ruststream.loop import Bell
from ruststream.redis.broker import RedisBroker
from ruststream.subscriber import Subscriber
from ruststream.subscription import Subscription


class Stage:
    """The servers that the brokers name."""

    def bell(self) -> Bell:
        """Return the bell of the running loop, for one start of the app."""
        return Bell()

    async def connect(self, broker: RedisBroker, bell: Bell) -> None:
        """Connect one of the app's brokers.

        Raises:
            ConnectError: its server can't be reached, or refuses the credentials.
        """
        await broker.connect(bell)

    def subscription(self, subscriber: Subscriber, broker: RedisBroker, bell: Bell, state: Any) -> Subscription:
        """Make a subscription; nothing is sent yet."""
        return Subscription(subscriber, broker, bell, state)


HERE = Stage()
"""The one of every app that is not tested."""
