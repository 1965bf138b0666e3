"""Values of options."""

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream.errors import ConfigError
from ruststream.option import LONGEST, name_text, refuse_unknown, seconds, whole, yes_or_no


@pytest.mark.parametrize(
    ("value", "expected"), [(0, 0.0), (2, 2.0), (0.25, 0.25), (timedelta(minutes=1), 60.0), (LONGEST, LONGEST)]
)
def test_durations_are_numbers_or_timedeltas(value, expected):
    result = seconds(value, "block")
    assert result == expected
    assert type(result) is float


@pytest.mark.parametrize(
    "value",
    [-1, -0.001, math.nan, math.inf, -math.inf, LONGEST + 1, 10**400, timedelta(days=4000), timedelta(seconds=-1), True,
     "30", None, b"1", [1]],
)  # fmt: skip
def test_anything_else_is_refused_by_name(value):
    with pytest.raises(ConfigError, match="min_idle"):
        seconds(value, "min_idle")


@pytest.mark.parametrize("value", [0, 0.0009, timedelta()])
def test_where_zero_means_nothing_it_is_refused(value):
    assert seconds(value, "min_idle") >= 0
    with pytest.raises(ConfigError, match="millisecond"):
        seconds(value, "min_idle", zero=False)


@given(st.one_of(st.floats(), st.integers(), st.timedeltas(), st.none(), st.text(), st.booleans()))
def test_a_duration_is_within_bounds_or_refused(value):
    try:
        result = seconds(value, "x")
    except ConfigError:
        return
    assert 0 <= result <= LONGEST


@pytest.mark.parametrize("value", [10**400, 10**5000, "x" * 1000], ids=["400 digits", "5000 digits", "text"])
def test_a_value_that_is_refused_is_shown_in_short(value):
    """Python refuses to write a number of 5,000 digits at all."""
    for refused in (lambda: seconds(value, "retry(after=)"), lambda: whole(value, "workers", 1, 10)):
        with pytest.raises(ConfigError) as error:
            refused()
        assert len(str(error.value)) < 200


@pytest.mark.parametrize("value", ["", None, b"payments", 1, "\udcff"])
def test_names_are_text_that_is_not_empty(value):
    with pytest.raises(ConfigError, match="group"):
        name_text(value, "group")
    assert name_text("zahlungen-ä {1}", "group") == "zahlungen-ä {1}"


@pytest.mark.parametrize("value", [0, 11, 1.0, True, "3", None])
def test_whole_numbers_have_bounds(value):
    with pytest.raises(ConfigError, match="workers must be a whole number from 1 to 10"):
        whole(value, "workers", 1, 10)
    assert whole(10, "workers", 1, 10) == 10


@pytest.mark.parametrize("value", [0, 1, "yes", None])
def test_yes_or_no_is_a_bool(value):
    with pytest.raises(ConfigError, match="create_group must be True or False"):
        yes_or_no(value, "create_group")


def test_an_unknown_option_is_named_with_the_one_that_was_meant():
    with pytest.raises(ConfigError, match="a subscriber has no option wokers; did you mean workers"):
        refuse_unknown(["wokers"], {"workers", "codec"}, "a subscriber")
    with pytest.raises(ConfigError, match="there are codec, workers"):
        refuse_unknown(["zzz"], {"workers", "codec"}, "a subscriber")
    refuse_unknown(["codec"], {"workers", "codec"}, "a subscriber")
