"""Backoff, and the outcome of an exception."""

import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream.errors import ConfigError
from ruststream.outcome import Settle, ack, dead_letter, drop, leave, retry
from ruststream.policy import Backoff, ErrorPolicy, safest


def test_waits_grow_up_to_the_maximum():
    backoff = Backoff(initial=1, maximum=10, factor=2, jitter=0)
    assert [backoff.delay(attempt) for attempt in (0, 1, 2, 3, 4, 5, 10_000)] == [1, 1, 2, 4, 8, 10, 10]


def test_the_defaults_and_timedeltas():
    assert Backoff() == Backoff(timedelta(seconds=1), timedelta(minutes=1), 2, 0.1)


@given(
    st.floats(0.001, 100),
    st.floats(100, 1000),
    st.floats(1, 1000),
    st.floats(0, 1),
    st.integers(-5, 10**9),
)
def test_no_wait_leaves_its_bounds(initial, maximum, factor, jitter, attempt):
    wait = Backoff(initial, maximum, factor, jitter).delay(attempt)
    assert initial * (1 - jitter) <= wait * (1 + 1e-9)
    assert wait <= maximum


def test_jitter_spreads():
    assert len({Backoff(1, 60, 2, 0.1).delay(3) for _ in range(20)}) > 1


def test_a_seeded_generator_gives_the_same_waits():
    one, other = random.Random(7), random.Random(7)
    waits = [Backoff().delay(attempt, one) for attempt in range(1, 9)]
    assert waits == [Backoff().delay(attempt, other) for attempt in range(1, 9)]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"initial": 0}, "initial"),
        ({"initial": -1}, "initial"),
        ({"initial": "1"}, "initial"),
        ({"initial": 5, "maximum": 4}, "maximum"),
        ({"factor": 0.5}, "factor"),
        ({"factor": float("nan")}, "factor"),
        ({"factor": True}, "factor"),
        ({"jitter": 1.1}, "jitter"),
        ({"jitter": None}, "jitter"),
    ],
)
def test_a_wrong_number_is_named(options, named):
    with pytest.raises(ConfigError, match=named):
        Backoff(**options)


def test_without_a_word_every_exception_leaves_the_entry():
    assert ErrorPolicy().outcome(ValueError()) is leave()
    assert ErrorPolicy(None).outcome(ValueError()) is leave()
    assert ErrorPolicy(drop()).outcome(ValueError()) is drop()


def test_the_nearest_ancestor_decides():
    policy = ErrorPolicy({OSError: retry(), ConnectionError: drop(), Exception: ack()})
    assert policy.outcome(ConnectionResetError()) is drop()
    assert policy.outcome(PermissionError()) is retry()
    assert policy.outcome(ValueError()) is ack()
    assert policy.outcome(ConnectionResetError()) is drop()  # from the cache


def test_what_is_not_mapped_is_left():
    assert ErrorPolicy({KeyError: drop()}).outcome(ValueError()) is leave()


def group(*errors):
    return ExceptionGroup("several", list(errors))


def test_a_group_counts_as_what_its_leaves_agree_on():
    policy = ErrorPolicy({OSError: retry(), ValueError: drop()})
    assert policy.outcome(group(ConnectionError(), group(TimeoutError(), OSError()))) is retry()


def test_of_a_group_whose_leaves_differ_the_safest_outcome_wins():
    policy = ErrorPolicy({OSError: retry(), ValueError: drop(), KeyError: ack()})
    assert policy.outcome(group(ValueError(), OSError())) is retry()
    assert policy.outcome(group(KeyError(), group(ValueError()))) is drop()
    assert policy.outcome(group(KeyError(), ValueError(), LookupError())) is leave(), "one leaf has no rule"
    assert ErrorPolicy({OSError: retry(), Exception: drop()}).outcome(group(ValueError(), KeyError())) is drop()


def test_a_settle_in_a_group_has_its_own_outcome():
    policy = ErrorPolicy({ValueError: drop(), KeyError: leave()})
    assert policy.outcome(BaseExceptionGroup("several", [Settle(retry()), ValueError()])) is retry()
    assert policy.outcome(BaseExceptionGroup("several", [Settle(retry()), KeyError()])) is leave()
    assert policy.outcome(BaseExceptionGroup("several", [GeneratorExit(), ValueError()])) is leave()


def test_the_safest_of_several_retries_waits_longest():
    assert safest([retry(after=1), retry(after=5), retry()]) == retry(after=5)
    assert safest([ack(), drop(), dead_letter("x"), retry(after=1)]) == retry(after=1)
    assert safest([drop(), dead_letter("first"), dead_letter("second")]) == dead_letter("first")


def test_a_group_may_be_mapped_by_name():
    policy = ErrorPolicy({ExceptionGroup: retry(), ValueError: drop()})
    assert policy.outcome(group(KeyError(), ValueError())) is retry()
    assert policy.outcome(group(KeyError())) is retry()
    assert policy.outcome(group(ValueError())) is drop()


@pytest.mark.parametrize(
    "on_error",
    [
        "retry",
        retry,
        [ValueError],
        {"ValueError": retry()},
        {ValueError(): retry()},
        {ValueError: retry},
        {ValueError: None},
        {(ValueError, KeyError): retry()},
    ],
)
def test_something_else_than_classes_and_outcomes_is_refused(on_error):
    with pytest.raises(ConfigError, match="on_error"):
        ErrorPolicy(on_error)


@pytest.mark.parametrize("cls", [BaseException, KeyboardInterrupt, SystemExit, Settle])
def test_what_ends_the_process_can_not_be_mapped(cls):
    with pytest.raises(ConfigError, match=cls.__name__):
        ErrorPolicy({cls: retry()})
