"""Subscribers that are declared apart from a broker, for a broker to include."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, Unpack

from ruststream.errors import ConfigError
from ruststream.registration import Registration, Source, SubscriberOptions, check_source
from ruststream.signature import Handler

F = TypeVar("F", bound=Handler)


class Router:
    """Collects subscribers in a module of its own: `broker.include(router)` adds them to a broker."""

    def __init__(self, prefix: str = "") -> None:
        """Collect nothing yet.

        Args:
            prefix: put before the name of every stream, at once where the router is included.

        Raises:
            ConfigError: `prefix` is not a string.
        """
        if not isinstance(prefix, str):
            raise ConfigError(f"prefix must be a string, not {prefix!r}")
        self.prefix = prefix
        self.registrations: list[Registration] = []
        """What was declared, in order."""

    def subscriber(self, source: Source | str, **options: Unpack[SubscriberOptions]) -> Callable[[F], F]:
        """Declare the decorated function as a subscriber's handler, and return it unchanged.

        Args:
            source: a `RedisStream`, or the name of a stream that is read with the broker's `default_group`.
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
        """Declare a subscriber. The same as the decorator.

        Raises:
            ConfigError: an option, or the handler's signature, is wrong.
        """
        self.registrations.append(Registration(source, handler, options))
