"""Entries of foreign producers, field by field."""

import datetime as dt
import enum
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream.errors import ConfigError
from ruststream.fields import FieldReader
from unit.messages import Payment, PaymentData, PaymentDict


def test_fields_become_a_struct():
    fields = [
        (b"id", b"7"),
        (b"account", "ä".encode()),
        (b"paid", b"true"),
        (b"amount", b"2.5"),
        (b"scan", b"\xff\x00"),
    ]
    assert FieldReader(Payment).read(fields) == Payment(7, "ä", paid=True, amount=2.5, scan=b"\xff\x00")


def test_bytes_fields_stay_bytes_even_where_they_are_text():
    assert FieldReader(Payment).read([(b"id", b"7"), (b"account", b"a"), (b"scan", b"abcd")]).scan == b"abcd"
    assert FieldReader(PaymentData).read([(b"id", b"7"), (b"scan", b"abcd")]).scan == b"abcd"


@pytest.mark.parametrize(
    ("payload_type", "expected"),
    [
        (Any, {"id": "7", "x": "y"}),
        (dict, {"id": "7", "x": "y"}),
        (dict[str, str], {"id": "7", "x": "y"}),
        (dict[bytes, bytes], {b"id": b"7", b"x": b"y"}),
        (dict[str, bytes], {"id": b"7", "x": b"y"}),
        (PaymentData, PaymentData(7)),
        (PaymentDict, {"id": 7}),
        (Payment | None, None),
    ],
)
def test_fields_become_other_types(payload_type, expected):
    fields = [(b"id", b"7"), (b"x", b"y")]
    if payload_type == Payment | None:
        fields += [(b"account", b"a")]
        expected = Payment(7, "a")
    assert FieldReader(payload_type).read(fields) == expected


def test_the_last_of_a_repeated_field_counts_and_headers_are_left_out():
    fields = [(b"id", b"1"), (b"h:trace", b"t"), (b"id", b"2")]
    assert FieldReader(dict[str, int]).read(fields) == {"id": 2}


def test_a_name_that_is_not_text_is_ignored_by_a_struct_and_kept_by_a_dict():
    fields = [(b"id", b"1"), (b"\xff", b"x")]
    assert FieldReader(PaymentData).read(fields) == PaymentData(1)
    assert FieldReader(dict).read(fields) == {"id": "1", b"\xff": "x"}
    with pytest.raises(msgspec.ValidationError):
        FieldReader(dict[str, str]).read(fields)


@pytest.mark.parametrize("fields", [[], [(b"id", b"x")], [(b"id", b"\xff")]])
def test_fields_that_do_not_fit_are_an_error(fields):
    with pytest.raises(msgspec.ValidationError):
        FieldReader(PaymentData).read(fields)


class Pair(NamedTuple):
    id: int


@pytest.mark.parametrize("payload_type", [int, list[int], str, Pair, complex, str | bytes])
def test_a_type_without_fields_is_refused(payload_type):
    with pytest.raises(ConfigError):
        FieldReader(payload_type)


@given(st.lists(st.tuples(st.binary(max_size=6), st.binary(max_size=12)), max_size=8))
def test_any_fields_can_be_read_as_a_dict(fields):
    found = FieldReader(dict).read(fields)
    assert all(isinstance(key, (str, bytes)) and isinstance(value, (str, bytes)) for key, value in found.items())
    names = {name for name, _ in fields if not name.startswith(b"h:")}
    assert len(found) == len(names)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


def one(kind, *values):
    """Read a field of this type, given so often."""
    struct = msgspec.defstruct("One", [("f", kind)])
    return FieldReader(struct).read([(b"f", value) for value in values]).f


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (int, b"-7", -7),
        (int, b"100000000000000000000", 10**20),
        (int, b"1e3", 1000),
        (float, b"1.5", 1.5),
        (float, b"1e+22", 1e22),
        (float, b"inf", float("inf")),
        (bool, b"true", True),
        (bool, b"False", False),
        (bool, b"TRUE", True),
        (bool, b"1", True),
        (bool, b"0", False),
        (str, b"", ""),
        (str, "\u00e9".encode(), "\u00e9"),
        (str | None, b"", ""),
        (bytes, b"", b""),
        (bytes | None, b"", b""),
        (bytes, b"\x00\xff", b"\x00\xff"),
        (Colour, b"red", Colour.RED),
        (Level, b"3", Level.HIGH),
        (Literal[1, 2], b"2", 2),
        (UUID, b"12345678-1234-5678-1234-567812345678", UUID(int=0x12345678123456781234567812345678)),
        (
            dt.datetime,
            b"2026-01-02T03:04:05.123456789Z",
            dt.datetime(2026, 1, 2, 3, 4, 5, 123457, tzinfo=dt.UTC),
        ),
        (Any, b"7", "7"),
        (Any, b"\xff", b"\xff"),
    ],
)
def test_a_value_becomes_what_its_field_says(kind, value, expected):
    found = one(kind, value)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize("kind", [int | None, float | None, bool | None, dt.datetime | None, UUID | None])
def test_an_empty_value_is_none_where_it_can_be_nothing_else(kind):
    """go-redis writes nil so."""
    assert one(kind, b"") is None


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, b""),
        (bool, b""),
        (bool, b"yes"),
        (int, b" 1"),
        (int, b"1.5"),
        (str, b"\xff"),
        (int, b"\xff"),
        (Colour, b""),
        (list[int], b""),
        (list[int], b"[1"),
        (list[int], b'["x"]'),
        (dict, b"\xff"),
    ],
)
def test_a_value_that_does_not_fit_names_its_field(kind, value):
    with pytest.raises(msgspec.ValidationError, match=r"\$\.f"):
        one(kind, value)


class Item(msgspec.Struct):
    sku: str
    count: int = 1


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (list[str], b'["a","b"]', ["a", "b"]),
        (set[int], b"[1,2,1]", {1, 2}),
        (tuple[int, str], b'[1,"x"]', (1, "x")),
        (dict[str, int], b'{"a":1}', {"a": 1}),
        (Item, b'{"sku":"x"}', Item("x")),
        (list[Item], b'[{"sku":"x","count":"3"}]', [Item("x", 3)]),
        (list[str] | None, b"", None),
        (list[str] | None, b"null", None),
        (list[str] | None, b"[]", []),
        (list[int] | str, b"[1]", "[1]"),
        (dict[str, bytes], b'{"a":"/w=="}', {"a": b"\xff"}),
    ],
)
def test_a_field_with_parts_is_json(kind, value, expected):
    assert one(kind, value) == expected


def test_a_dict_of_values_with_parts_is_json_in_each():
    assert FieldReader(dict[str, list[int]]).read([(b"a", b"[1]"), (b"b", b"[]")]) == {"a": [1], "b": []}
    assert FieldReader(dict[str, int | None]).read([(b"a", b"1"), (b"b", b"")]) == {"a": 1, "b": None}


def test_of_a_repeated_field_the_last_counts_also_in_what_it_is():
    assert one(int, b"x", b"2") == 2
    with pytest.raises(msgspec.ValidationError):
        one(int, b"2", b"x")


def test_names_on_the_wire_are_those_of_the_struct():
    class Renamed(msgspec.Struct, rename="camel"):
        amount_cents: int
        raw_body: bytes

    fields = [(b"amountCents", b"5"), (b"rawBody", b"text")]
    assert FieldReader(Renamed).read(fields) == Renamed(5, b"text")


class Opened(msgspec.Struct, tag_field="type", tag="opened"):
    owner: str


class Moved(msgspec.Struct, tag_field="type", tag="moved"):
    amount: int
    owner: bytes = b""


def test_a_field_says_which_of_several_structs_it_is():
    reader = FieldReader(Opened | Moved)
    assert reader.read([(b"type", b"moved"), (b"amount", b"5"), (b"owner", b"x")]) == Moved(5, b"x")


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    id: int


def test_unknown_fields_are_refused_where_the_struct_says_so():
    assert FieldReader(Strict).read([(b"id", b"1"), (b"h:trace", b"t")]) == Strict(1)
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        FieldReader(Strict).read([(b"id", b"1"), (b"x", b"2")])


def test_thousands_of_fields_are_read():
    """B111: fields used as a list of numbers."""
    fields = [(str(number).encode(), str(number * 2).encode()) for number in range(5000)]
    assert FieldReader(dict[int, int]).read(fields) == {number: number * 2 for number in range(5000)}


@given(st.lists(st.tuples(st.sampled_from([b"id", b"account", b"amount", b"scan", b"\xff"]), st.binary(max_size=6))))
def test_any_values_are_a_payment_or_an_error_of_msgspec(fields):
    try:
        found = FieldReader(Payment).read(fields)
    except msgspec.ValidationError:
        return
    assert isinstance(found.id, int)
    assert isinstance(found.scan, bytes)
