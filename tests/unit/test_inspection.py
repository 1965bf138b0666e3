"""The verbs that look at a stream: how they are written, and how they print."""

import pytest

from ruststream.cli import main
from ruststream.inspection import table

VERBS = ["groups", "pending", "consumers"]


@pytest.mark.parametrize("verb", VERBS)
def test_a_server_must_be_named(verb, monkeypatch, capsys):
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert main([verb, "s"]) == 2
    assert "--url" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_a_bad_url_is_a_wrong_command_line(verb, capsys):
    assert main([verb, "s", "--url", "http://nowhere"]) == 2
    assert capsys.readouterr().err.startswith("ruststream: ")


@pytest.mark.parametrize("verb", VERBS)
def test_the_environment_names_the_server(verb, monkeypatch, capsys):
    monkeypatch.setenv("REDIS_URL", "memory://nobody-published-here")
    assert main([verb, "s"]) == 1
    assert "there is no stream 's' on memory://nobody-published-here" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["groups"], ["pending", "s", "--count", "0"], ["pending", "s", "--count", "many"]])
def test_a_wrong_command_line_ends_with_2(words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


def test_a_table_lines_up_numbers_and_hides_nothing():
    rows = [
        {"group": "g", "pending": 7, "idle": 0.25, "last_id": "1-0"},
        {"group": "a longer name", "pending": 12_345, "idle": None, "last_id": "10-0"},
    ]
    assert table(rows).splitlines() == [
        "GROUP          PENDING   IDLE  LAST ID",
        "g                    7  0.2 s  1-0",
        "a longer name    12345      -  10-0",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (119.0, "119.0 s"), (600.0, "10.0 min"), (86_400.0, "24.0 h"), (1e6, "11.6 d")],
)
def test_times_are_told_in_the_unit_that_fits(seconds, text):
    assert text in table([{"idle": seconds}])


def test_a_name_does_not_command_the_terminal():
    assert "\x1b" not in table([{"consumer": "a\x1b[2Jb"}])
