"""Marks of handled messages on a Redis or Valkey server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ruststream._core import RedisClient
from ruststream.errors import ConfigError
from ruststream.idempotency import MarkState

if TYPE_CHECKING:
    from ruststream.redis.broker import RedisBroker

_STATES: Final = {0: MarkState.WORKING, 1: MarkState.STARTED, 2: MarkState.DONE}


class RedisIdempotencyStore:
    """Keeps marks on a server: one small key per message, which expires by itself.

    A subscription that uses it asks for all marks of a read in one script, and marks all that was handled in another.
    The calls below do the same for one message.
    """

    def __init__(self, broker: RedisBroker | None = None) -> None:
        """Choose the server.

        Args:
            broker: whose server to use; None: that of the subscription. It must be connected before the subscription
                starts: another broker of the app, or one that is entered before.

        Raises:
            ConfigError: not a broker.
        """
        from ruststream.redis.broker import RedisBroker

        if broker is not None and not isinstance(broker, RedisBroker):
            raise ConfigError(f"RedisIdempotencyStore(broker) must be a RedisBroker, not {broker!r}")
        self._broker = broker

    def __repr__(self) -> str:
        """Show where marks are kept, without secrets."""
        return f"RedisIdempotencyStore({'' if self._broker is None else repr(self._broker)})"

    def server(self, client: RedisClient) -> RedisClient:
        """Return the client of the server.

        Args:
            client: that of the subscription.

        Raises:
            ShutDownError: the broker is not connected.
        """
        return client if self._broker is None else self._broker.client

    async def begin(self, key: str, owner: str, lease: float) -> MarkState:
        """Make the mark this owner's for `lease` seconds, unless the message is done or another owner's lease runs.

        Raises:
            ConfigError: the store was made without a broker.
            RustStreamError: the server did not answer, or refused.
        """
        return _STATES[await self._mark("begin", owner, key, lease)]

    async def finish(self, key: str, owner: str, ttl: float) -> None:
        """Make the mark done for `ttl` seconds, if it is this owner's or nobody's. Raises as `begin` does."""
        await self._mark("finish", owner, key, ttl)

    async def release(self, key: str, owner: str) -> None:
        """Remove the mark if it is this owner's and not done. Raises as `begin` does."""
        await self._mark("release", owner, key, 0.0)

    async def renew(self, keys: Sequence[str], owner: str, lease: float) -> None:
        """Let those of these marks that are this owner's, or nobody's, last `lease` seconds. Raises as `begin` does."""
        for key in keys:
            await self._mark("begin", owner, key, lease)

    async def _mark(self, step: str, owner: str, key: str, lives: float) -> int:
        if self._broker is None:
            raise ConfigError("RedisIdempotencyStore() has no server of its own: give it a broker to call it by hand")
        [state] = await self._broker.client.mark(step, owner, [key], lives)
        return state
