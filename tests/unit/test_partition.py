"""A key's partition is the same in every release, on every machine, and in whatever language it is computed."""

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from ruststream import _core

# The same numbers stand in rust/core/src/partition.rs. They are frozen: a change reorders keys across a rolling deploy.
GOLDEN = {b"": 194, b"a": 543, b"acct-1": 373, b"acct-2": 15, b"acct-42": 526, b"hot": 888}


def expected(key: bytes) -> int:
    return xxhash.xxh3_64_intdigest(key) % 1024


@pytest.mark.parametrize(("key", "partition"), GOLDEN.items())
def test_a_key_keeps_its_partition(key, partition):
    """The frozen numbers are what the core computes, and what the xxhash package does."""
    assert _core.partition(key) == partition
    assert expected(key) == partition


def test_there_are_1024_partitions():
    """The number of partitions is a part of what is frozen."""
    assert _core.PARTITIONS == 1024


@given(st.binary(max_size=600))
def test_any_key_falls_where_xxhash_says(key):
    """Every length takes the same way as in the reference: XXH3 has others for short, middle and long input."""
    assert _core.partition(key) == expected(key)


@pytest.mark.parametrize("length", [1, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 1024, 1025, 100_000])
def test_keys_at_the_edges_of_the_hash_fall_where_xxhash_says(length):
    """Where XXH3 changes its way of reading, the partition stays the reference's."""
    key = bytes(number * 31 % 251 for number in range(length))
    assert _core.partition(key) == expected(key)


def test_keys_spread_over_the_partitions():
    """Numbered accounts do not crowd: no partition has far more than its share."""
    counts = [0] * _core.PARTITIONS
    for number in range(50 * _core.PARTITIONS):
        counts[_core.partition(b"acct-%d" % number)] += 1
    assert min(counts) > 10
    assert max(counts) < 110


@pytest.mark.parametrize("key", ["acct-1", None, 7])
def test_a_key_that_is_not_bytes_is_refused(key):
    """Text has no bytes of its own: the caller says which encoding."""
    with pytest.raises(TypeError):
        _core.partition(key)
