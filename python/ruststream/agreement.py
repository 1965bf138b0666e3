"""What the subscriptions of one app agree on: where groups begin, who recovers them, what streams are kept within."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

from ruststream.errors import ConfigError
from ruststream.redis.stream import StreamStart

if TYPE_CHECKING:
    from ruststream.redis.broker import RedisBroker
    from ruststream.redis.trim import Trim
    from ruststream.subscriber import Subscriber

_Where: TypeAlias = tuple[str, str]
"""A broker's address and a stream."""
_Way: TypeAlias = tuple[_Where, _Where, str]
"""From a stream to a stream, and the name of the subscription that leads there."""

_log: Final = logging.getLogger("ruststream.app")


def resolved(brokers: Iterable[RedisBroker]) -> list[tuple[RedisBroker, Subscriber]]:
    """Return all subscribers, each knowing what the others of its group say.

    Those of new entries get the `min_idle` that the app recovers their group with; a group of which the app recovers
    nothing gives a warning. All get the group's one `start_id`, whichever of them is opened first and creates it, and
    the stream's one `trim`.

    Raises:
        ConfigError: two subscriptions want their group to begin at different entries, or their stream to be trimmed in
            different ways, or replies or dead letters go round in a circle, or two streams have one `delay_key`,
            or one keeps marks for a shorter time than another keeps the stream's entries.
    """
    pairs = [(broker, subscriber) for broker in brokers for subscriber in broker.subscribers]
    groups: dict[tuple[str, str, str], list[Subscriber]] = {}
    for broker, subscriber in pairs:
        groups.setdefault((broker.address, subscriber.stream, subscriber.group), []).append(subscriber)
    for group in groups.values():
        _warn_of_shares(group)
    _refuse_cycles(pairs)
    _refuse_shared_delays(pairs)
    known = {where: (_recovered_after(group), _start_id(group)) for where, group in groups.items()}
    trims = _trims(pairs)
    found = []
    for broker, subscriber in pairs:
        min_idle, start_id = known[broker.address, subscriber.stream, subscriber.group]
        bounded = subscriber.bounded(trims.get((broker.address, subscriber.stream)))
        found.append((broker, _with_min_idle(bounded.starting_at(start_id), min_idle)))
    return found


def _warn_of_shares(group: Iterable[Subscriber]) -> None:
    """Say so where handlers that differ share the new entries of one group: each of them sees but a part."""
    readers = {id(subscriber.plan.handler): subscriber for subscriber in group if subscriber.source.mode != "reclaim"}
    if len(readers) > 1:
        first, *others = readers.values()
        _log.warning(
            "subscriptions %s read the same group %s of stream %s with different handlers: each entry goes to one of "
            "them; give each a group of its own if each is to see every entry",
            ", ".join([first.name, *(other.name for other in others)]),
            first.group,
            first.stream,
        )


def _refuse_shared_delays(pairs: Iterable[tuple[RedisBroker, Subscriber]]) -> None:
    """Refuse streams whose delayed entries would lie in one sorted set. Groups of one stream may share it."""
    owners: dict[tuple[str, str], Subscriber] = {}
    for broker, subscriber in pairs:
        owner = owners.setdefault((broker.address, subscriber.delay_key), subscriber)
        if owner.stream != subscriber.stream:
            raise ConfigError(
                f"subscriptions {owner.name} (stream {owner.stream}) and {subscriber.name} (stream "
                f"{subscriber.stream}) have the same delay_key {subscriber.delay_key!r}, and one would hand over the "
                "other's delayed entries: leave it out, or give each stream a key of its own"
            )


def _refuse_cycles(pairs: Iterable[tuple[RedisBroker, Subscriber]]) -> None:
    """Refuse replies and dead letters that would come back to the stream they began in: they would never rest."""
    replies: list[_Way] = []
    letters: list[_Way] = []
    for broker, subscriber in pairs:
        start, name = (broker.address, subscriber.stream), subscriber.name
        replies += [(start, (broker.address, stream), name) for stream in sorted(subscriber.replies.known)]
        if subscriber.dead_letter is not None:
            letters.append((start, (broker.address, subscriber.dead_letter), name))
    for ways, what, then in (
        (
            replies,
            "replies",
            (
                "each message would be handled without end; send them elsewhere, or publish by ctx.publish where the "
                "handler knows when to stop"
            ),
        ),
        (
            letters,
            "dead letters",
            "one that nobody can handle would never rest; leave dead_letter out of one of them",
        ),
        (
            replies + letters,
            "replies and dead letters",
            "one that nobody can handle would never rest; let the dead letters go where nobody replies to them",
        ),
    ):
        if (found := _circle(ways)) is not None:
            raise ConfigError(f"the {what} of {found[0]} go round in a circle ({found[1]}): {then}")


def _circle(found: Iterable[_Way]) -> tuple[str, str] | None:
    """Return the names of subscriptions that lead round in a circle, and the circle; None where there is none."""
    ways: dict[_Where, list[tuple[_Where, str]]] = {}
    for start, where, name in found:
        ways.setdefault(start, []).append((where, name))
    clear: set[_Where] = set()
    for start, first in ways.items():
        # Depth first: what is on the path when it is met again is a circle.
        path = [start]
        names: list[str] = []
        waiting = [iter(first)] if start not in clear else []
        while waiting:
            step = next(waiting[-1], None)
            if step is None:
                waiting.pop()
                clear.add(path.pop())
                del names[-1:]
                continue
            where, name = step
            if where in path:
                at = path.index(where)
                circle = " -> ".join([stream for _, stream in path[at:]] + [where[1]])
                return ", ".join([*names[at:], name]), circle
            if where in ways and where not in clear:
                path.append(where)
                names.append(name)
                waiting.append(iter(ways[where]))
    return None


def _recovered_after(group: Iterable[Subscriber]) -> float | None:
    found = [subscriber.source.min_idle for subscriber in group if subscriber.source.recovers]
    return min((min_idle for min_idle in found if min_idle is not None), default=None)


def _start_id(group: Iterable[Subscriber]) -> str:
    """Return where a group begins that is created: where the one subscription says that says anything."""
    said = {subscriber.source.start_id: subscriber.name for subscriber in group}
    said.pop(StreamStart.NEW.value, None)
    if len(said) > 1:
        (first, one), (second, other), *_ = said.items()
        raise ConfigError(
            f"subscriptions {one} and {other} read the same group, but start_id is {first!r} in one and {second!r} in "
            "the other: a group begins in one place, give it to one of them"
        )
    return next(iter(said), StreamStart.NEW.value)


def _trims(pairs: Iterable[tuple[RedisBroker, Subscriber]]) -> dict[tuple[str, str], Trim]:
    """Return what each stream is kept within, where a subscription says that."""
    said: dict[tuple[str, str], tuple[Trim, str]] = {}
    for broker, subscriber in pairs:
        trim, where = subscriber.source.trim, (broker.address, subscriber.stream)
        if trim is None:
            continue
        known, name = said.setdefault(where, (trim, subscriber.name))
        if known != trim:
            raise ConfigError(
                f"subscriptions {name} and {subscriber.name} read the same stream {subscriber.stream}, but trim is "
                f"{known} in one and {trim} in the other: a stream is kept within one bound"
            )
    return {where: trim for where, (trim, _) in said.items()}


def _with_min_idle(subscriber: Subscriber, min_idle: float | None) -> Subscriber:
    source = subscriber.source
    if source.recovers:
        return subscriber
    if min_idle is None:
        _log.warning(
            "subscription %s reads group %s of stream %s, and nothing in this app recovers what a crashed consumer "
            "leaves pending there: add a RedisStream.reclaim of the group, or read it by RedisStream.recovering",
            subscriber.name,
            subscriber.group,
            subscriber.stream,
        )
        return subscriber
    return subscriber if source.min_idle is not None else subscriber.renewed(min_idle)
