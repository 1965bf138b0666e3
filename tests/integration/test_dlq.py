"""`ruststream dlq`: lists, shows and replays dead letters, and what replay never does."""

import asyncio
import json
import os
import subprocess
import sys

import pytest

from eventually import eventually_async
from integration.conftest import Stream
from ruststream import Context, RustStream, cli, dead_letter
from ruststream.redis import RedisBroker, RedisStream

DLQ = "s.dlq"


@pytest.fixture
def letters(stream) -> Stream:
    """The stream of dead letters."""
    return Stream(stream.client, DLQ)


def write(letters: Stream, body: bytes | str, entry: str = "7-1", **headers: str) -> str:
    """Write a letter as the core does."""
    said = {"reason": "rejected", "stream": "s", "group": "g", "consumer": "c", "entry-id": entry, "deliveries": "3"}
    said |= {"error": "ValueError: no", "time-ms": "1700000000000"} | headers
    marks = {f"h:x-dead-letter-{name}": value for name, value in said.items() if value}
    return letters.add_fields({"_payload": body, "h:trace": "t"} | marks)


@pytest.fixture
def dlq(server, capsys):
    """Run a command line within this process; return its code, stdout and stderr."""

    def run(*argv: str) -> tuple[int, str, str]:
        verb, *rest = argv
        try:
            code = cli.main(["dlq", verb, *rest, "--url", server.url])
        except SystemExit as exit_:
            code = exit_.code
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


def test_list_is_a_table_oldest_first(any_server, letters, dlq):
    """One line each: what, when, why, from where, how often; at the end how many."""
    first = write(letters, "a")
    second = write(letters, "b", reason="decode-error", error="x" * 100)
    code, out, err = dlq("list", DLQ)

    head, one, two, total = out.splitlines()
    assert (code, err) == (0, "")
    assert head.split() == ["ID", "TIME", "REASON", "STREAM", "GROUP", "ENTRY", "DELIVERIES", "ERROR"]
    assert one.split("  ")[0] == first
    for part in ("rejected", "2023-11-14 22:13:20", " s ", " g ", "7-1", " 3 ", "ValueError: no"):
        assert part in one
    assert two.startswith(second)
    assert two.endswith("x...")
    assert total == "2 dead letters in s.dlq"


def test_list_can_be_cut_and_gone_on_with(any_server, letters, dlq):
    ids = [write(letters, str(number)) for number in range(250)]
    _, out, _ = dlq("list", DLQ, "--limit", "120")
    *_, last, total = out.splitlines()
    assert last.startswith(ids[119])
    assert total == f"250 dead letters in s.dlq, 120 shown; go on with --after {ids[119]}"
    _, out, _ = dlq("list", DLQ, "--json", "--after", ids[119])
    assert [row["id"] for row in json.loads(out)] == ids[120:]


def test_list_as_json(letters, dlq):
    entry = write(letters, "a", error="")
    code, out, _ = dlq("list", DLQ, "--json")
    assert code == 0
    assert json.loads(out) == [
        {
            "id": entry,
            "reason": "rejected",
            "stream": "s",
            "group": "g",
            "consumer": "c",
            "entry_id": "7-1",
            "deliveries": 3,
            "error": None,
            "time_ms": 1_700_000_000_000,
        }
    ]


def test_a_stream_that_is_not_there_is_said_so(any_server, witness, dlq):
    """As `groups`, `pending` and `consumers` do: a name that was mistyped must not pass for one without letters."""
    for argv in (["list"], ["list", "--json"], ["replay", "--all"], ["replay", "--id", "7-1"]):
        code, out, err = dlq(argv[0], "nowhere", *argv[1:])
        assert (code, out) == (1, "")
        assert err.startswith("ruststream: there is no stream 'nowhere'")
    assert not witness.exists("nowhere")


def test_no_letters_are_no_failure(any_server, witness, letters, dlq):
    """A stream that is there and empty."""
    witness.xdel(DLQ, write(letters, "a"))
    assert dlq("list", DLQ) == (0, "0 dead letters in s.dlq\n", "")
    assert dlq("list", DLQ, "--json")[:2] == (0, "[]\n")
    code, out, err = dlq("replay", DLQ, "--all")
    assert (code, out, err) == (0, "", "replayed 0 of 0\n")


def test_a_letters_text_commands_no_terminal(letters, dlq):
    """Escape sequences of a producer are shown, not obeyed."""
    entry = write(letters, "\x1b[2J\n", error="\x1b]0;x\x07\u202e")
    for argv in (["list", DLQ], ["show", DLQ, entry]):
        _, out, _ = dlq(*argv)
        assert out.replace("\n", "").isprintable()
        assert "\\x1b" in out


def test_show_has_headers_foreign_fields_and_payload(any_server, letters, dlq):
    entry = write(letters, b"\xff\x00")
    foreign = letters.add_fields({"account": "a", b"\xfe": "b"})
    code, out, _ = dlq("show", DLQ, entry)
    lines = {line.split("  ")[0]: line.rsplit("  ", 1)[-1] for line in out.splitlines()}
    assert code == 0
    assert lines["payload"] == "\\xff\\x00"
    assert (lines["header trace"], lines["reason"], lines["entry id"]) == ("t", "rejected", "7-1")
    code, out, _ = dlq("show", DLQ, entry, "--json")
    shown = json.loads(out)
    assert shown["payload"] == {"base64": "/wA="}
    assert shown["headers"]["x-dead-letter-reason"] == "rejected"
    assert ["h:trace", "t"] in shown["fields"]
    code, out, _ = dlq("show", DLQ, foreign, "--json")
    assert json.loads(out)["fields"] == [["account", "a"], [{"base64": "/g=="}, "b"]]
    assert json.loads(out)["payload"] is None


def test_replay_puts_it_back_where_it_came_from(any_server, stream, letters, dlq):
    """Fields as they were, without a letter's headers, with the first id of all; marked for the group that gave up."""
    stream.create_group()
    one = write(letters, b"\xff\x00")
    two = letters.add_fields(
        {"_payload": "b", "h:x-original-entry-id": "5-5", "h:x-dead-letter-stream": "s", "x": "foreign"}
    )
    code, out, err = dlq("replay", DLQ, "--id", one, "--id", two)

    assert (code, out, err) == (0, "", "replayed 2 of 2\n")
    [(_, first), (_, second)] = stream.entries()
    assert first == {
        b"_payload": b"\xff\x00",
        b"h:trace": b"t",
        b"h:x-original-entry-id": b"7-1",
        b"h:x-ruststream-retry-group": b"g",
    }
    assert second == {b"_payload": b"b", b"h:x-original-entry-id": b"5-5", b"x": b"foreign"}
    assert letters.length() == 0


def test_replay_to_another_stream_is_for_everyone(any_server, witness, letters, dlq):
    other = Stream(witness, "other")
    write(letters, "a")
    assert dlq("replay", DLQ, "--all", "--to", "other")[0] == 0
    [(_, fields)] = other.entries()
    assert fields == {b"_payload": b"a", b"h:trace": b"t", b"h:x-original-entry-id": b"7-1"}


async def test_a_replayed_letter_is_handled_by_its_group_alone(any_server, broker, stream, letters, server):
    """Given up by g, done by h long ago: after the replay g handles it once more, counted from one, and h does not."""
    seen = []
    repaired = False

    @broker.subscriber(RedisStream("s", group="g", start_id="0"), dead_letter=DLQ)
    async def handle(body: bytes, ctx: Context):
        seen.append(("g", body, ctx.delivery_count, ctx.headers.get("x-original-entry-id")))
        return None if repaired else dead_letter()

    @broker.subscriber(RedisStream("s", group="h", start_id="0"))
    async def other(body: bytes):
        seen.append(("h", body))

    async with RustStream("test", broker):
        entry = stream.add("x")
        await eventually_async(lambda: letters.length() == 1 and len(seen) == 2)
        repaired = True
        code = await asyncio.to_thread(cli.main, ["dlq", "replay", DLQ, "--all", "--url", server.url])
        assert code == 0
        await eventually_async(lambda: len(seen) == 3)
        await eventually_async(lambda: stream.pending_ids("g") == stream.pending_ids("h") == [])
        stream.add("end")
        await eventually_async(lambda: ("h", b"end") in seen)

    assert seen[2] == ("g", b"x", 1, entry)
    assert seen.count(("h", b"x")) == 1
    assert letters.length() == 0


def test_replay_says_what_it_can_not_do_and_does_the_rest(any_server, witness, stream, letters, dlq):
    """No such id, no origin, its own stream, a group that is gone, a stream of another type: kept, said, code 1."""
    stream.create_group()
    witness.set("text", "x")
    good = write(letters, "good")
    bad = {
        "does not say": letters.add_fields({"_payload": "x"}),
        "this very stream": write(letters, "x", stream=DLQ),
        "no group gone": write(letters, "x", group="gone"),
        "WRONGTYPE": write(letters, "x", stream="text", group=""),
    }
    code, out, err = dlq("replay", DLQ, "--json", "--id", good, *bad.values(), "1-1")

    assert code == 1
    report = json.loads(out)
    assert (report["replayed"], report["gone"]) == (1, 0)
    failed = {row["id"]: row["error"] for row in report["failed"]}
    assert failed.keys() == {*bad.values(), "1-1"}
    for words, entry in bad.items():
        assert words in failed[entry]
        assert words in err
    assert [entry for entry, _ in letters.entries()] == list(bad.values())
    assert len(stream.entries()) == 1
    assert dlq("replay", DLQ, "--id", bad["no group gone"], "--every-group")[0] == 0
    assert len(stream.entries()) == 2


def test_replay_all_of_many_goes_up_to_what_is_there_now(any_server, stream, letters, dlq, figure):
    """5,000 letters, and the handler's failures that come behind them meanwhile are not put back again."""
    import time

    stream.create_group()
    letters.client.eval(
        "for n = 1, 5000 do redis.call('XADD', KEYS[1], '*', '_payload', n, 'h:x-dead-letter-stream', 's',"
        " 'h:x-dead-letter-entry-id', '1-' .. n) end",
        1,
        DLQ,
    )
    begun = time.monotonic()
    code, _, err = dlq("replay", DLQ, "--all")
    figure("replayed", f"{5000 / (time.monotonic() - begun):.0f}/s on {any_server.name}")
    assert code == 0
    assert err.splitlines()[-1] == "replayed 5000 of 5000"
    assert [int(fields[b"_payload"]) for _, fields in stream.entries()] == list(range(1, 5001))
    assert letters.length() == 0


def test_a_full_server_keeps_the_letters(any_server, stream, letters, dlq):
    """OOM: nothing is deleted, the command fails; the same command works once there is room."""
    stream.create_group()
    entry = write(letters, "a")
    stream.client.config_set("maxmemory", "1")
    try:
        code, _, err = dlq("replay", DLQ, "--all")
    finally:
        stream.client.config_set("maxmemory", "0")
    assert code == 1
    assert "OOM" in err
    assert [entry_id for entry_id, _ in letters.entries()] == [entry]
    assert dlq("replay", DLQ, "--all")[0] == 0
    assert letters.length() == 0


@pytest.mark.parametrize(
    "argv",
    [
        ["list"],
        ["list", ""],
        ["list", DLQ, "--limit", "0"],
        ["list", DLQ, "--after", "x"],
        ["show", DLQ],
        ["show", DLQ, "x"],
        ["replay", DLQ],
        ["replay", DLQ, "--id"],
        ["replay", DLQ, "--id", "x"],
        ["replay", DLQ, "--all", "--id", "1-1"],
        ["replay", DLQ, "--all", "--to", DLQ],
        ["replay", DLQ, "--all", "--to", ""],
        ["purge", DLQ],
    ],
)
def test_a_wrong_command_line_is_code_2(argv, dlq, letters):
    write(letters, "a")
    code, out, err = dlq(*argv)
    assert (code, out) == (2, "")
    assert err
    assert letters.length() == 1


def test_a_server_that_is_not_there_or_not_named(monkeypatch, capsys):
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert cli.main(["dlq", "list", DLQ]) == 2
    assert "--url" in capsys.readouterr().err
    assert cli.main(["dlq", "list", DLQ, "--url", "http://localhost"]) == 2
    assert cli.main(["dlq", "list", DLQ, "--url", "redis://127.0.0.1:1"]) == 1
    assert "cannot connect" in capsys.readouterr().err
    assert "Traceback" not in capsys.readouterr().err


def test_a_key_that_is_no_stream_is_code_1(witness, dlq):
    witness.set(DLQ, "text")
    code, out, err = dlq("list", DLQ)
    assert (code, out) == (1, "")
    assert "WRONGTYPE" in err


def test_it_works_on_a_server_within_the_process(capsys):
    """memory:// has the same operations: list, replay to another stream, and nothing left."""

    async def publish() -> None:
        async with RedisBroker("memory://dlq") as broker:
            for number in range(3):
                await broker.publish({"id": number}, DLQ)

    asyncio.run(publish())
    server = ["--url", "memory://dlq"]
    assert cli.main(["dlq", "replay", DLQ, "--all", "--to", "s", *server]) == 0
    assert cli.main(["dlq", "list", DLQ, *server]) == 0
    assert cli.main(["dlq", "list", "s", "--json", *server]) == 0
    out = capsys.readouterr().out
    assert out.startswith("0 dead letters")
    assert len(json.loads(out.split("\n", 1)[1])) == 3


def test_it_runs_as_a_program(redis_url, letters):
    """`python -m ruststream dlq ...`, the server from REDIS_URL."""
    write(letters, "a")
    argv = [sys.executable, "-m", "ruststream", "dlq", "list", DLQ, "--json"]
    done = subprocess.run(argv, env=os.environ | {"REDIS_URL": redis_url}, capture_output=True, check=True, text=True)
    assert len(json.loads(done.stdout)) == 1
    assert done.stderr == ""
