"""Arguments of `publish`, and what becomes of them on the wire."""

import msgspec
import pytest

from ruststream.codec import codec_of
from ruststream.context import HeadersView
from ruststream.errors import ConfigError, PublishError
from ruststream.message import outgoing
from ruststream.wire import outgoing_message, outgoing_messages, target, trimming, wire_headers

JSON = codec_of("json")


def test_headers_are_lower_case_bytes():
    assert wire_headers({"Tenant": "ä", "x-blob": b"\xff"}) == {"tenant": "ä".encode(), "x-blob": b"\xff"}
    assert wire_headers(None) == {}


def test_headers_of_a_delivery_go_on_without_what_was_measured():
    view = HeadersView([(b"h:a", b"\xff"), (b"h:redis-partition-key", b"k")], {"redis-delivery-count": 3})
    assert wire_headers(view) == {"a": b"\xff", "redis-partition-key": b"k"}
    assert view | {"B": "c"} == {"a": b"\xff", "redis-partition-key": b"k", "b": b"c"}
    assert wire_headers(view | {"A": "d"})["a"] == b"d"


@pytest.mark.parametrize(
    "name",
    ["Redis-Delivery-Count", "redis-idle-ms", "redis-anything", "x-dead-letter-reason", "X-RustStream-retry-count"],
)
def test_reserved_names_are_refused_with_the_reason(name):
    """B112: nobody can bring a header that says something of one entry alone; a delivery's are left out."""
    with pytest.raises(ConfigError, match="is reserved"):
        wire_headers({name: "3"})
    with pytest.raises(ConfigError, match="is reserved"):
        HeadersView([]) | {name: "3"}
    assert wire_headers(HeadersView([(b"h:" + name.encode(), b"3")])) == {}


def test_names_that_differ_in_case_alone_are_refused():
    """They are one header on the wire, and nobody can tell which value was meant."""
    for headers in ({"X-Tenant": "a", "x-tenant": "b"}, {"X-Tenant": "a", "x": "b", "x-TENANT": "a"}):
        with pytest.raises(ConfigError, match=r"'X-Tenant' and '(x-tenant|x-TENANT)' are one and the same"):
            wire_headers(headers)
        with pytest.raises(ConfigError, match="one and the same"):
            HeadersView([]) | headers


@pytest.mark.parametrize("content_type", [b"application/json", 1, ""])
def test_a_content_type_is_text(content_type):
    for publish in (
        lambda: outgoing_message({}, "s", JSON, content_type=content_type),
        lambda: outgoing_messages([{}], "s", JSON, content_type=content_type),
    ):
        with pytest.raises(ConfigError, match="content_type must"):
            publish()


def test_the_content_type_is_the_callers_or_the_codecs():
    """Argument before header before codec; what a delivery was encoded in is passed on with its bytes alone."""

    def content_type(message, **options):
        return dict(outgoing_message(message, "s", JSON, **options).fields)[b"content-type"]

    view = HeadersView([(b"h:content-type", b"application/msgpack")])
    assert content_type({}) == b"application/json"
    assert content_type({}, headers={"Content-Type": "application/x-own"}) == b"application/x-own"
    assert content_type({}, headers={"content-type": "a/b"}, content_type="c/d") == b"c/d"
    assert content_type({}, headers=view) == b"application/json"
    assert content_type(b"\x80", headers=view) == b"application/msgpack"
    assert content_type(b"\x80", headers=HeadersView([])) == b"application/octet-stream"


def test_a_key_that_is_given_wins_over_one_among_the_headers():
    fields = outgoing_message({}, "s", JSON, key="k", headers={"redis-partition-key": "other"}).fields
    assert [value for name, value in fields if name == b"redis-partition-key"] == [b"k"]
    many = outgoing_messages([1, 2], "s", JSON, key=str, headers={"redis-partition-key": "other"})
    assert (many.keys, dict(many.fields).get(b"redis-partition-key")) == ([b"1", b"2"], None)
    assert outgoing_message({}, "s", JSON, headers={"redis-partition-key": "k"}).fields[1][1] == b"k"


def test_a_message_that_can_not_be_encoded_is_named():
    with pytest.raises(PublishError, match=r"type object can't be encoded as application/json for stream 's'.*codec="):
        outgoing_message(object(), "s", JSON)
    with pytest.raises(PublishError, match="message 1 of 3, of type object"):
        outgoing_messages([1, object(), 2], "s", JSON)


def test_many_messages_of_classes_that_name_their_stream():
    @outgoing("a")
    class A(msgspec.Struct): ...

    @outgoing("b")
    class B(msgspec.Struct): ...

    assert outgoing_messages([A(), A()], None, JSON).stream == "a"
    assert outgoing_messages([A(), B()], "c", JSON).stream == "c"
    with pytest.raises(ConfigError, match=r"different streams \(a, b\)"):
        outgoing_messages([A(), B()], None, JSON)


def test_text_that_no_byte_can_carry_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"header 'a' must be text that UTF-8 can carry, not '\\ud800'"):
        wire_headers({"A": "\ud800"})
    with pytest.raises(ConfigError, match="key must be text that UTF-8 can carry"):
        outgoing_message({}, "s", JSON, key="\ud800")
    assert wire_headers({"a": "\udcff"}) == {"a": b"\xff"}, "a byte that was read as text"


def test_the_message_whose_key_can_not_be_computed_is_named():
    for key, error in (
        (lambda number: 1 // number, ZeroDivisionError),
        (lambda number: [0.5, "a"][number], ConfigError),
    ):
        with pytest.raises(error) as raised:
            outgoing_messages([1, 0, 1], "s", JSON, key=key)
        assert raised.value.__notes__ == ["publish_many: key was called for message 1 of 3; nothing was sent"]


def test_far_too_many_headers_are_refused():
    with pytest.raises(ConfigError, match="at most 3000 headers"):
        wire_headers({f"h{number}": "" for number in range(3001)})


@pytest.mark.parametrize(
    "headers", [[("a", "b")], "a", {"": "b"}, {"ä": "b"}, {"a b": "c"}, {b"a": b"b"}, {"a": 1}, {"a": None}]
)
def test_something_else_is_no_header(headers):
    with pytest.raises(ConfigError, match="header"):
        wire_headers(headers)


def test_a_target_is_needed():
    assert target("payments", {}) == "payments"
    for wrong in (None, "", b"payments"):
        with pytest.raises(ConfigError, match="stream"):
            target(wrong, {})


def test_trimming():
    assert trimming(None, None, True) == (None, None, True)
    assert trimming(0, None, False) == (0, None, False)
    assert trimming(None, "5", True).minid == "5-0"


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
