"""`RedisStream` and what it is made of."""

import copy
import inspect
import os
import pickle
import socket
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruststream.context import EntryId
from ruststream.errors import ConfigError
from ruststream.redis.stream import GroupPosition, RedisStream, StreamStart, entry_id_text

RECOVERING = [RedisStream.reclaim, RedisStream.claiming, RedisStream.recovering]


def test_the_constructor_reads_new_entries():
    assert RedisStream("s", group="g") == RedisStream.new("s", group="g")
    assert RedisStream("s", group="g").mode == "new"
    assert not RedisStream("s", group="g").recovers


@pytest.mark.parametrize("make", RECOVERING)
def test_the_others_are_named_like_their_mode(make):
    source = make("s", group="g", min_idle=timedelta(seconds=30))
    assert source.mode == make.__name__
    assert source.min_idle == 30.0
    assert source.recovers


def test_the_defaults():
    source = RedisStream("s", group="g")
    assert (source.count, source.block, source.fields, source.start_id) == (200, 2.0, "auto", "$")
    assert (source.create_group, source.on_missing_group, source.consumer) == (True, "recreate", None)
    assert source.min_idle is source.start_at is source.delay_key is None


@pytest.mark.parametrize("make", RECOVERING)
def test_recovering_has_no_default_for_min_idle(make):
    for without in ({}, {"min_idle": None}):
        with pytest.raises(ConfigError, match=rf"RedisStream.{make.__name__} needs min_idle, for example min_idle=30"):
            make("s", group="g", **without)
    assert inspect.signature(make).parameters["min_idle"].default is inspect.Parameter.empty, "for type checkers"


def test_options_are_named_in_calls():
    with pytest.raises(TypeError):
        RedisStream("s", "g")
    with pytest.raises(TypeError):
        RedisStream.claiming("s", 30, "g")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("stream", ""),
        ("stream", b"s"),
        ("stream", None),
        ("group", ""),
        ("group", 7),
        ("min_idle", 0),
        ("min_idle", -1),
        ("min_idle", float("nan")),
        ("min_idle", "30"),
        ("consumer", ""),
        ("consumer", b"c"),
        ("count", 0),
        ("count", -1),
        ("count", 1.5),
        ("count", True),
        ("count", 10**6),
        ("block", 0),
        ("block", -1),
        ("block", None),
        ("start_id", "yesterday"),
        ("start_id", None),
        ("start_id", 0),
        ("start_id", "1-2-3"),
        ("start_id", "+5"),
        ("start_id", "18446744073709551616"),
        ("start_at", "0"),
        ("start_at", StreamStart.NEW),
        ("fields", ""),
        ("fields", 1),
        ("create_group", 1),
        ("on_missing_group", "ignore"),
        ("delay_key", ""),
    ],
)
def test_a_wrong_value_is_refused_by_the_options_name(option, value):
    options = {"stream": "s", "group": "g", "min_idle": 30} | {option: value}
    with pytest.raises(ConfigError, match=option):
        RedisStream.claiming(options.pop("stream"), **options)


def test_an_unknown_option_is_refused():
    with pytest.raises(ConfigError, match=r"RedisStream\.claiming has no option blok; did you mean block"):
        RedisStream.claiming("s", group="g", min_idle=1, blok=3)
    with pytest.raises(ConfigError, match="no option maxlen"):
        RedisStream("s", group="g", maxlen=1)
    with pytest.raises(ConfigError, match="no option mode"):
        RedisStream("s", group="g", mode="claiming")


def test_it_is_frozen_and_behaves_as_a_value():
    source = RedisStream.claiming("s", group="g", min_idle=1, start_at=GroupPosition.end())
    with pytest.raises(AttributeError):
        source.stream = "t"
    assert pickle.loads(pickle.dumps(source)) == copy.copy(source) == source
    assert len({source, copy.deepcopy(source)}) == 1
    assert source != RedisStream.recovering("s", group="g", min_idle=1, start_at=GroupPosition.end())
    assert repr(source).startswith("RedisStream(stream='s', mode='claiming', group='g', min_idle=1.0")


@pytest.mark.parametrize(
    ("start_id", "text"),
    [(StreamStart.NEW, "$"), (StreamStart.BEGINNING, "0"), ("$", "$"), ("0", "0"), ("5", "5-0"), ("5-7", "5-7")],
)
def test_a_group_begins_where_it_is_told_to(start_id, text):
    assert RedisStream("s", group="g", start_id=start_id).start_id == text
    assert type(RedisStream("s", group="g", start_id=start_id).start_id) is str


def test_a_group_may_begin_after_an_entry():
    assert RedisStream("s", group="g", start_id=EntryId.parse("5-7")).start_id == "5-7"
    assert GroupPosition.after(EntryId.parse("5-7")) == GroupPosition.after("5-7") == GroupPosition("5-7")
    assert (GroupPosition.beginning().position, GroupPosition.end().position) == ("0", "$")
    with pytest.raises(ConfigError, match=r"GroupPosition\.after"):
        GroupPosition.after("$")


@given(st.text(max_size=50))
def test_an_entry_id_is_normalised_or_refused(text):
    try:
        found = entry_id_text(text, "minid")
    except ConfigError:
        return
    assert str(EntryId.parse(found)) == found


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_every_entry_id_is_taken(ms, seq):
    assert entry_id_text(f"{ms}-{seq}", "minid") == f"{ms}-{seq}"


def test_a_made_consumer_name_is_its_own(monkeypatch):
    monkeypatch.delenv("RUSTSTREAM_CONSUMER", raising=False)
    source = RedisStream("s", group="g")
    names = {source.consumer_name() for _ in range(10)}
    assert len(names) == 10
    assert all(name.startswith(f"ruststream-{socket.gethostname()}-{os.getpid()}-") for name in names)


def test_the_environment_names_the_host_and_no_more(monkeypatch):
    monkeypatch.setenv("RUSTSTREAM_CONSUMER", "payments-3")
    source = RedisStream("s", group="g")
    assert source.consumer_name().startswith(f"payments-3-{os.getpid()}-")
    assert source.consumer_name() != source.consumer_name()


def test_a_fixed_consumer_name_is_kept(monkeypatch):
    monkeypatch.setenv("RUSTSTREAM_CONSUMER", "payments-3")
    assert RedisStream("s", group="g", consumer="c").consumer_name() == "c"


@pytest.mark.parametrize(
    ("stream", "delay_key"),
    [
        ("payments", "{payments}:ledger:delayed"),
        ("{eu}:payments", "{eu}:payments:ledger:delayed"),
        ("pay{eu}ments", "pay{eu}ments:ledger:delayed"),
        ("pay{ments", "{pay{ments}:ledger:delayed"),
    ],
)
def test_delays_are_kept_in_the_streams_cluster_slot(stream, delay_key):
    assert RedisStream(stream, group="ledger").attached().delay_key == delay_key
    assert RedisStream(stream, group="ledger", delay_key="own").attached().delay_key == "own"


def test_attaching_fills_in_group_and_prefix():
    source = RedisStream.claiming("payments", min_idle=30, count=7).attached("ledger", "eu.")
    assert (source.stream, source.group, source.delay_key) == ("eu.payments", "ledger", "{eu.payments}:ledger:delayed")
    assert (source.mode, source.min_idle, source.count) == ("claiming", 30.0, 7)
    assert RedisStream("payments", group="own").attached("ledger").group == "own"
    with pytest.raises(ConfigError, match="default_group"):
        RedisStream("payments").attached()


def test_renewal_takes_over_the_time_of_the_recovery():
    assert RedisStream("s", group="g").renewed(30.0).min_idle == 30.0


def test_the_delay_key_is_not_the_stream():
    with pytest.raises(ConfigError, match="delay_key must be a key of its own, not the stream 's'"):
        RedisStream("s", group="g", delay_key="s")
    later = RedisStream("s", group="g", delay_key="eu.s")
    with pytest.raises(ConfigError, match=r"not the stream 'eu\.s'"):
        later.attached(prefix="eu.")
    assert later.attached().delay_key == "eu.s"
