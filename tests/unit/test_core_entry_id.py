"""Entry ids: reading, writing, order, neighbours, hashing, pickling."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream import EntryId

MAX = 2**64 - 1
numbers = st.integers(min_value=0, max_value=MAX)
ids = st.builds(EntryId, numbers, numbers)


def test_an_id_has_the_form_that_redis_writes():
    """`str` is what goes to the server, `repr` is what makes the id again."""
    entry_id = EntryId(1526919030474, 55)
    assert (entry_id.ms, entry_id.seq) == (1526919030474, 55)
    assert str(entry_id) == f"{entry_id}" == "1526919030474-55"
    assert repr(entry_id) == "EntryId(1526919030474, 55)"
    assert EntryId(7) == EntryId(7, 0) == EntryId(ms=7, seq=0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1526919030474-55", EntryId(1526919030474, 55)),
        (b"1526919030474-55", EntryId(1526919030474, 55)),
        ("7", EntryId(7, 0)),
        ("0-0", EntryId(0, 0)),
        ("007-01", EntryId(7, 1)),
        (f"{MAX}-{MAX}", EntryId(MAX, MAX)),
    ],
)
def test_text_and_bytes_are_read(text, expected):
    """What a server or a user writes is read; a bare number is the first id of its millisecond."""
    assert EntryId.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "1-",
        "-1",
        "1-2-3",
        "1.5",
        "a",
        " 1-1",
        "1-1 ",
        "1_0-1",
        "+1-1",
        "$",
        ">",
        "*",
        "1-*",
        f"{MAX + 1}-0",
        "\u0663-\u0661",
    ],
)
def test_what_is_no_id_is_refused_and_named(text):
    """The message shows what was given and what is wanted."""
    with pytest.raises(ValueError, match="is not an entry id; write <milliseconds>-<sequence>") as caught:
        EntryId.parse(text)
    if text.isascii():
        assert f'"{text}"' in str(caught.value)
    with pytest.raises(ValueError, match="is not an entry id"):
        EntryId.parse(text.encode())


def test_a_long_mistake_does_not_flood_the_log():
    """A payload passed by mistake is cut in the message."""
    with pytest.raises(ValueError, match="is not an entry id") as caught:
        EntryId.parse("x" * 100_000)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [None, 7, 1.5, object()])
def test_what_is_neither_text_nor_bytes_is_refused(value):
    """A number is no text: `EntryId(7)` is meant."""
    with pytest.raises(TypeError):
        EntryId.parse(value)


@pytest.mark.parametrize(("ms", "seq"), [(-1, 0), (0, -1), (MAX + 1, 0), (0, MAX + 1)])
def test_numbers_past_64_bits_are_refused(ms, seq):
    """Redis has no such ids; nothing wraps round."""
    with pytest.raises(OverflowError):
        EntryId(ms, seq)


@given(ids)
def test_text_and_back_gives_the_same_id(entry_id):
    """Nothing is lost on the way to the server and back."""
    assert EntryId.parse(str(entry_id)) == entry_id
    assert EntryId.parse(str(entry_id).encode()) == entry_id
    assert eval(repr(entry_id), {"EntryId": EntryId}) == entry_id


@given(ids, ids)
def test_ids_order_as_their_numbers_do(left, right):
    """Milliseconds first, then the sequence, as numbers and not as text."""
    one, other = (left.ms, left.seq), (right.ms, right.seq)
    assert (left < right, left <= right, left == right) == (one < other, one <= other, one == other)
    assert (left > right, left >= right, left != right) == (one > other, one >= other, one != other)


@given(ids, ids)
def test_equal_ids_hash_alike(left, right):
    """Ids are keys of dicts and sets, as payload of an idempotency table is."""
    again = EntryId(left.ms, left.seq)
    assert hash(left) == hash(again)
    assert len({left, right, again}) == (1 if left == right else 2)


def test_an_id_equals_nothing_else_and_orders_with_nothing_else():
    """Text and tuples are not ids; comparing them by order is an error, not a guess."""
    entry_id = EntryId(1, 2)
    assert entry_id != "1-2"
    assert entry_id != (1, 2)
    with pytest.raises(TypeError):
        assert entry_id < "1-3"


@given(ids)
def test_neighbours_have_nothing_between_them(entry_id):
    """`next` and `previous` undo each other and stop at the ends of the range."""
    if entry_id != EntryId(MAX, MAX):
        assert entry_id.next() > entry_id
        assert entry_id.next().previous() == entry_id
    if entry_id != EntryId(0, 0):
        assert entry_id.previous() < entry_id
        assert entry_id.previous().next() == entry_id


def test_neighbours_carry_over_the_millisecond_and_stop_at_the_ends():
    """A read from `previous()` on gives the id itself first, also where the sequence is 0."""
    assert EntryId(5, 0).previous() == EntryId(4, MAX)
    assert EntryId(4, MAX).next() == EntryId(5, 0)
    assert EntryId(0, 0).previous() == EntryId(0, 0)
    assert EntryId(MAX, MAX).next() == EntryId(MAX, MAX)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_id_survives_pickling_and_copying(protocol):
    """Ids cross process boundaries and stand in dataclasses that are copied."""
    entry_id = EntryId(1526919030474, MAX)
    assert pickle.loads(pickle.dumps(entry_id, protocol)) == entry_id
    assert copy.deepcopy([entry_id]) == [copy.copy(entry_id)] == [entry_id]


@pytest.mark.parametrize("name", ["ms", "seq", "other"])
def test_an_id_does_not_change(name):
    """Frozen: whoever holds an id holds the same one for good."""
    with pytest.raises(AttributeError):
        setattr(EntryId(1, 2), name, 3)
