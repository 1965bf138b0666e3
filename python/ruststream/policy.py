"""What is done when a handler fails: the wait before the next attempt, and the outcome of an exception."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ruststream.errors import ConfigError
from ruststream.option import Duration, seconds
from ruststream.outcome import Outcome, Settle, leave

__all__ = ["Backoff", "ErrorPolicy", "available", "leaves", "safest", "said_by", "seconds"]

_GIVES_UP: Final = {"leave": 0, "retry": 1, "dead_letter": 2, "drop": 3, "ack": 4}
_generator: Final = random.Random()  # noqa: S311 - it spreads waits
_HINT: Final = "an outcome such as leave(), or a mapping such as {ConnectionError: retry(), ValueError: drop()}"


@dataclass(frozen=True, slots=True, init=False)
class Backoff:
    """A growing wait between attempts: `initial * factor ** (attempt - 1)` up to `maximum`, give or take `jitter`."""

    initial: float
    """Seconds before the second attempt."""
    maximum: float
    """Seconds that no wait exceeds, jitter included."""
    factor: float
    """What each wait is multiplied by for the next one."""
    jitter: float
    """The share of a wait that is random: 0.1 is plus or minus 10 %."""

    def __init__(
        self, initial: Duration = 1.0, maximum: Duration = 60.0, factor: float = 2.0, jitter: float = 0.1
    ) -> None:
        """Check the four numbers.

        Raises:
            ConfigError: a wait below a millisecond, `maximum` below `initial`, `factor` below 1, or `jitter` not
                from 0 to 1.
        """
        first = seconds(initial, "Backoff(initial)", zero=False)
        longest = seconds(maximum, "Backoff(maximum)", zero=False)
        if longest < first:
            raise ConfigError(f"Backoff(maximum) must be at least initial ({first} s), but is {longest} s")
        object.__setattr__(self, "initial", first)
        object.__setattr__(self, "maximum", longest)
        object.__setattr__(self, "factor", _number(factor, "Backoff(factor)", 1.0, 1000.0))
        object.__setattr__(self, "jitter", _number(jitter, "Backoff(jitter)", 0.0, 1.0))

    def delay(self, attempt: int, generator: random.Random | None = None) -> float:
        """Return the seconds to wait after this attempt; the first attempt is 1.

        Args:
            attempt: how often it was tried.
            generator: of the jitter. A seeded one gives the same waits every time.
        """
        if attempt <= 1:
            wait = self.initial
        else:
            try:
                wait = min(self.maximum, self.initial * self.factor ** (attempt - 1))
            except OverflowError:
                wait = self.maximum
        uniform = _generator.uniform if generator is None else generator.uniform
        return min(self.maximum, wait * uniform(1.0 - self.jitter, 1.0 + self.jitter))


class ErrorPolicy:
    """The `on_error` of a subscription: exception class to outcome, looked up along the class's ancestors."""

    __slots__ = ("_by_class", "_default", "_found")

    def __init__(self, on_error: Mapping[type[Exception], Outcome] | Outcome | None = None) -> None:
        """Check the mapping. A single outcome is that of every exception; None is `leave()`.

        Raises:
            ConfigError: something else than exception classes and outcomes, or an outcome that is not available.
        """
        self._default = leave()
        self._by_class: dict[type[BaseException], Outcome] = {}
        self._found: dict[type[BaseException], Outcome | None] = {}
        if isinstance(on_error, Outcome):
            self._default = available(on_error, "on_error")
        elif isinstance(on_error, Mapping):
            for cls, outcome in on_error.items():
                checked = _exception_class(cls)
                self._by_class[checked] = available(outcome, f"on_error[{checked.__name__}]")
        elif on_error is not None:
            raise ConfigError(f"on_error must be {_HINT}, not {on_error!r}")

    def outcome(self, error: BaseException) -> Outcome:
        """Return the outcome of a delivery whose handler raised this.

        Of a group each leaf has its outcome, that of a `Settle` among them being its own; a leaf without a rule has
        that of the group's class, where a rule names one, else the default. The safest of these wins (`safest`), so
        that no rule for one leaf gives up what another one wants to keep.
        """
        if not isinstance(error, BaseExceptionGroup):
            return self._of_one(error, self._default)
        groups = (base for base in type(error).__mro__ if issubclass(base, BaseExceptionGroup))
        unnamed = next((self._by_class[base] for base in groups if base in self._by_class), self._default)
        return safest(self._of_one(leaf, unnamed) for leaf in leaves(error))

    def _of_one(self, error: BaseException, default: Outcome) -> Outcome:
        if isinstance(error, Settle):
            return error.outcome
        if not isinstance(error, Exception):
            return leave()
        found = self._of_class(type(error))
        return default if found is None else found

    def outcomes(self) -> list[Outcome]:
        """Return every outcome it can say."""
        return [self._default, *self._by_class.values()]

    def _of_class(self, cls: type[BaseException]) -> Outcome | None:
        try:
            return self._found[cls]
        except KeyError:
            found = next((self._by_class[base] for base in cls.__mro__ if base in self._by_class), None)
            self._found[cls] = found
            return found


def safest(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the outcome that gives up the least: `leave()`, then `retry()`, `dead_letter()`, `drop()`, `ack()`.

    Of several retries it is the one that waits longest, else the first.
    """
    return min(outcomes, key=lambda outcome: (_GIVES_UP.get(outcome.kind, len(_GIVES_UP)), -(outcome.delay or 0.0)))


def leaves(error: BaseException) -> list[BaseException]:
    """Return what a group holds, groups within it looked into, in their order; of anything else itself."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in leaves(inner)]


def said_by(error: BaseException) -> Outcome | None:
    """Return the outcome that `Settle` says, alone or in a group of nothing else; None for what is a failure."""
    found = leaves(error)
    settles = [leaf.outcome for leaf in found if isinstance(leaf, Settle)]
    return safest(settles) if len(settles) == len(found) else None


def available(outcome: object, option: str) -> Outcome:
    """Return an outcome that an option may name.

    Raises:
        ConfigError: not an outcome, or one that this version can't carry out.
    """
    if not isinstance(outcome, Outcome):
        raise ConfigError(f"{option} must be an outcome such as leave() or retry(), not {outcome!r}")
    return outcome


def _exception_class(cls: object) -> type[Exception]:
    if not isinstance(cls, type) or not issubclass(cls, BaseException):
        raise ConfigError(f"the keys of on_error must be exception classes, not {cls!r}")
    if not issubclass(cls, Exception):
        raise ConfigError(f"on_error can't map {cls.__name__}: it ends the task or the process, not one delivery")
    return cls


def _number(value: object, option: str, least: float, most: float) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"{option} must be a number from {least:g} to {most:g}, not {value!r}")
    return float(value)
