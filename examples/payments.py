"""The payments service under fire: a stream of payments, three workers, one of them killed, and what became of it all.

`make run` runs this. It starts a server of its own, and three processes of `service.py`; it publishes payments, kills
one worker by SIGKILL while it has payments in hand, and waits until everything is settled. Then it counts by redis-py,
from outside, and ends with 0 only if no payment was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "scripts")]

from servers import LEASHED, SPECS, Server, ServerMissingError, get  # noqa: E402 - found by the line above
from witness import GROUPS, Witness  # noqa: E402

from ruststream.redis import RedisBroker  # noqa: E402

ACCOUNTS: Final = [f"account-{number}" for number in range(40)] + [f"migrating-{number}" for number in range(2)]
BURST: Final = 0.2
"""Seconds between two bursts of payments."""
IN_HAND: Final = 20
"""So many payments, read and unsettled, a worker must have in hand to be killed."""
PATIENCE: Final = 30.0
"""Seconds after which something that must come has not come."""


class Worker:
    """One process of the service. It ends with this one, whatever happens to it."""

    def __init__(self, number: int, url: str, min_idle: float, folder: Path) -> None:
        """Start it."""
        self.number = number
        self.log = folder / f"worker-{number}.log"
        env = {**os.environ, "REDIS_URL": url, "MIN_IDLE": str(min_idle), "PYTHONUNBUFFERED": "1"}
        leash = [sys.executable, "-I", "-S", "-c", LEASHED, str(os.getpid())]
        service = [sys.executable, "-m", "ruststream", "run", "service:app"]
        with self.log.open("wb") as log:
            # A session of its own: Ctrl-C reaches this process alone, which then ends the workers.
            self.process = subprocess.Popen(
                leash + service, cwd=HERE, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def pid(self) -> int:
        """Its process id, which its consumers carry in their names."""
        return self.process.pid

    def said(self, words: str) -> list[str]:
        """Return the lines of its log with these words in them."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if words in line]

    def is_running(self) -> bool:
        """Tell whether its app runs.

        Raises:
            RuntimeError: it ended instead.
        """
        if (code := self.process.poll()) is not None:
            raise RuntimeError(f"worker {self.number} ended with {code}:\n{self.log.read_text(errors='replace')}")
        return bool(self.said("is running"))

    def ended(self) -> bool:
        """Tell whether it has ended."""
        return self.process.poll() is not None


@contextlib.contextmanager
def started_workers(count: int, url: str, min_idle: float) -> Iterator[list[Worker]]:
    """Start workers; at the end none of them is left."""
    workers: list[Worker] = []
    with tempfile.TemporaryDirectory(prefix="payments-") as folder:
        try:
            workers += (Worker(number, url, min_idle, Path(folder)) for number in range(1, count + 1))
            yield workers
        finally:
            for worker in workers:
                worker.process.kill()
                worker.process.wait()


class Progress:
    """One line that tells how far it is: in place on a terminal, every two seconds elsewhere."""

    def __init__(self, witness: Witness) -> None:
        """Tell nothing yet."""
        self.witness = witness
        self.published = 0
        self.workers: Sequence[Worker] = ()
        self._in_place = sys.stdout.isatty()

    def line(self) -> str:
        """Return the line."""
        seen = self.witness
        retried = sum(len(worker.said("left pending")) for worker in self.workers)
        return (
            f"published {self.published:,} | posted {len(seen.posted):,} | retried {retried:,} | "
            f"recovered {len(seen.recovered):,} | pending {seen.pending('ledger'):,}"
        )

    def say(self, text: str) -> None:
        """Print a line that stays, and leave the line of progress for the next one."""
        print(f"\r\x1b[K{text}" if self._in_place else text, flush=True)

    async def show(self) -> None:
        """Show the line until cancelled."""
        while True:
            self.witness.look()
            if self._in_place:
                print(f"\r\x1b[K{self.line()}", end="", flush=True)
            else:
                print(self.line(), flush=True)
            await asyncio.sleep(0.1 if self._in_place else 2.0)


@contextlib.asynccontextmanager
async def shown(progress: Progress) -> AsyncIterator[None]:
    """Show progress meanwhile."""
    showing = asyncio.create_task(progress.show())
    try:
        yield
    finally:
        showing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await showing
        progress.say(progress.line())


async def until(condition: Callable[[], Any], what: str) -> None:
    """Wait until the condition holds.

    Raises:
        RuntimeError: it does not, after half a minute.
    """
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {PATIENCE:g} s in vain: {what}")
        await asyncio.sleep(0.02)


async def produce(broker: RedisBroker, progress: Progress, rate: int, duration: float) -> None:
    """Publish payments in bursts, each with its account for a key."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < duration:
        wanted = int((passed + BURST) * rate) - progress.published
        payments = [
            {"id": number, "account": ACCOUNTS[number % len(ACCOUNTS)], "amount_cents": 1000 + 7919 * number % 1_200_000}
            for number in range(progress.published, progress.published + wanted)
        ]
        await broker.publish_many(payments, "payments", key=lambda payment: payment["account"])
        progress.published += wanted
        await asyncio.sleep(BURST)


async def kill_one(workers: Sequence[Worker], progress: Progress, after: float) -> tuple[Worker, int]:
    """Kill the first worker that has payments in hand. Return it, and how many it had."""
    await asyncio.sleep(after)
    deadline = time.monotonic() + PATIENCE
    while True:
        for worker in workers:
            if progress.witness.in_hand("ledger", worker.pid) >= IN_HAND or time.monotonic() > deadline:
                worker.process.kill()
                worker.process.wait()
                held = progress.witness.in_hand("ledger", worker.pid)
                progress.say(f"worker {worker.number} was killed (SIGKILL), {held} payments in hand")
                return worker, held
        await asyncio.sleep(0)


async def story(options: argparse.Namespace, server: Server) -> int:
    """Run it all and return the exit code."""
    witness = Witness(server.url)
    progress = Progress(witness)
    with started_workers(3, server.url, options.min_idle) as workers:
        progress.workers = workers
        await until(lambda: all(worker.is_running() for worker in workers), "the workers' start")
        print(f"3 workers are running on {server.name} ({server.build.version}), min_idle {options.min_idle:g} s")
        async with RedisBroker(server.url) as broker, shown(progress):
            producing = asyncio.create_task(produce(broker, progress, options.rate, options.seconds))
            victim, held = await kill_one(workers, progress, options.seconds / 3)
            await producing
            await until(lambda: witness.settled(progress.published), "every payment posted, nothing pending")
        alive = [worker for worker in workers if worker is not victim]
        for worker in alive:
            worker.process.send_signal(signal.SIGTERM)
        await until(lambda: all(worker.ended() for worker in alive), "the workers' end")
        clean = [worker.process.returncode == 0 and worker.said("drain complete") for worker in alive]
        for worker in alive:
            for line in worker.said("drain "):
                print(f"worker {worker.number}, SIGTERM: {line.partition('ruststream.app: ')[2]}")
        witness.look()
        print(summary(witness, progress, held))
    lost = witness.lost(progress.published)
    if lost or not all(clean) or any(witness.pending(group) for group in GROUPS):
        print(f"FAILED: {len(lost)} payments were not posted, or not all was settled", file=sys.stderr)
        return 1
    print("nothing was lost")
    return 0


def summary(witness: Witness, progress: Progress, held: int) -> str:
    """Return what the witness saw."""
    twice = sum(1 for times in witness.posted.values() if times > 1)
    migrated = sum(1 for payment in witness.posted if ACCOUNTS[payment % len(ACCOUNTS)].startswith("migrating-"))
    return "\n".join(
        (
            f"published   {progress.published:,} payments, {witness.length('payments'):,} entries in the stream",
            f"posted      {len(witness.posted):,} at least once, {twice:,} of them twice",
            f"retried     {migrated:,} payments of locked accounts, under their own ids",
            f"recovered   {len(witness.recovered):,} payments; {held:,} were in the killed worker's hand",
            f"screened    {len(witness.screened):,} by the second group",
            f"order       {'kept' if not witness.disorder else 'BROKEN: ' + witness.disorder} (each account, each worker)",
            "XPENDING    " + ", ".join(f"{group} {witness.pending(group)}" for group in GROUPS),
        )
    )


async def interruptible(options: argparse.Namespace) -> int:
    """Run the story; SIGTERM and a closed terminal end it as Ctrl-C does."""
    task = asyncio.current_task()
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel if task else None)
    with Server.start(options.server) as server:
        await asyncio.sleep(0)
        return await story(options, server)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=9.0, help="how long payments are published (default 9)")
    parser.add_argument("--rate", type=int, default=1500, help="payments per second (default 1500)")
    parser.add_argument("--min-idle", type=float, default=2.0, help="seconds until an entry is recovered (default 2)")
    parser.add_argument("--server", choices=SPECS, default="redis-8.10", help="default redis-8.10")
    options = parser.parse_args(argv)
    try:
        get(options.server, print)
        return asyncio.run(interruptible(options))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("\ninterrupted; workers and server are stopped", file=sys.stderr)
        return 130
    except (ServerMissingError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
