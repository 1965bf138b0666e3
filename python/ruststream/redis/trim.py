"""How a stream is kept bounded, without dropping what a group still needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Self, TypeAlias

from ruststream.errors import ConfigError
from ruststream.option import Duration, seconds, whole

Policy: TypeAlias = Literal["acked", "max_length", "max_age"]

_LONGEST: Final = 2**53
"""Entries; what every server and a float can count."""


@dataclass(frozen=True, slots=True)
class Trim:
    """What a stream is kept within: `RedisStream(..., trim=Trim.max_length(1_000_000))`.

    Whatever the policy, an entry goes only once no group of the stream needs it any more: every group has had it
    delivered and has acknowledged it. What is kept beyond the bound for that reason is counted (`held_back` in
    `app.health()`) and logged with the groups that need it, once a minute while it lasts.

    A policy holds for the stream: one subscription of an app that names it is enough, and two must not differ.
    """

    policy: Policy
    """Which of the constructors made it."""
    figure: float = 0.0
    """Entries of `max_length`, seconds of `max_age`; 0 for `acked`."""

    def __post_init__(self) -> None:
        """Refuse what none of the constructors makes.

        Raises:
            ConfigError: an unknown policy, or a figure that is not its own.
        """
        figured = self.policy in ("max_length", "max_age")
        if not (figured or self.policy == "acked") or figured != (self.figure > 0):
            raise ConfigError(
                f"a Trim is made by Trim.acked(), Trim.max_length(n) or Trim.max_age(d), not by "
                f"Trim({self.policy!r}, {self.figure!r})"
            )

    @classmethod
    def acked(cls) -> Self:
        """Delete entries as they are acknowledged, once every group has acknowledged them (Redis 8.2, `XACKDEL`).

        On an older server, and on Valkey, the start fails with `ServerTooOldError`; the other two work everywhere.
        """
        return cls("acked")

    @classmethod
    def max_length(cls, entries: int) -> Self:
        """Keep the newest entries, about once a second (any server).

        Args:
            entries: how many, at least 1.

        Raises:
            ConfigError: not a whole number, or below 1.
        """
        return cls("max_length", float(whole(entries, "Trim.max_length", 1, _LONGEST)))

    @classmethod
    def max_age(cls, age: Duration) -> Self:
        """Keep entries that are younger, by the server's clock and the time in their ids (any server).

        Args:
            age: seconds, or a `timedelta`.

        Raises:
            ConfigError: not a duration, below a millisecond, or above ten years.
        """
        return cls("max_age", seconds(age, "Trim.max_age", zero=False))

    @property
    def retention(self) -> float | None:
        """Seconds that an entry stays at least; None where that is not known."""
        return self.figure if self.policy == "max_age" else None

    def __str__(self) -> str:
        """Return it as it is written."""
        return f"Trim.{self.policy}({self.figure:g})" if self.figure else f"Trim.{self.policy}()"
