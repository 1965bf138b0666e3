"""How a delivery ends: what a handler returns, or raises as `Settle` from deep in a call stack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ruststream.errors import ConfigError
from ruststream.option import Duration, seconds, shown

OutcomeKind: TypeAlias = Literal["ack", "drop", "retry", "leave", "dead_letter"]


@dataclass(frozen=True, slots=True, repr=False)
class Outcome:
    """One way to settle a delivery. Made by `ack()`, `drop()`, `retry()`, `leave()` and `dead_letter()`."""

    kind: OutcomeKind
    """What is done with the entry."""
    delay: float | None = None
    """Of a retry: seconds until the entry comes back. None leaves that to the subscription."""
    reason: str | None = None
    """Of a dead letter: why it was given up."""

    def __repr__(self) -> str:
        """Show the call that makes it."""
        if self.delay is not None:
            return f"{self.kind}(after={self.delay!r})"
        return f"{self.kind}({'' if self.reason is None else repr(self.reason)})"


# One of each for the whole process: returning an outcome allocates nothing.
_ACK = Outcome("ack")
_DROP = Outcome("drop")
_RETRY = Outcome("retry")
_LEAVE = Outcome("leave")
_DEAD_LETTER = Outcome("dead_letter")


def ack() -> Outcome:
    """Settle the entry as handled. A handler that returns None says the same."""
    return _ACK


def drop() -> Outcome:
    """Settle the entry without having handled it. It is counted, and it does not come back."""
    return _DROP


def retry(after: Duration | None = None) -> Outcome:
    """Have the entry delivered again.

    Args:
        after: seconds, or a `timedelta`, until it comes back. None leaves that to the subscription: `min_idle`
            where pending entries are claimed, else its growing delay.

    Raises:
        ConfigError: `after` is negative, not a number, or ten years and more.
    """
    return _RETRY if after is None else Outcome("retry", delay=seconds(after, "retry(after=)"))


def leave() -> Outcome:
    """Do not settle: the entry stays pending for whoever recovers the group."""
    return _LEAVE


def dead_letter(why: str | None = None) -> Outcome:
    """Move the entry to the subscription's dead-letter stream.

    Args:
        why: kept with the dead letter, for whoever reads it.

    Raises:
        ConfigError: `why` is not a string.
    """
    if why is None:
        return _DEAD_LETTER
    if not isinstance(why, str):
        raise ConfigError(f"dead_letter(why) must be a string, not {why!r}")
    return Outcome("dead_letter", reason=why)


def cause_text(outcome: Outcome, error: BaseException | None) -> bytes | None:
    """Return what a dead letter says of its cause: the error's type and text, and why, where the outcome says so."""
    if error is None:
        return None if outcome.reason is None else outcome.reason.encode("utf-8", "replace")
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the user's class: what it does wrong must not keep its entry
        text = "(its text can't be told)"
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if outcome.reason is not None:
        text = f"{text} ({outcome.reason})"
    return text.encode("utf-8", "replace")


def meaningless(value: object) -> TypeError:
    """Return the failure of a handler that returned what is no outcome."""
    return TypeError(f"the handler returned {shown(value, 200)}")


class Settle(BaseException):
    """Ends the handler with an outcome: `raise Settle(retry())`.

    A `BaseException`, so that an `except Exception` on the way up does not swallow it.
    """

    outcome: Outcome

    def __init__(self, outcome: Outcome) -> None:
        """Take the outcome.

        Raises:
            ConfigError: `outcome` is not an `Outcome`, such as `retry` without its parentheses.
        """
        if not isinstance(outcome, Outcome):
            raise ConfigError(f"Settle takes an outcome such as retry(), not {outcome!r}")
        super().__init__(outcome)
        self.outcome = outcome
