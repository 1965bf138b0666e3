"""The line that tells how far the demonstration is."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence

from witness import Witness
from worker import Worker


class Progress:
    """One line: updated in place on a terminal, printed every two seconds elsewhere."""

    def __init__(self, witness: Witness, workers: Sequence[Worker]) -> None:
        """Tell nothing yet."""
        self.published = 0
        self._witness, self._workers = witness, workers
        self._in_place = sys.stdout.isatty()

    def line(self) -> str:
        """Return the line."""
        seen = self._witness
        retried = sum(len(worker.said("left pending")) for worker in self._workers)
        return (
            f"published {self.published:,} | posted {len(seen.posted):,} | retried {retried:,} | "
            f"recovered {len(seen.recovered):,} | pending {seen.pending('ledger'):,}"
        )

    def say(self, text: str) -> None:
        """Print a line that stays."""
        print(f"\r\x1b[K{text}" if self._in_place else text, flush=True)

    async def show(self) -> None:
        """Show the line until cancelled."""
        while True:
            self._witness.look()
            if self._in_place:
                print(f"\r\x1b[K{self.line()}", end="", flush=True)
            else:
                print(self.line(), flush=True)
            await asyncio.sleep(0.1 if self._in_place else 2.0)


@contextlib.asynccontextmanager
async def shown(progress: Progress) -> AsyncIterator[Progress]:
    """Show progress meanwhile, and once more at the end."""
    showing = asyncio.create_task(progress.show())
    try:
        yield progress
        progress.say(progress.line())
    finally:
        showing.cancel()
        await asyncio.wait([showing])
