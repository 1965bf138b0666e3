"""Arguments of `publish`."""

import pytest

from ruststream.context import HeadersView
from ruststream.errors import ConfigError
from ruststream.redis.outgoing import target, trimming, wire_headers


def test_headers_are_lower_case_bytes():
    assert wire_headers({"Tenant": "ä", "x-blob": b"\xff"}) == {"tenant": "ä".encode(), "x-blob": b"\xff"}
    assert wire_headers(None) == {}


def test_headers_of_a_delivery_go_on_without_what_was_measured():
    view = HeadersView([(b"h:a", b"\xff"), (b"h:redis-partition-key", b"k")], {"redis-delivery-count": 3})
    assert wire_headers(view) == {"a": b"\xff", "redis-partition-key": b"k"}
    assert wire_headers(dict(view)) == {"a": b"\xff", "redis-partition-key": b"k"}
    assert wire_headers({"Redis-Delivery-Count": "3", "redis-idle-ms": "1"}) == {}


@pytest.mark.parametrize(
    "headers", [[("a", "b")], "a", {"": "b"}, {"ä": "b"}, {"a b": "c"}, {b"a": b"b"}, {"a": 1}, {"a": None}]
)
def test_something_else_is_no_header(headers):
    with pytest.raises(ConfigError, match="header"):
        wire_headers(headers)


def test_a_target_is_needed():
    assert target("payments") == "payments"
    for wrong in (None, "", b"payments"):
        with pytest.raises(ConfigError, match="stream"):
            target(wrong)


def test_trimming():
    assert trimming(None, None, True) == {"maxlen": None, "minid": None, "approximate": True}
    assert trimming(0, None, False) == {"maxlen": 0, "minid": None, "approximate": False}
    assert trimming(None, "5", True)["minid"] == "5-0"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((-1, None, True), "maxlen"),
        (("5", None, True), "maxlen"),
        ((1.0, None, True), "maxlen"),
        ((None, "x", True), "minid"),
        ((None, 5, True), "minid"),
        ((1, "5", True), "both"),
        ((None, None, "~"), "approximate"),
    ],
)
def test_wrong_trimming_is_refused(arguments, named):
    with pytest.raises(ConfigError, match=named):
        trimming(*arguments)
