"""The payments service under fire: payments are published, three workers post them, one worker is killed on the way.

`make run` runs this. It starts a server of its own and three processes of `service.py`, publishes payments, kills one
worker by SIGKILL while it has payments in hand, and waits until everything is settled. Then it counts by redis-py, from
outside, and ends with 0 only if no payment was lost. Where `make servers` has got no server, the same happens within
this process: see `in_process.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import in_process
from progress import Progress, shown
from ruststream.redis import RedisBroker
from server_builds import present
from servers import SPECS, Server, ServerMissingError, get
from witness import GROUPS, Witness, is_locked_account
from worker import Worker, started_workers

ACCOUNTS: Final = [f"account-{number}" for number in range(40)]
LOCKED: Final = 150
"""One payment of so many goes to an account that is being migrated."""
BURST: Final = 0.2
"""Seconds between two bursts of payments."""
IN_HAND: Final = 50
"""So many entries, read and not settled, a worker must have in hand to be killed."""
PATIENCE: Final = 30.0
"""Seconds after which something that must come has not come."""


def payment(number: int) -> dict[str, Any]:
    """Make a payment."""
    account = f"migrating-{number % 4}" if number % LOCKED == LOCKED - 1 else ACCOUNTS[number % len(ACCOUNTS)]
    return {"id": number, "account": account, "amount_cents": 1000 + 7919 * number % 1_200_000}


async def produce(broker: RedisBroker, progress: Progress, total: int, rate: int) -> None:
    """Publish payments in bursts, each with its account for a key."""
    began = time.monotonic()
    while progress.published < total:
        due = min(total, int((time.monotonic() - began + BURST) * rate))
        burst = [payment(number) for number in range(progress.published, due)]
        await broker.publish_many(burst, "payments", key=lambda message: message["account"])
        progress.published = due
        await asyncio.sleep(BURST)


async def kill_one(workers: Sequence[Worker], witness: Witness) -> tuple[Worker, set[int]]:
    """Kill the first worker that has enough in hand. Return it, and the payments that it has not settled.

    Raises:
        RuntimeError: none of them comes to have that much.
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for worker in workers:
            if witness.in_hand(worker.pid) < IN_HAND:
                continue
            worker.freeze()  # so that it can't get done between the look and the kill
            if witness.in_hand(worker.pid) >= IN_HAND:
                worker.kill()
                return worker, witness.left_by(worker.pid)
            worker.thaw()
        await asyncio.sleep(0)
    raise RuntimeError(f"no worker had {IN_HAND} payments in hand within {PATIENCE:g} s; try a higher --rate")


async def until(condition: Callable[[], object]) -> bool:
    """Wait until the condition holds, half a minute at most. Tell whether it does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


async def story(options: argparse.Namespace, server: Server) -> int:
    """Run it all and return the exit code."""
    witness = Witness(server.url)
    total = options.payments
    with started_workers(3, server.url, options.min_idle) as workers:
        if not await until(lambda: all(worker.is_running() for worker in workers)):
            raise RuntimeError(f"the workers did not start in {PATIENCE:g} s")
        print(f"3 workers run on {server.name} ({server.build.version}), min_idle {options.min_idle:g} s", flush=True)
        async with RedisBroker(server.url) as broker, shown(Progress(witness, workers)) as progress:
            producing = asyncio.create_task(produce(broker, progress, total, options.rate))
            await until(lambda: progress.published >= total / 3)
            victim, left = await kill_one(workers, witness)
            progress.say(f"worker {victim.number} was killed (SIGKILL) with {len(left)} payments in hand")
            await producing
            await until(lambda: witness.all_settled(total))
        alive = [worker for worker in workers if worker is not victim]
        for worker in alive:
            worker.stop()
        await until(lambda: all(worker.exit_code is not None for worker in alive))
        for worker in alive:
            for line in worker.said("drain "):
                print(f"worker {worker.number} after SIGTERM: {line.partition('ruststream.app: ')[2]}")
        unclean = [worker for worker in alive if worker.exit_code != 0 or not worker.said("drain complete")]
        for worker in unclean:
            print(f"worker {worker.number} ended with {worker.exit_code}:", *worker.said("")[-9:], sep="\n  ")
    return verdict(witness, total, left, clean=not unclean)


def verdict(witness: Witness, total: int, left: set[int], *, clean: bool) -> int:
    """Print what the witness saw, and return the exit code."""
    witness.look()
    again = {number for number, times in witness.posted.items() if times > 1}
    locked = {number for number in range(total) if is_locked_account(payment(number)["account"])}
    free = left - locked
    missing = [number for number in range(total) if number not in witness.posted]
    pending = {group: witness.pending(group) for group in GROUPS}
    print(
        f"published   {total:,} payments; the stream has {witness.length('payments'):,} entries, so none was copied",
        f"posted      {len(witness.posted):,} payments at least once",
        f"twice       {len(again & left):,} payments in the killed worker's hand, {len(again - left):,} others",
        f"retried     {len(locked & witness.retried):,} of the {len(locked):,} payments of locked accounts",
        f"recovered   {len(free & witness.recovered):,} of the {len(free):,} others in the killed worker's hand",
        f"screened    {len(witness.screened):,} payments by the group fraud",
        f"order       {witness.disorder or 'kept'} (first deliveries of each account, in each worker)",
        f"XPENDING    {', '.join(f'{group} {count}' for group, count in pending.items())}",
        sep="\n",
    )
    if missing or any(pending.values()) or witness.disorder or not clean:
        print(f"FAILED: {len(missing)} payments lost; all drained: {clean}", flush=True)
        return 1
    print("nothing was lost", flush=True)
    return 0


async def run(options: argparse.Namespace) -> int:
    """Start the server and run the story. SIGTERM and a closed terminal end it as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    # The server inherits this: Ctrl-C must not end it before the workers.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with Server.start(options.server) as server:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return await story(options, server)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--payments", type=int, help="how many are published (default 20000; without a server 3000)")
    parser.add_argument("--rate", type=int, default=1600, help="payments per second (default 1600)")
    parser.add_argument("--min-idle", type=float, default=2.0, help="seconds until an entry is recovered (default 2)")
    parser.add_argument(
        "--server",
        choices=["memory", *SPECS],
        help="default redis-8.10 where `make servers` has got it, else memory: a stream server within this process",
    )
    options = parser.parse_args(argv)
    server = options.server or ("redis-8.10" if present(SPECS["redis-8.10"]) else "memory")
    try:
        if server == "memory":
            os.environ.update(MIN_IDLE=str(options.min_idle), REDIS_URL="memory://payments")
            return asyncio.run(in_process.story(payment, options.payments or 3000))
        options.server, options.payments = server, options.payments or 20_000
        get(options.server, print)
        return asyncio.run(run(options))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("\ninterrupted: the workers and the server are stopped", file=sys.stderr)
        return 130
    except (ServerMissingError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
