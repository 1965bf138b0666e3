"""Publishing: encode, queue, and await the server's answer. Concurrent publishes share round trips."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ruststream.codec import Codec, encoded
from ruststream.errors import ConfigError, PublishError, PublishUncertainError

if TYPE_CHECKING:
    from ruststream._core import EntryId, RedisClient
    from ruststream.loop import Bell

_CONTENT_TYPE: Final = b"content-type"
_KEY: Final = b"redis-partition-key"


class Publishing:
    """The publishing side of one connected broker."""

    def __init__(self, client: RedisClient, bell: Bell, codec: Codec) -> None:
        """Take a connected client and the bell of its loop."""
        self._client = client
        self._bell = bell
        self._codec = codec

    async def publish(
        self,
        message: object,
        stream: str,
        *,
        key: bytes | None,
        headers: Mapping[str, bytes],
        content_type: str | None,
        maxlen: int | None,
        minid: str | None,
        approximate: bool,
    ) -> EntryId:
        """Add one entry and return its id. `headers` are lower-case names and bytes.

        Raises:
            PublishError: the server refused it.
            PublishUncertainError: the answer was lost.
        """
        payload, default_type = encoded(message, self._codec)
        fields = _header_fields(headers, content_type or default_type)
        if key is not None:
            fields.append((_KEY, key))
        self._check_loop()
        ticket = self._client.publish(stream, payload, fields, maxlen, minid, approximate)
        return await self._bell.answer(ticket)  # type: ignore[no-any-return]

    async def publish_many(
        self,
        messages: Sequence[object],
        stream: str,
        *,
        key: Callable[[Any], bytes | None] | None,
        headers: Mapping[str, bytes],
        content_type: str | None,
        maxlen: int | None,
        minid: str | None,
        approximate: bool,
    ) -> list[EntryId]:
        """Add many entries in pipelines and return their ids in order.

        Raises:
            PublishError: the server refused some; `results` holds an id or an exception per message.
            PublishUncertainError: the answers of some were lost; `results` as above.
        """
        if not messages:
            return []
        codec = self._codec
        payloads = []
        content_types = set()
        for message in messages:
            payload, default_type = encoded(message, codec)
            payloads.append(payload)
            content_types.add(content_type or default_type)
        if len(content_types) > 1:
            raise PublishError(
                f"the messages have different content types ({', '.join(sorted(content_types))}): "
                "publish bytes and objects apart, or give content_type"
            )
        fields = _header_fields(headers, content_types.pop())
        keys = None if key is None else [key(message) for message in messages]
        self._check_loop()
        ticket = self._client.publish_many(stream, payloads, fields, keys, maxlen, minid, approximate)
        results: list[EntryId | BaseException] = await self._bell.answer(ticket)
        failed = [result for result in results if isinstance(result, BaseException)]
        if failed:
            uncertain = next((error for error in failed if isinstance(error, PublishUncertainError)), None)
            kind = PublishError if uncertain is None else PublishUncertainError
            first = uncertain or failed[0]
            raise kind(f"{len(failed)} of {len(results)} messages failed, the first with: {first}", results=results)
        return results  # type: ignore[return-value]

    def _check_loop(self) -> None:
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


def _header_fields(headers: Mapping[str, bytes], content_type: str) -> list[tuple[bytes, bytes]]:
    if not headers:
        return [(_CONTENT_TYPE, content_type.encode())]
    fields = [(name.encode(), value) for name, value in headers.items() if name != "content-type"]
    fields.insert(0, (_CONTENT_TYPE, content_type.encode()))
    return fields
