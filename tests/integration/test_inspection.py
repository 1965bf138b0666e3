"""`ruststream groups`, `pending` and `consumers` on every server, and what they say where there is nothing."""

import json

import pytest

from ruststream.cli import main


@pytest.fixture
def look(server, capsys):
    """Run a verb; return its exit code, what it printed, and what it complained of."""

    def run(*words, url=None):
        code = main([*words, "--url", url or server.url])
        printed, complained = capsys.readouterr()
        return code, printed, complained

    return run


@pytest.fixture
def filled(stream):
    """Five entries: g has been given four by two consumers and acknowledged one; late has read nothing."""
    ids = [stream.add(str(number)) for number in range(5)]
    stream.create_group()
    stream.create_group("late")
    stream.deliver("clerk", 3)
    stream.deliver("other", 1)
    stream.client.xack("s", "g", ids[0])
    return ids


def test_groups_tell_where_they_stand(any_server, look, filled):
    code, printed, complained = look("groups", "s", "--json")
    assert (code, complained) == (0, "")
    assert json.loads(printed) == [
        {"group": "g", "consumers": 2, "pending": 3, "lag": 1, "last_delivered_id": filled[3]},
        {"group": "late", "consumers": 0, "pending": 0, "lag": 5, "last_delivered_id": "0-0"},
    ]
    heads, first, second = look("groups", "s")[1].splitlines()
    assert heads.split() == ["GROUP", "CONSUMERS", "PENDING", "LAG", "LAST", "DELIVERED", "ID"]
    assert first.split() == ["g", "2", "3", "1", filled[3]]
    assert second.split() == ["late", "0", "0", "5", "0-0"]


def test_pending_entries_tell_whose_they_are(any_server, look, filled):
    stream_rows = json.loads(look("pending", "s", "--json")[1])
    assert [(row["group"], row["id"], row["consumer"], row["deliveries"]) for row in stream_rows] == [
        ("g", filled[1], "clerk", 1),
        ("g", filled[2], "clerk", 1),
        ("g", filled[3], "other", 1),
    ]
    assert all(0 <= row["idle"] < 3600 for row in stream_rows)
    code, printed, _ = look("pending", "s", "--group", "g", "--count", "1")
    assert code == 0
    assert filled[1] in printed
    assert filled[2] not in printed
    assert look("pending", "s", "--group", "late") == (0, "stream s has no pending entries\n", "")


def test_consumers_tell_when_they_were_heard_of(any_server, look, filled):
    rows = json.loads(look("consumers", "s", "--group", "g", "--json")[1])
    assert [(row["consumer"], row["pending"]) for row in rows] == [("clerk", 2), ("other", 1)]
    assert all(0 <= row["idle"] < 3600 for row in rows)
    assert look("consumers", "s")[1].splitlines()[1].split()[:3] == ["g", "clerk", "2"]


def test_looking_changes_nothing(any_server, look, filled, stream):
    def state():
        return stream.client.xinfo_groups("s"), [row["times_delivered"] for row in stream.pending()]

    before = state()
    for verb in ("groups", "pending", "consumers"):
        assert look(verb, "s")[0] == 0
    assert state() == before


def test_what_is_not_there_fails_with_one_line(any_server, look, filled):
    for words, text in (
        (["groups", "none"], "there is no stream 'none'"),
        (["pending", "none"], "there is no stream 'none'"),
        (["pending", "s", "--group", "x"], "has no group 'x'; there are: g, late"),
        (["consumers", "s", "--group", "x"], "has no group 'x'; there are: g, late"),
    ):
        code, printed, complained = look(*words)
        assert (code, printed) == (1, "")
        assert text in complained
        assert complained.count("\n") == 1


def test_a_server_that_is_not_there_fails(look):
    code, printed, complained = look("groups", "s", url="redis://127.0.0.1:1")
    assert (code, printed) == (1, "")
    assert "cannot connect" in complained


def test_another_type_of_key_fails(any_server, look, stream):
    stream.client.set("text", "x")
    code, _, complained = look("groups", "text")
    assert code == 1
    assert "WRONGTYPE" in complained
