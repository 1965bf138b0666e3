"""A relay between a client and a server that cuts the connection at a named byte string of what passes."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self


@dataclass
class _Trap:
    marker: bytes
    times: int
    keep: bool
    then: Callable[[], object] | None = None


class Relay:
    """Passes everything on, until it is told to swallow an answer or to drop a command."""

    def __init__(self, port: int) -> None:
        """Stand in front of a server on this port."""
        self.swallowed = 0
        """Answers that were kept from the client."""
        self.dropped = 0
        """Commands that were kept from the server."""
        self._port = port
        self._traps: dict[str, _Trap] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def swallow(
        self, marker: bytes, *, times: int = 1, keep: bool = False, then: Callable[[], object] | None = None
    ) -> None:
        """Let the server answer the next data with this in it, and cut the connection in place of the answer.

        Args:
            marker: what the data must contain.
            times: how often.
            keep: leave the connection open, and silent.
            then: called once the answer has come, before the cut.
        """
        self._traps["swallow"] = _Trap(marker, times, keep, then)

    def drop(self, marker: bytes, *, keep: bool = False) -> None:
        """Cut the connection before the next such bytes: the server gets what stands before them, and no more."""
        self._traps["drop"] = _Trap(marker, 1, keep)

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=1 << 22)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Cut everything."""
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            there, away = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
            try:
                await self._pass(reader, writer, there, away)
            finally:
                away.transport.abort()
        writer.transport.abort()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        away: asyncio.StreamWriter,
    ) -> None:
        answers = asyncio.ensure_future(self._copy(there, writer))
        try:
            while data := await reader.read(1 << 20):
                if (trap := self._sprung("drop", data)) is not None:
                    away.write(data[: data.index(trap.marker)])
                    await away.drain()
                    self.dropped += 1
                    await self._stay(trap)
                    return
                if (trap := self._sprung("swallow", data)) is not None:
                    answers.cancel()
                    await asyncio.gather(answers, return_exceptions=True)
                    away.write(data)
                    await away.drain()
                    await there.read(1 << 20)
                    self.swallowed += 1
                    if trap.then is not None:
                        trap.then()
                    await self._stay(trap)
                    return
                away.write(data)
                await away.drain()
        finally:
            answers.cancel()

    def _sprung(self, kind: str, data: bytes) -> _Trap | None:
        trap = self._traps.get(kind)
        if trap is None or trap.marker not in data:
            return None
        trap.times -= 1
        if trap.times == 0:
            del self._traps[kind]
        return trap

    @staticmethod
    async def _stay(trap: _Trap) -> None:
        if trap.keep:
            await asyncio.Event().wait()

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 20):
            writer.write(data)
            await writer.drain()
        writer.close()
