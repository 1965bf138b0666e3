"""The program that the chaos tests kill, stop and starve: one app, whose handler stops at named points.

Run as a module with a `Config` as JSON in its one argument. It says what it does on stdout, a JSON object a line.
It takes commands on stdin, one a line: `go` (leave every point, and wait at none any more), `go POINT` (leave that
one), `health`. It ends when its stdin does.

Points of a payment: `started` (its handler was called), `effect` (its effect is written, it is not acked),
`acked` (the server has answered its ack). A point is named `started:17` for payment 17, or `started#31` for the
31st time that this process comes to `started`.
"""

import asyncio
import os
import signal
import sys
import threading
import time
from collections import Counter
from typing import Any

import msgspec

from chaos.misdeeds import end_the_process, misbehave, tell
from ruststream import Context, Idempotent, MarkState, RustStream, dead_letter, drop
from ruststream.redis import RedisBroker, RedisIdempotencyStore, RedisStream, Trim

STREAM, GROUP = "payments", "ledger"


class Payment(msgspec.Struct):
    """What the stream carries; `misdeed` is what its handler does wrong: once, or where it kills, each time."""

    id: int
    account: str = "a"
    misdeed: str = ""


class Config(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one worker process is to do."""

    url: str
    effects: str
    """File that effects are appended to: payment, account, entry id, delivery, subscription."""
    modes: list[str]
    """One subscription for each: constructors of `RedisStream`."""
    stream: str = STREAM
    options: dict[str, Any] = {}
    """Of the source: `min_idle`, `count`, `block`, `consumer`, ..."""
    trim: list[Any] = []
    """Constructor of `Trim` and its arguments."""
    subscriber: dict[str, Any] = {}
    """Of the subscriber: `workers`, `by_key`, `max_in_flight`, `renew_stalled`, `max_attempts`; with that, what has
    used them up is dropped."""
    idempotent: float = 0.0
    """Seconds that messages are known to be handled; 0: they are not marked."""
    marked_dies: int = 0
    """The store of the marks is one of the user's, and kills the process when so many marks are done."""
    drain_timeout: float = 30.0
    takes: float = 0.0
    """Seconds between `started` and the effect."""
    refuses: bool = False
    """Each payment is dead-lettered by hand once its effect is written; then it comes to the point `refused`."""
    replies: bool = False
    """The handler returns the payment's id, for a subscriber with `reply_to`."""
    threaded: bool = False
    """The handler is a plain function, which runs in a thread and comes to no points; `takes` blocks that thread."""
    mark: list[str] = []
    """Points that are announced and passed."""
    hold: list[str] = []
    """Points at which the handler waits while the loop turns."""
    freeze: list[str] = []
    """Points at which the whole event loop waits."""
    die: list[str] = []
    """Points at which the process kills itself by SIGKILL: nothing more of it runs, in no thread."""


class Points:
    """Where handlers announce themselves, and wait if they are asked to."""

    def __init__(self, config: Config) -> None:
        self._mark, self._die, self._freeze = set(config.mark), set(config.die), set(config.freeze)
        self._gates = {name: asyncio.Event() for name in config.hold}
        self._seen: Counter[str] = Counter()
        self._thawed = threading.Event()
        self._busy = bool(self._mark or self._gates or self._freeze or self._die)

    def open(self, loop: asyncio.AbstractEventLoop, name: str | None = None) -> None:
        """Let what waits at this point go on, or everything, now and later. From any thread."""
        if name is None:
            self._thawed.set()
        for gate in self._gates.values() if name is None else [self._gates[name]]:
            loop.call_soon_threadsafe(gate.set)

    def names(self, point: str, payment: Payment) -> set[str]:
        """Return the names of this moment, if any is asked for."""
        if not self._busy:
            return set()
        self._seen[point] += 1
        return {f"{point}:{payment.id}", f"{point}#{self._seen[point]}"}

    def wait_here(self, names: set[str], payment: Payment, ctx: Context) -> asyncio.Event | None:
        """Announce a point; die or freeze at it, or return what its handler has to wait for."""
        if names & self._die:
            os.kill(os.getpid(), signal.SIGKILL)
        freezes = set() if self._thawed.is_set() else names & self._freeze
        holds = {name for name in names & self._gates.keys() if not self._gates[name].is_set()}
        for name in sorted(freezes | holds | names & self._mark):
            tell(at=name, payment=payment.id, entry=str(ctx.entry_id), delivery=ctx.delivery_count)
        if freezes:
            self._thawed.wait()
        return self._gates[min(holds)] if holds else None

    async def at(self, point: str, payment: Payment, ctx: Context) -> None:
        """Come to a point."""
        if (names := self.names(point, payment)) and (gate := self.wait_here(names, payment, ctx)) is not None:
            await gate.wait()


class Handlers:
    """What the app does with a payment: it writes one line to a file, and comes to its points on the way."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._effects = os.open(config.effects, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.points = Points(config)

    def _write(self, payment: Payment, ctx: Context) -> None:
        line = f"{payment.id} {payment.account} {ctx.entry_id} {ctx.delivery_count} {ctx.consumer}\n"
        os.write(self._effects, line.encode())

    async def post(self, payment: Payment, ctx: Context) -> int | None:
        """Post a payment on the event loop."""
        points = self.points
        await points.at("started", payment, ctx)
        if payment.misdeed == "kills":
            os.kill(os.getpid(), signal.SIGKILL)
        if payment.misdeed == "exits at once":
            os._exit(70)
        if payment.misdeed and ctx.delivery_count == 1:
            tell(does=payment.misdeed, payment=payment.id, entry=str(ctx.entry_id))
            await misbehave(payment.misdeed)
        elif self._config.takes:
            await asyncio.sleep(self._config.takes)
        self._write(payment, ctx)
        if names := points.names("acked", payment):
            ctx.after_ack(lambda: points.wait_here(names, payment, ctx))
        await points.at("effect", payment, ctx)
        if self._config.refuses:
            ctx.settle(dead_letter("refused"))
            await points.at("refused", payment, ctx)
        return payment.id if self._config.replies else None

    def post_in_thread(self, payment: Payment, ctx: Context) -> None:
        """Post a payment in a thread."""
        tell(at=f"thread:{payment.id}", payment=payment.id, entry=str(ctx.entry_id), delivery=ctx.delivery_count)
        if payment.misdeed and ctx.delivery_count == 1:
            end_the_process(payment.misdeed)
        time.sleep(self._config.takes)
        self._write(payment, ctx)


class DyingStore:
    """Keeps marks on the server, and kills the process once one too many is done."""

    def __init__(self, broker: RedisBroker, after: int) -> None:
        self._marks, self._left = RedisIdempotencyStore(broker), after

    async def begin(self, key: str, owner: str, lease: float) -> MarkState:
        return await self._marks.begin(key, owner, lease)

    async def finish(self, key: str, owner: str, ttl: float) -> None:
        await self._marks.finish(key, owner, ttl)
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    async def release(self, key: str, owner: str) -> None:
        await self._marks.release(key, owner)

    async def renew(self, keys: list[str], owner: str, lease: float) -> None:
        await self._marks.renew(keys, owner, lease)


def make_app(config: Config) -> RustStream:
    """Return the app, nothing of it started."""
    broker = RedisBroker(config.url)
    app = RustStream("chaos", broker, drain_timeout=config.drain_timeout)
    handlers = Handlers(config)
    for mode in config.modes:
        given = dict(config.options)
        if config.trim:
            policy, *figures = config.trim
            given["trim"] = getattr(Trim, policy)(*figures)
        if mode == "new" and len(config.modes) > 1:
            given.pop("min_idle", None)
        source = getattr(RedisStream, mode)(config.stream, group=GROUP, start_id="0", **given)
        handler = handlers.post_in_thread if config.threaded else handlers.post
        options = config.subscriber | ({"on_exhausted": drop()} if "max_attempts" in config.subscriber else {})
        if config.idempotent:
            store = DyingStore(broker, config.marked_dies) if config.marked_dies else None
            options["idempotency"] = Idempotent(ttl=config.idempotent, store=store)
        broker.add_subscriber(source, handler, name=f"post_{mode}", **options)

    @app.on_startup
    def begin() -> None:
        tell(starting=os.getpid())

    @app.after_startup
    def listen() -> None:
        loop = asyncio.get_running_loop()
        threading.Thread(target=obey, args=(app, handlers.points, loop), daemon=True).start()
        loop.call_soon(lambda: tell(started=os.getpid()))

    return app


def obey(app: RustStream, points: Points, loop: asyncio.AbstractEventLoop) -> None:
    """Carry out commands; the test's end is this process's end."""
    for line in sys.stdin:
        match line.split():
            case ["go"]:
                points.open(loop)
            case ["go", name]:
                points.open(loop, name)
            case ["health"]:
                loop.call_soon_threadsafe(lambda: tell(health=msgspec.to_builtins(app.health())))
            case other:
                tell(unknown=other)
    os._exit(70)


if __name__ == "__main__":
    make_app(msgspec.json.decode(sys.argv[1], type=Config)).run()
