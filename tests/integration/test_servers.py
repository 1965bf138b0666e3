"""The test servers themselves: what the other tests stand on."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis

import server_builds
from eventually import eventually, eventually_async
from server_builds import SPECS, ServerMissingError, Spec
from servers import Server, free_port, main

HAS_CLAIM = {"redis-8.10"}
SCRIPTS = Path(server_builds.__file__).parent


def gone(pid: int) -> bool:
    """A process that ended but was not reaped yet counts as gone."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_it_starts_in_its_exact_version(any_server, witness):
    info = witness.info("server")

    assert info.get("valkey_version", info["redis_version"]) == any_server.version == SPECS[any_server.name].version
    assert info["process_id"] == any_server.pid
    assert info["hz"] == 100
    assert any_server.cli("PING") == "PONG"


def test_claim_is_found_by_asking(any_server, witness):
    witness.xgroup_create("s", "g", id="0", mkstream=True)

    with pytest.raises(redis.ResponseError) as refusal:
        witness.execute_command("XREADGROUP", "GROUP", "g", "c", "CLAIM", "-1", "STREAMS", "s", ">")

    expected = "min-idle-time must be a positive integer" if any_server.name in HAS_CLAIM else "syntax error"
    assert expected in str(refusal.value)


def test_claimed_entries_carry_idle_time_and_earlier_deliveries(redis_url, witness):
    witness.xgroup_create("s", "g", id="0", mkstream=True)
    entry = witness.xadd("s", {"k": "v"})
    witness.xreadgroup("g", "first", {"s": ">"})

    reply = witness.xreadgroup("g", "second", {"s": ">"}, claim_min_idle_time=0)

    [[_, entries]] = reply.items() if isinstance(reply, dict) else reply
    [(got, fields, idle, earlier)] = entries[0] if isinstance(entries[0], list) else entries
    assert (got, fields, earlier) == (entry, {b"k": b"v"}, 1)
    assert idle >= 0


def test_a_flushed_server_is_empty(redis_url, witness):
    assert witness.dbsize() == 0
    witness.set("left", "over")


def test_the_next_test_does_not_see_it(redis_url, witness):
    assert witness.dbsize() == 0


def test_stop_ends_it_and_removes_its_folder(make_server):
    server = make_server()
    pid = server.pid

    server.stop()
    server.stop()

    assert gone(pid)
    assert not server.folder.exists()
    assert not server.answers()


def test_kill_and_restart_keep_port_and_data(make_server, make_witness):
    server = make_server(args=("--appendonly", "yes", "--appendfsync", "always"))
    client = make_witness(server)
    client.set("k", "v")
    before = server.pid, server.port

    server.kill()
    assert gone(before[0])
    with pytest.raises(redis.ConnectionError):
        client.get("k")

    server.restart()
    assert server.pid != before[0]
    assert server.port == before[1]
    assert eventually(lambda: client.get("k")) == b"v"


def test_restart_of_a_running_server(make_server):
    server = make_server()
    pid = server.pid

    server.restart()

    assert gone(pid)
    assert server.answers()


def test_a_paused_server_keeps_connections_and_says_nothing(make_server):
    server = make_server()
    with redis.Redis(host=server.host, port=server.port, socket_timeout=0.2, retry=None) as client:
        assert client.ping()
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        assert client.ping()


def test_a_paused_server_can_be_stopped(make_server):
    server = make_server()
    pid = server.pid
    server.pause()

    server.stop()

    assert gone(pid)


def test_password_and_unix_socket(make_server, make_witness):
    server = make_server(password="s3cret", unix=True)

    assert server.url == f"unix://:s3cret@{server.socket_path}"
    assert make_witness(server).ping()
    assert server.cli("PING") == "PONG"
    with (
        redis.Redis(host=server.host, port=server.port, retry=None) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()


def test_a_taken_port_is_said(make_server):
    first = make_server()

    with pytest.raises(RuntimeError, match=f"port {first.port}: address already in use"):
        make_server(port=first.port)


def test_a_refused_option_is_said_with_the_log(make_server):
    with pytest.raises(RuntimeError, match="no-such-option"):
        make_server(args=("--no-such-option", "1"))


def test_it_outlives_the_thread_that_started_it(make_server):
    started: list[Server] = []
    thread = threading.Thread(target=lambda: started.append(make_server()))
    thread.start()
    thread.join()

    assert started[0].cli("PING") == "PONG"
    assert not gone(started[0].pid)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_it_dies_with_the_process_that_started_it(end, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # its folder is left behind
    story = (
        f"import sys, time; sys.path.insert(0, {str(SCRIPTS)!r}); from servers import Server\n"
        "server = Server.start('redis-8.10'); print(server.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", story], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.send_signal(end)

    assert eventually(lambda: gone(pid))


def test_it_is_stopped_when_its_interpreter_ends():
    story = (
        f"import sys; sys.path.insert(0, {str(SCRIPTS)!r}); from servers import Server\n"
        "server = Server.start('redis-8.10'); print(server.pid, server.folder)"
    )
    done = subprocess.run([sys.executable, "-c", story], check=True, capture_output=True, text=True)
    pid, folder = done.stdout.split()

    assert eventually(lambda: gone(int(pid)))
    assert not Path(folder).exists()
    assert done.stderr == ""


def test_the_command_line_prints_a_url_and_ends_on_request():
    port = free_port()
    argv = [sys.executable, str(SCRIPTS / "servers.py"), "start", "redis-8.10", "--port", str(port)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == f"redis://127.0.0.1:{port}\n"
        with redis.Redis(port=port) as client:
            assert client.ping()
        process.terminate()
        assert process.wait(10) == 0


def test_the_command_line_lists_every_server(capsys):
    assert main(["list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SPECS)


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """A server of which each fetch is counted, in a cache of its own."""
    fetches: list[Path] = []

    def fetch(target: Path, scratch: Path) -> None:
        fetches.append(scratch)
        program = target / "bin" / "redis-server"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\necho 'Redis server v=1.2.3 sha=0'\n")
        program.chmod(0o755)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(SPECS, "made-up", Spec("made-up", "1.2.3", "redis-server", "", fetch))
    return fetches


def test_parallel_callers_fetch_once(made_up):
    got: list[str] = []
    threads = [threading.Thread(target=lambda: got.append(server_builds.get("made-up").version)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert got == ["1.2.3"] * 8
    assert len(made_up) == 1


def test_another_version_than_the_named_one_is_refused_and_not_kept(made_up, monkeypatch):
    monkeypatch.setitem(SPECS, "made-up", Spec("made-up", "9.9.9", "redis-server", "", SPECS["made-up"].fetch))

    with pytest.raises(
        ServerMissingError, match=r"cannot get made-up 9\.9\.9: its package holds version 1\.2\.3"
    ) as refusal:
        server_builds.get("made-up")

    assert "\n" not in str(refusal.value)
    assert [path.name for path in server_builds.root().iterdir()] == [".made-up.lock"]


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ServerMissingError, match=r"redis-9: unknown server; choose from redis-8\.10, "):
        server_builds.get("redis-9")


def test_eventually_says_what_it_waited_for():
    with pytest.raises(AssertionError, match=r"not true within 0\.02 s, its last value was 0: .*lambda: 0"):
        eventually(lambda: 0, timeout=0.02)


async def test_eventually_takes_async_predicates_and_assertions():
    calls: list[int] = []

    async def third_time() -> bool:
        calls.append(1)
        assert len(calls) == 3
        return True

    assert await eventually_async(third_time)
