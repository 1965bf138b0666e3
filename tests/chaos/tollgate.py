"""Stands between a worker and its server, and does something at the one command it is told to wait for."""

import contextlib
import hashlib
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from servers import Server

SCRIPTS = Path(__file__).parents[2] / "rust" / "core" / "src" / "redis" / "scripts.rs"


def script(name: str) -> bytes:
    """Return what a script is called by: the hash of the files that the core makes it of."""
    [files] = re.findall(rf'^ +{name},\s*((?:"lua/\w+\.lua",?\s*)+)\)', SCRIPTS.read_text(), re.MULTILINE)
    code = b"".join((SCRIPTS.parent / file).read_bytes() for file in re.findall(r"lua/\w+\.lua", files))
    return hashlib.sha1(code).hexdigest().encode()


class Tollgate:
    """Forwards everything, until a command comes that has `what` in it; that one it stops, or its answer."""

    def __init__(self, server: Server) -> None:
        """Listen."""
        self._server = server
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._door.getsockname()[1]}"
        self._what = b""
        self._answered = False
        self._expected = b""
        self._not_before = 0.0
        self._action: Callable[[], None] = lambda: None
        self.reached = threading.Event()
        self._lines: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._begin(self._serve)

    def stop_at(
        self,
        what: bytes,
        action: Callable[[], None] = lambda: None,
        *,
        answered: bool = False,
        expected: bytes = b"",
        not_before: float = 0.0,
    ) -> None:
        """Cut the connection at the next such command, once.

        Args:
            what: bytes of the command.
            action: done at that moment, before anyone sees the cut.
            answered: let the server carry it out, and keep its answer back.
            expected: bytes that the answer must have; with others the gate waits for the next command.
            not_before: time of day, in seconds, before which commands pass.
        """
        self._action, self._answered, self._expected, self._not_before = action, answered, expected, not_before
        self._what = what

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                self._lines.append(client)
                server = socket.create_connection((self._server.host, self._server.port))
                self._lines.append(server)
                for line in (client, server):
                    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                waits = threading.Event()
                self._begin(self._requests, client, server, waits)
                self._begin(self._answers, client, server, waits)

    def _requests(self, client: socket.socket, server: socket.socket, waits: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                if self._what and self._what in data and time.time() >= self._not_before:
                    if not self._answered:
                        self._cut(client, server)
                        return
                    waits.set()
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _answers(self, client: socket.socket, server: socket.socket, waits: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if waits.is_set():
                    if self._what and self._expected in data:
                        self._cut(client, server)
                        return
                    waits.clear()
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)

    def _cut(self, client: socket.socket, server: socket.socket) -> None:
        self._what = b""
        self._action()
        for line in (client, server):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        self.reached.set()

    def __enter__(self) -> Self:
        """Return the gate."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let nobody through any more."""
        for line in (self._door, *self._lines):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()
        for thread in self._threads:
            thread.join()
