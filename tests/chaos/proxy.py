"""Stands between a client and its server: cuts connections at a chosen moment of a request, holds replies."""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Literal, Self

from servers import Server

When = Literal["before", "half", "after"]
"""Of a request: it never reaches the server; half of its bytes do; all of them do, and the reply is lost."""


class Proxy:
    """A proxy on a port of its own. What it holds back is lost, as with a connection that was cut."""

    def __init__(self, server: Server) -> None:
        """Listen."""
        self._address = (server.host, server.port)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._door.getsockname()[1]}"
        self.cuts = 0
        """How often it has cut."""
        self._text: bytes | None = None
        self._when: When = "before"
        self._then: Callable[[], object] = lambda: None
        self.holds = 0
        """How many replies it has held back."""
        self._held: bytes | None = None
        self._released = threading.Event()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []

    def cut_at(self, text: bytes, when: When, then: Callable[[], object] = lambda: None) -> None:
        """Cut the connection whose next request holds this text, and call something once that is so."""
        with self._lock:
            self._text, self._when, self._then = text, when, then

    def hold_replies(self, text: bytes) -> None:
        """Keep replies that hold this text from the client, and what follows them there, until they are released."""
        self._released.clear()
        self._held = text

    def release_replies(self) -> None:
        """Let them go, and hold no more."""
        self._held = None
        self._released.set()

    def __enter__(self) -> Self:
        """Begin."""
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close everything."""
        self.release_replies()
        self._door.close()
        for each in self._sockets:
            _close(each)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            server = socket.create_connection(self._address)
            self._sockets += [client, server]
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
            threading.Thread(target=self._reply, args=(server, client), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := client.recv(1 << 20):
                with self._lock:
                    hit = self._text is not None and self._text in data
                    if hit:
                        self._text = None
                if hit:
                    self._cut(data, client, server)
                    return
                server.sendall(data)
        except OSError:
            pass
        _close(client)
        _close(server)

    def _reply(self, server: socket.socket, client: socket.socket) -> None:
        try:
            while data := server.recv(1 << 20):
                if self._held is not None and self._held in data:
                    self.holds += 1
                    self._released.wait()
                client.sendall(data)
        except OSError:
            pass

    def _cut(self, data: bytes, client: socket.socket, server: socket.socket) -> None:
        # Nothing more comes to the client from here on; what is sent to the server all the same, it carries out.
        client.shutdown(socket.SHUT_WR)
        if self._when != "before":
            server.sendall(data if self._when == "after" else data[: len(data) // 2])
            # The server closes its side once it has done all that came before the end.
            server.shutdown(socket.SHUT_WR)
            try:
                while server.recv(1 << 20):
                    pass
            except OSError:
                pass
        self.cuts += 1
        self._then()
        _close(client)
        _close(server)


def _close(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
