"""One Redis or Valkey server: its subscribers, and publishing to its streams."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack, overload

from ruststream._core import EntryId, RedisClient
from ruststream.codec import Codec, CodecName, codec_of
from ruststream.errors import ConfigError, ShutDownError
from ruststream.loop import Bell
from ruststream.message import stream_of
from ruststream.option import name_text
from ruststream.policy import Backoff
from ruststream.publisher import Publisher
from ruststream.publishing import Publishing
from ruststream.redis.address import read_address
from ruststream.redis.stream import RedisStream
from ruststream.registration import Registration, Source, SubscriberOptions, check_source
from ruststream.router import Router
from ruststream.signature import Handler
from ruststream.subscriber import Subscriber
from ruststream.transaction import Transaction
from ruststream.wire import outgoing_message, outgoing_messages

F = TypeVar("F", bound=Handler)
M = TypeVar("M")

_RECONNECT: Final = Backoff(0.05, 1)

_log: Final = logging.getLogger("ruststream")


class RedisBroker:
    """Subscribers of one server, and publishing to it. Construction does no I/O.

    An app connects it. For publishing alone, `async with RedisBroker(url) as broker:` does.
    """

    def __init__(
        self,
        url: str,
        *,
        username: str | None = None,
        password: str | None = None,
        default_group: str | None = None,
        reconnect: Backoff = _RECONNECT,
        codec: CodecName | Codec = "json",
    ) -> None:
        """Check the options.

        Args:
            url: `redis://`, `unix://`, or `memory://name`: a server within the process, shared by the brokers that name
                it, for trying things out and for tests. Nothing survives the process.
            username: the ACL user, where the URL names none.
            password: the password, where the URL holds none.
            default_group: the consumer group of subscribers that name none.
            reconnect: the wait before each attempt to reach a server that went away.
            codec: of messages that are published, and of subscribers that name none.

        Raises:
            ConfigError: an option is wrong. No message shows a secret.
        """
        self._address = read_address(url)
        for option, value in (("username", username), ("password", password)):
            if value is not None and not isinstance(value, str):
                raise ConfigError(f"{option} must be a string or None, not {type(value).__name__}")
            if value is not None and self._address.has_credentials:
                raise ConfigError(f"{option} is given twice: give it in the Redis URL or as {option}=, not in both")
        if not isinstance(reconnect, Backoff):
            raise ConfigError(f"reconnect must be a Backoff, not {reconnect!r}")
        self._username = username
        self._password = password
        self._default_group = None if default_group is None else name_text(default_group, "default_group")
        self._reconnect = reconnect
        self._codec = codec_of(codec)
        self._subscribers: list[Subscriber] = []
        self._routers: list[Router] = []
        self._client: RedisClient | None = None
        self._publishing: Publishing | None = None
        self._own_bell: Bell | None = None

    @classmethod
    def from_env(
        cls,
        *,
        username: str | None = None,
        password: str | None = None,
        default_group: str | None = None,
        reconnect: Backoff = _RECONNECT,
        codec: CodecName | Codec = "json",
    ) -> Self:
        """Make a broker of the server that the environment variable `REDIS_URL` names, else of one within the process.

        Raises:
            ConfigError: an option is wrong.
        """
        url = os.environ.get("REDIS_URL", "").strip()
        if not url:
            url = "memory://"
            _log.warning(
                "REDIS_URL is not set: using a stream server within this process. Nothing survives the process; for "
                "anything but a trial set it, for example REDIS_URL=redis://localhost:6379/0"
            )
        return cls(
            url,
            username=username,
            password=password,
            default_group=default_group,
            reconnect=reconnect,
            codec=codec,
        )

    def __repr__(self) -> str:
        """Show where the server is, without secrets."""
        return f"RedisBroker({self._address.shown!r})"

    @property
    def address(self) -> str:
        """The server's URL, user name and password masked."""
        return self._address.shown

    @property
    def codec(self) -> Codec:
        """The codec of what is published, and of subscribers that name none."""
        return self._codec

    @property
    def subscribers(self) -> tuple[Subscriber, ...]:
        """The subscribers, in the order they were added."""
        return tuple(self._subscribers)

    @property
    def client(self) -> RedisClient:
        """The native client. Raises `ShutDownError` where the broker is not connected."""
        if self._client is None:
            raise ShutDownError(f"{self!r} is not connected: run its app, or use it as `async with broker:`")
        return self._client

    def subscriber(self, source: Source | str, **options: Unpack[SubscriberOptions]) -> Callable[[F], F]:
        """Make the decorated function the handler of a subscription, and return it unchanged.

        Args:
            source: a `RedisStream`, or the name of a stream that is read with `default_group`.
            options: see `SubscriberOptions`.

        Raises:
            ConfigError: an option, or the handler's signature, is wrong.
        """
        check_source(source)

        def decorate(handler: F) -> F:
            self.add_subscriber(source, handler, **options)
            return handler

        return decorate

    def add_subscriber(self, source: Source | str, handler: Handler, **options: Unpack[SubscriberOptions]) -> None:
        """Add a subscription. The same as the decorator.

        Raises:
            ConfigError: an option, or the handler's signature, is wrong.
        """
        self._add(Registration(source, handler, options), prefix="")

    def include(self, router: Router) -> None:
        """Add the subscriptions of a router, its prefix before the names of their streams.

        Raises:
            ConfigError: not a router, one that is included already, or a subscription without a group.
        """
        if not isinstance(router, Router):
            raise ConfigError(f"include takes a Router, not {router!r}")
        if any(router is included for included in self._routers):
            raise ConfigError("the router is included already")
        self._routers.append(router)
        for registration in router.registrations:
            self._add(registration, router.prefix)

    async def publish(
        self,
        message: object,
        stream: str | None = None,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        content_type: str | None = None,
        maxlen: int | None = None,
        minid: EntryId | str | None = None,
        approximate: bool = True,
    ) -> EntryId:
        """Add one message to a stream, and return its id once the server has answered.

        Args:
            message: what the codec encodes; `bytes` and `msgspec.Raw` go as they are.
            stream: the stream's key. Default: the one that `@outgoing` names for the message's class.
            key: the partition key.
            headers: by name; the names are written in lower case. `ctx.headers` of a delivery may be passed on.
            content_type: instead of the codec's.
            maxlen: trim the stream to so many entries.
            minid: trim the entries below this id.
            approximate: let the server trim a little later, which costs it less.

        Raises:
            ConfigError: an argument is wrong.
            PublishError: the message can't be encoded, or the server refused it.
            PublishUncertainError: the connection was lost before the answer came.
            ShutDownError: the broker is not connected.
        """
        return await self._connected().publish(
            outgoing_message(
                message,
                stream,
                self._codec,
                key=key,
                headers=headers,
                content_type=content_type,
                maxlen=maxlen,
                minid=minid,
                approximate=approximate,
            )
        )

    async def publish_many(
        self,
        messages: Iterable[object],
        stream: str | None = None,
        *,
        key: Callable[[Any], bytes | str | int | None] | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        content_type: str | None = None,
        maxlen: int | None = None,
        minid: EntryId | str | None = None,
        approximate: bool = True,
    ) -> list[EntryId]:
        """Add many messages to a stream in one pipeline, and return their ids in the same order.

        Args:
            messages: what the codec encodes; `bytes` and `msgspec.Raw` go as they are.
            stream: the stream's key. Default: the one that `@outgoing` names for the messages' classes.
            key: computes each message's partition key.
            headers: of every message.
            content_type: instead of the codec's.
            maxlen: trim the stream to so many entries.
            minid: trim the entries below this id.
            approximate: let the server trim a little later, which costs it less.

        Raises:
            ConfigError: an argument is wrong.
            PublishError: a message can't be encoded and nothing was sent, or the server refused some: `results` holds
                an id or an exception for each message.
            PublishUncertainError: the connection was lost before the answers came; `results` as above.
            ShutDownError: the broker is not connected.
        """
        if isinstance(messages, (str, bytes, bytearray, memoryview, Mapping)):
            raise ConfigError(f"publish_many takes a list of messages, not one {type(messages).__name__}")
        if key is not None and not callable(key):
            raise ConfigError(f"key of publish_many must be a function of the message, not {key!r}")
        return await self._connected().publish_many(
            outgoing_messages(
                list(messages),
                stream,
                self._codec,
                key=key,
                headers=headers,
                content_type=content_type,
                maxlen=maxlen,
                minid=minid,
                approximate=approximate,
            )
        )

    def transaction(self) -> Transaction:
        """Make a transaction: `async with broker.transaction() as tx: await tx.publish(...)`.

        What its block publishes is added in one MULTI/EXEC at the end of the block; nothing where an exception leaves
        it. See `Transaction`.
        """
        return Transaction(self._connected, self._codec)

    @overload
    def publisher(self, stream: str | None = None) -> Publisher[Any]: ...
    @overload
    def publisher(self, stream: str | None, message_type: type[M]) -> Publisher[M]: ...
    def publisher(self, stream: str | None = None, message_type: Any = Any) -> Publisher[Any]:
        """Make a publisher of one stream, before or after the broker is connected.

        Args:
            stream: where messages go. None: to the stream that `@outgoing` names for their class.
            message_type: what messages must be; the type checker holds callers to it.

        Raises:
            ConfigError: not a stream's name.
        """
        if stream is None:
            stream = stream_of(message_type)
        return Publisher(self, None if stream is None else name_text(stream, "publisher(stream)"), message_type)

    async def connect(self, bell: Bell, url: str | None = None) -> None:
        """Connect on the loop of this bell, and check the password.

        Args:
            bell: of the running loop.
            url: of another server than the broker's own, with its own credentials, for a test.

        Raises:
            ConnectError: the server can't be reached, or refuses the credentials.
            ConfigError: the broker is connected already.
        """
        if self._client is not None:
            raise ConfigError(f"{self!r} is connected already: one app, or one `async with`, at a time")
        client = RedisClient(
            bell.engine,
            self._address.url if url is None else url,
            username=self._username if url is None else None,
            password=self._password if url is None else None,
            reconnect_initial=self._reconnect.initial,
            reconnect_maximum=self._reconnect.maximum,
        )
        self._client = client
        try:
            await client.connect()
        except BaseException:
            await self.close()
            raise
        self._publishing = Publishing(client, bell)

    async def close(self) -> None:
        """Close the connections, once what was published before is answered."""
        client, self._client, self._publishing = self._client, None, None
        bell, self._own_bell = self._own_bell, None
        try:
            if client is not None:
                await client.close()
        finally:
            if bell is not None:
                bell.close()

    async def __aenter__(self) -> Self:
        """Connect, for publishing outside an app."""
        if self._client is not None:
            raise ConfigError(f"{self!r} is connected already: one app, or one `async with`, at a time")
        self._own_bell = Bell()
        await self.connect(self._own_bell)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self.close()

    def _connected(self) -> Publishing:
        if self._publishing is None:
            raise ShutDownError(f"{self!r} is not connected: run its app, or use it as `async with broker:`")
        return self._publishing

    def _add(self, registration: Registration, prefix: str) -> None:
        source = registration.source
        if isinstance(source, str):
            source = RedisStream(source)
        if not isinstance(source, RedisStream):
            raise ConfigError(f"a subscriber of a RedisBroker reads a RedisStream, not {source!r}")
        if self._client is not None:
            raise ConfigError(
                f"the subscriber of {source.stream!r} comes too late: add it before the app starts, "
                f"it would never be called"
            )
        source = source.attached(self._default_group, prefix)
        for other in self._subscribers:
            same_group = (other.stream, other.group) == (source.stream, source.group)
            if same_group and source.consumer is not None and source.consumer == other.source.consumer:
                raise ConfigError(
                    f"consumer {source.consumer!r} reads group {source.group!r} of {source.stream!r} twice: "
                    f"give each subscription a consumer of its own, or none"
                )
        name = self._name(registration)
        self._subscribers.append(registration.subscriber(name, source, self._codec, prefix, self))

    def _name(self, registration: Registration) -> str:
        """Return the subscription's name: a given one is refused if it is taken, the handler's gets a number."""
        taken = {subscriber.name for subscriber in self._subscribers}
        if registration.name is not None:
            if registration.name in taken:
                raise ConfigError(f"there is a subscription of the name {registration.name!r} already")
            return registration.name
        name, number = registration.signature.name, 1
        while name in taken:
            number += 1
            name = f"{registration.signature.name}-{number}"
        return name
