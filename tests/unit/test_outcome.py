"""Outcomes and `Settle`."""

from datetime import timedelta

import pytest

from ruststream.errors import ConfigError
from ruststream.outcome import Outcome, Settle, ack, dead_letter, drop, leave, retry


@pytest.mark.parametrize("make", [ack, drop, retry, leave, dead_letter])
def test_the_common_outcomes_are_shared(make):
    assert make() is make()
    assert make().kind == make.__name__


def test_outcomes_compare_and_hash_by_what_they_say():
    assert retry(after=30) == retry(after=timedelta(seconds=30)) == Outcome("retry", 30.0)
    assert len({ack(), ack(), retry(), retry(after=1), retry(after=1.0), dead_letter("a"), dead_letter("b")}) == 5
    assert retry(after=0) != retry()


def test_outcomes_are_frozen():
    with pytest.raises(AttributeError):
        ack().kind = "drop"


@pytest.mark.parametrize("after", [-1, float("nan"), timedelta(days=4000), "5", True])
def test_a_delay_is_a_duration(after):
    with pytest.raises(ConfigError, match="after"):
        retry(after=after)


@pytest.mark.parametrize("why", [1, b"why", ValueError("x")])
def test_a_reason_is_text(why):
    with pytest.raises(ConfigError, match="why"):
        dead_letter(why)


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (ack(), "ack()"),
        (retry(after=1.5), "retry(after=1.5)"),
        (dead_letter("no account"), "dead_letter('no account')"),
    ],
)
def test_an_outcome_shows_the_call_that_makes_it(outcome, text):
    assert repr(outcome) == text


def test_settle_passes_an_except_exception():
    def deep():
        raise Settle(retry())

    def careless():
        try:
            deep()
        except Exception:
            pytest.fail("swallowed")

    with pytest.raises(Settle) as caught:
        careless()
    assert caught.value.outcome is retry()


@pytest.mark.parametrize("outcome", [retry, None, "retry"])
def test_settle_takes_an_outcome_and_not_its_maker(outcome):
    with pytest.raises(ConfigError, match="Settle takes an outcome"):
        Settle(outcome)
