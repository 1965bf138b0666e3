"""Answers what the core asks about marks: keys that the user's function computes, and steps in the user's store."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final, Protocol

from ruststream._core import Consumer, Context, RedisClient
from ruststream.idempotency import IdempotencyStore, Idempotent, MarkState, MessageKey
from ruststream.redis.idempotency import RedisIdempotencyStore
from ruststream.redis.stream import group_key

if TYPE_CHECKING:
    from ruststream.subscriber import Subscriber

_AT_ONCE: Final = 64
"""Calls of a user's store that run at once."""

_ANSWERS: Final = {MarkState.STARTED: True, MarkState.WORKING: False, MarkState.DONE: None}


class Failing(Protocol):
    """What is needed of a subscription."""

    consumer_core: Consumer
    """The native side."""
    consumer: str
    """The name it reads under."""


class Marking:
    """The marks of one subscription, as far as Python has a say in them."""

    def __init__(self, subscription: Failing, subscriber: Subscriber, idempotency: Idempotent) -> None:
        """Do no I/O."""
        self._subscription = subscription
        self._extract = subscriber.plan.extract
        self._key = idempotency.key
        self._store = idempotency.store or RedisIdempotencyStore()
        self._ttl = idempotency.ttl
        self._lease = idempotency.leased(subscriber.source.min_idle)
        self._prefix = mark_prefix(subscriber.stream, subscriber.group, subscriber.name)
        # Unlike the name, this is never that of an earlier life, whose handlers may still run.
        self._owner = f"{subscription.consumer} {secrets.token_hex(4)}"
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def settings(self, client: RedisClient) -> tuple[str, str, float, float, RedisClient | None, bool]:
        """Return what the core needs to know.

        Args:
            client: of the stream's server, where marks are kept unless the store says otherwise.

        Raises:
            ShutDownError: they are kept on the server of a broker that is not connected.
        """
        server = self._store.server(client) if isinstance(self._store, RedisIdempotencyStore) else None
        return self._prefix, self._owner, self._lease, self._ttl, server, self._key is not None

    def asked(self, ticket: int) -> None:
        """Answer a question, at once or by a task."""
        core = self._subscription.consumer_core
        question = core.asked(ticket)
        if question is None:
            return
        kind, about = question
        if kind == "keys" and self._key is not None:
            core.answer(ticket, [self._key_of(ctx, self._key) for ctx in about])
            return
        task = asyncio.get_running_loop().create_task(self._step(ticket, kind, about))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _key_of(self, ctx: Context, key: MessageKey) -> str | BaseException:
        try:
            return key_text(key(self._extract(ctx)))
        except BaseException as error:  # noqa: BLE001 - the user's function: what it raises is the delivery's failure
            return error

    async def _step(self, ticket: int, kind: str, keys: list[str]) -> None:
        store = self._store
        if kind == "renew":
            renewed = await self._guarded(store.renew(keys, self._owner, self._lease), True)
            answers: list[Any] = [renewed] * len(keys)
        else:
            answers = await asyncio.gather(*(self._one(store, kind, key) for key in keys))
        self._subscription.consumer_core.answer(ticket, answers)

    async def _one(self, store: IdempotencyStore, kind: str, key: str) -> bool | BaseException | None:
        async with self._at_once:
            if kind == "begin":
                return await self._begun(store.begin(key, self._owner, self._lease))
            call = store.finish(key, self._owner, self._ttl) if kind == "finish" else store.release(key, self._owner)
            answer: bool | BaseException = await self._guarded(call, True)
            return answer

    async def _begun(self, call: Awaitable[MarkState]) -> bool | BaseException | None:
        state = await self._guarded(call, None)
        if isinstance(state, BaseException):
            return state
        if not isinstance(state, MarkState):
            return TypeError(f"IdempotencyStore.begin must return a MarkState, not {state!r}")
        return _ANSWERS[state]

    async def _guarded(self, call: Awaitable[Any], result: bool | None) -> Any:
        """Return the call's result, or the given one, or what it raised."""
        try:
            # Without an answer for as long as a lease lasts, the store is taken for failed.
            async with asyncio.timeout(self._lease):
                returned = await call
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The store's own: the core waits for an answer all the same.
            return error
        except Exception as error:  # noqa: BLE001 - the user's store: what it raises is for the core to deal with
            return error
        return returned if result is None else result


def mark_prefix(stream: str, group: str, name: str) -> str:
    """Return what the keys of one subscription's marks begin with. A cluster keeps them in the stream's slot."""
    return group_key(stream, _escaped(group), f"idempotency:{_escaped(name)}:")


def key_text(key: object) -> str:
    """Return as text what a message is known by.

    Raises:
        TypeError: neither a string that is not empty, nor bytes, nor a whole number.
    """
    if isinstance(key, str) and key:
        return "key:" + key.encode("utf-8", "backslashreplace").decode()
    if isinstance(key, bytes) and key:
        return "key:" + key.decode("utf-8", "backslashreplace")
    if isinstance(key, int) and not isinstance(key, bool):
        return f"key:{key}"
    raise TypeError(f"Idempotent(key) must return a string, bytes or a whole number, and not an empty one, but {key!r}")


def _escaped(part: str) -> str:
    """Write a name so that no other pair of names reads the same."""
    return part.replace("%", "%25").replace(":", "%3A")
