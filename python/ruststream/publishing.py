"""Publishing: queue, and await the server's answer. Concurrent publishes share round trips."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ruststream.errors import ConfigError, PublishError, PublishUncertainError

if TYPE_CHECKING:
    from ruststream._core import EntryId, RedisClient
    from ruststream.loop import Bell
    from ruststream.wire import Outgoing, OutgoingMany


class Publishing:
    """The publishing side of one connected broker."""

    def __init__(self, client: RedisClient, bell: Bell) -> None:
        """Take a connected client and the bell of its loop."""
        self._client = client
        self._bell = bell

    async def publish(self, message: Outgoing) -> EntryId:
        """Add one entry and return its id.

        Raises:
            PublishError: the server refused it.
            PublishUncertainError: the answer was lost.
        """
        self.check_loop()
        stream, payload, fields, trim = message
        ticket = self._client.publish(stream, payload, fields, *trim)
        return await self._bell.answer(ticket)  # type: ignore[no-any-return]

    async def publish_many(self, messages: OutgoingMany | None) -> list[EntryId]:
        """Add many entries in pipelines and return their ids in order. None: there are none.

        Raises:
            PublishError: the server refused some; `results` holds an id or an exception per message.
            PublishUncertainError: the answers of some were lost; `results` as above.
        """
        if messages is None:
            return []
        self.check_loop()
        stream, payloads, fields, keys, trim = messages
        ticket = self._client.publish_many(stream, payloads, fields, keys, *trim)
        return checked(await self._bell.answer(ticket))

    async def publish_together(self, messages: Sequence[Outgoing]) -> list[EntryId]:
        """Add entries at once or not at all, and return their ids in order.

        Raises:
            PublishError: the server refused one; none was added.
            PublishUncertainError: the answer was lost.
        """
        if not messages:
            return []
        self.check_loop()
        entries = [(stream, payload, fields, *trim) for stream, payload, fields, trim in messages]
        return checked(await self._bell.answer(self._client.publish_together(entries)))

    def check_loop(self) -> None:
        """Refuse, before anything is sent, a loop that the answer could never reach."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            # No loop drives this, as in a forked child: the core knows what to say of that.
            return
        if running is not self._bell.loop:
            raise ConfigError(
                "publish was called on another event loop than the broker's; in a def handler or another thread take "
                "asyncio.run_coroutine_threadsafe(broker.publish(...), loop).result(), with the app's loop"
            )


def checked(results: list[EntryId | BaseException]) -> list[EntryId]:
    """Return ids where there are only ids.

    Raises:
        PublishError: some of the messages failed.
        PublishUncertainError: of some of them nobody knows.
    """
    failed = [result for result in results if isinstance(result, BaseException)]
    if failed:
        uncertain = next((error for error in failed if isinstance(error, PublishUncertainError)), None)
        first = uncertain or failed[0]
        text = f"{len(failed)} of {len(results)} messages failed, the first with: {first}"
        if uncertain is not None:
            raise PublishUncertainError(text, results=results)
        raise PublishError(text, results=results, code=getattr(first, "code", None))
    return results  # type: ignore[return-value]
