"""Headers as handlers see them, and the markers of parameters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream.context import (
    DELIVERY_COUNT_HEADER,
    IDLE_MS_HEADER,
    PARTITION_KEY_HEADER,
    Header,
    Headers,
    HeadersView,
    header_name,
)
from ruststream.errors import ConfigError


def test_headers_are_the_fields_with_the_prefix():
    view = HeadersView([(b"_payload", b"x"), (b"h:Tenant", b"a"), (b"h:trace-id", b"t"), (b"plain", b"y")])
    assert dict(view) == {"tenant": "a", "trace-id": "t"}
    assert len(view) == 2
    assert repr(view) == "HeadersView({'tenant': 'a', 'trace-id': 't'})"


def test_names_match_in_any_case():
    view = HeadersView([(b"h:tenant", b"a")])
    assert view["TENANT"] == view.get("Tenant") == "a"
    assert "TeNaNt" in view
    assert "other" not in view
    assert 1 not in view
    with pytest.raises(KeyError):
        view["other"]


def test_the_last_of_a_repeated_header_counts():
    assert HeadersView([(b"h:a", b"1"), (b"h:A", b"2")])["a"] == "2"


def test_bytes_that_are_not_text_are_kept():
    view = HeadersView([(b"h:blob", b"a\xff")])
    assert view["blob"].encode("utf-8", "surrogateescape") == b"a\xff"
    assert view.raw["blob"] == b"a\xff"


def test_raw_can_not_be_changed():
    with pytest.raises(TypeError):
        HeadersView([(b"h:a", b"1")]).raw["a"] = b"2"


@given(st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8))))
def test_any_fields_give_headers_that_encode_back(fields):
    view = HeadersView([(b"h:" + name, value) for name, value in fields])
    for name, text in view.items():
        assert text.encode("utf-8", "surrogateescape") == view.raw[name]


MEASURED = [(b"h:redis-delivery-count", b"99"), (b"h:Redis-Idle-Ms", b"99"), (b"h:redis-partition-key", b"acc")]


@pytest.mark.parametrize(("mode", "count"), [("claiming", "2"), ("recovering", "2"), ("reclaim", "3")])
def test_count_and_idle_are_measured(envelope, mode, count):
    delivery = envelope(b"x", delivery_count=3, idle=1.2345, mode=mode)
    delivery.fields += MEASURED
    headers = delivery.headers
    assert headers[DELIVERY_COUNT_HEADER] == count
    assert headers[IDLE_MS_HEADER] == "1234"
    assert headers.raw[IDLE_MS_HEADER] == b"1234"
    assert headers[PARTITION_KEY_HEADER] == "acc"


def test_where_they_are_not_measured_the_wire_is_not_believed(envelope):
    delivery = envelope(b"x", mode="new")
    delivery.fields += MEASURED
    assert dict(delivery.headers) == {PARTITION_KEY_HEADER: "acc"}


def test_markers_show_themselves():
    assert repr(Header("X-Tenant")) == "Header('x-tenant')"
    assert repr(Headers()) == "Headers()"


@pytest.mark.parametrize("name", ["", "ä", "a b", "a\n", None, b"tenant", 1])
def test_a_header_name_is_printable_ascii(name):
    with pytest.raises(ConfigError, match="Header"):
        Header(name)
    with pytest.raises(ConfigError, match="headers="):
        header_name(name, "headers=")
