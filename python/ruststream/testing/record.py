"""What the handlers of a tested app were called with, and how each call ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from ruststream._core import EntryId
from ruststream.outcome import Outcome

_SHOWN: Final = 20
"""Calls that a message lists."""
_NOT_GIVEN: Final[Any] = object()


@dataclass(slots=True, eq=False)
class Call:
    """One delivery to one handler."""

    value: Any
    """The decoded message, as it was before the handler ran; None where it did not decode."""
    payload: bytes
    """The message as it came."""
    headers: Mapping[str, str]
    """Its headers."""
    key: bytes | None
    """Its partition key."""
    entry_id: EntryId
    """The entry's id."""
    delivery_count: int
    """How often the entry had been delivered, this delivery included."""
    idle: float
    """Seconds the entry lay pending before."""
    stream: str
    """The stream."""
    group: str
    """The consumer group."""
    subscription: str
    """The subscription's name."""
    consumer: str
    """The consumer that the entry was delivered to."""
    outcome: Outcome | None = None
    """How the delivery was settled; None while it is not."""
    exception: BaseException | None = None
    """What the handler, or the decoding of its arguments, raised."""
    started: bool = False
    """Whether the handler was called: what does not decode never gets there."""
    ended: bool = False
    """Whether the handler has returned or raised."""

    def __str__(self) -> str:
        """Show it on one line."""
        if not self.ended:
            end = "still running"
        elif self.exception is None:
            end = repr(self.outcome)
        else:
            end = f"{self.outcome!r} after {type(self.exception).__name__}: {self.exception}"
        shown = self.value if self.started or self.exception is None else self.payload
        return f"entry {self.entry_id}, delivery {self.delivery_count}, idle {self.idle:g} s: {shown!r:.120} -> {end}"


@dataclass(slots=True, eq=False)
class SubscriberRecord:
    """The calls of one subscription, and assertions about them that say what happened instead."""

    name: str
    """The subscription's name."""
    stream: str
    """The stream it reads."""
    group: str
    """The group it reads through."""
    deliveries: list[Call] = field(default_factory=list)
    """Every delivery in order, also what did not decode."""
    batches: list[list[Call]] = field(default_factory=list)
    """The calls of a handler that takes batches: the elements of each."""

    @property
    def calls(self) -> list[Call]:
        """The calls of the handler in order."""
        return [call for call in self.deliveries if call.started]

    @property
    def outcomes(self) -> list[Outcome | None]:
        """How the deliveries were settled, in their order; None for one that is not."""
        return [call.outcome for call in self.deliveries]

    @property
    def values(self) -> list[Any]:
        """What the handler was called with, in order."""
        return [call.value for call in self.calls]

    def assert_called(self, times: int | None = None) -> Self:
        """Fail unless the handler was called so often; without a number, at least once."""
        calls = len(self.calls)
        if times is None and not calls:
            self._fail("was never called")
        if times is not None and calls != times:
            self._fail(f"was called {_times(calls)}, not {_times(times)}")
        return self

    def assert_not_called(self) -> Self:
        """Fail if the handler was called."""
        return self.assert_called(0)

    def assert_called_with(self, value: object) -> Self:
        """Fail unless one of the calls was with this decoded message."""
        if value not in self.values:
            self._fail(f"was not called with {value!r}")
        return self

    def assert_outcome(self, outcome: Outcome | str, call: int = -1) -> Self:
        """Fail unless a delivery ended like this.

        Args:
            outcome: such as `retry()`, or its kind alone: `"dead_letter"`.
            call: which delivery: 0 is the first one, -1 the last one.
        """
        where = self._at(call, f"ended in {outcome!r}")
        found = self.deliveries[call].outcome
        if (None if found is None else found.kind if isinstance(outcome, str) else found) != outcome:
            self._fail(f"settled {where} by {found!r}, not by {outcome!r}")
        return self

    def assert_outcomes(self, *outcomes: Outcome | str) -> Self:
        """Fail unless the deliveries ended like these, in this order, and there were no others."""
        found = [
            None if one is None else one.kind if isinstance(wanted, str) else one
            for one, wanted in zip(self.outcomes, outcomes, strict=False)
        ]
        if found != list(outcomes) or len(self.deliveries) != len(outcomes):
            self._fail(f"settled its deliveries by {self.outcomes!r}, not by {list(outcomes)!r}")
        return self

    def assert_raised(self, error: type[BaseException], call: int = -1) -> Self:
        """Fail unless a delivery raised an exception of this class."""
        where = self._at(call, f"raised {error.__name__}")
        if not isinstance(self.deliveries[call].exception, error):
            self._fail(f"raised {self.deliveries[call].exception!r} in {where}, not {error.__name__}")
        return self

    def _at(self, call: int, what: str) -> str:
        """Return the words for a delivery: its number in the list of a message. Fail where there is none."""
        __tracebackhide__ = True
        there = len(self.deliveries)
        if not -there <= call < there:
            which = "no delivery" if call in (0, -1) else f"no delivery {call}, counted from 0,"
            self._fail(f"has {which} that could have {what}")
        number = call % there
        return f"its last delivery ({number})" if call == -1 else f"delivery {number}"

    def _fail(self, what: str) -> None:
        __tracebackhide__ = True
        raise AssertionError(f"subscription {self.name} of stream {self.stream} {what}; {self._story()}")

    def _story(self) -> str:
        if not self.deliveries:
            return "nothing was delivered to it"
        lines = [f"  {number}. {call}" for number, call in enumerate(self.deliveries[:_SHOWN])]
        if len(self.deliveries) > _SHOWN:
            lines.append(f"  and {len(self.deliveries) - _SHOWN} more")
        return "\n".join(["its deliveries were:", *lines])


def _times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number} times")
