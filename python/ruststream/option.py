"""What the values of options may be: durations, names, whole numbers. The one place that reads them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from datetime import timedelta
from difflib import get_close_matches
from typing import Final, TypeAlias

from ruststream.errors import ConfigError

Duration: TypeAlias = float | timedelta
"""Seconds, or a `timedelta`."""

LONGEST: Final = 10.0 * 365 * 86_400 - 1
"""Seconds in ten years, less one. Anything longer is a mistake in the unit."""


def shown(value: object, most: int = 60) -> str:
    """Return a value as a message shows it: its `repr`, cut to so many characters; its type where it has none."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the user's class, or a number of more digits than Python writes
        return f"an object of type {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def seconds(value: object, option: str, *, zero: bool = True) -> float:
    """Return a duration in seconds.

    Args:
        value: seconds as `int` or `float`, or a `timedelta`.
        option: the name that an error should give.
        zero: whether 0 is allowed. Where it is not, neither is anything below a millisecond, the server's grain.

    Raises:
        ConfigError: not a duration, negative, not a number, or ten years and more.
    """
    if isinstance(value, timedelta):
        amount = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            amount = float(value)
        except OverflowError:
            amount = math.inf
    else:
        raise ConfigError(f"{option} must be seconds (int or float) or a timedelta, not {shown(value)}")
    if math.isnan(amount) or amount < 0:
        raise ConfigError(f"{option} must not be negative or NaN, but is {shown(value)}")
    if amount > LONGEST:
        raise ConfigError(f"{option} must be shorter than ten years; it is in seconds, and is {shown(value)}")
    if not zero and amount < 0.001:
        raise ConfigError(f"{option} must be at least a millisecond (0.001), but is {shown(value)}")
    return amount


def name_text(value: object, option: str) -> str:
    """Return the name of a stream, a group, a consumer or a subscription.

    Raises:
        ConfigError: not a string, empty, or not to be written as UTF-8.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{option} must be a string, not {value!r}")
    if not value:
        raise ConfigError(f"{option} must not be empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{option} must be text that UTF-8 can carry, not {value!r}") from None
    return value


def text_bytes(value: str, option: str) -> bytes:
    """Return text in UTF-8. Bytes that were no UTF-8 when they were read as text are themselves again.

    Raises:
        ConfigError: it has surrogates that stand for no byte.
    """
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ConfigError(f"{option} must be text that UTF-8 can carry, not {shown(value)}") from None


def whole(value: object, option: str, least: int, most: int) -> int:
    """Return a whole number.

    Raises:
        ConfigError: not one, or out of bounds.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"{option} must be a whole number from {least} to {most}, not {shown(value)}")
    return value


def yes_or_no(value: object, option: str) -> bool:
    """Return a bool.

    Raises:
        ConfigError: anything else.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{option} must be True or False, not {value!r}")
    return value


def refuse_unknown(options: Iterable[str], known: Collection[str], what: str) -> None:
    """Refuse options that there are not, and say which there are.

    Raises:
        ConfigError: one of `options` is not among `known`.
    """
    for option in options:
        if option not in known:
            near = get_close_matches(option, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
            raise ConfigError(f"{what} has no option {option}; {hint}")
