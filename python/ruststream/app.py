"""The app: brokers, hooks, and the way from start to stop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from types import SimpleNamespace, TracebackType
from typing import Any, Final, NoReturn, Self, TypeAlias, TypeVar

from ruststream.errors import ConfigError, RustStreamError
from ruststream.health import AppState, Health
from ruststream.lifecycle import Life
from ruststream.option import Duration, name_text, seconds
from ruststream.process import Signals, leave_now, plain_logging
from ruststream.redis.broker import RedisBroker
from ruststream.stage import HERE, Stage

Hook: TypeAlias = Callable[..., object]
Lifespan: TypeAlias = Callable[..., AbstractAsyncContextManager[Any]]
H = TypeVar("H", bound=Hook)

_log: Final = logging.getLogger("ruststream.app")


class RustStream:
    """A service: its brokers' subscriptions, started and stopped together.

    Run it by `ruststream run module:app`, by `app.run()`, by `await app.serve()` inside a loop, or by
    `async with app:` inside another program.
    """

    def __init__(
        self,
        title: str,
        *brokers: RedisBroker,
        version: str = "0.1.0",
        drain_timeout: Duration = 30.0,
        lifespan: Lifespan | None = None,
    ) -> None:
        """Do no I/O.

        Args:
            title: the service's name, for logs and documents.
            brokers: whose subscribers to run.
            version: the service's version.
            drain_timeout: seconds (or `timedelta`) that handlers get to end once the app is told to stop.
            lifespan: an async context manager that is entered first and left last. It is called with the app if it
                takes a parameter; what it yields becomes `app.state`.

        Raises:
            ConfigError: an argument is wrong.
        """
        self.title = name_text(title, 'the title, which comes first as in RustStream("payments", broker),')
        if not brokers:
            raise ConfigError(f"the app needs a broker, as in RustStream({title!r}, RedisBroker(...))")
        for position, broker in enumerate(brokers):
            if not isinstance(broker, RedisBroker):
                raise ConfigError(f"RustStream takes brokers such as RedisBroker(...), not {broker!r}")
            if broker in brokers[:position]:
                raise ConfigError(f"{broker!r} is given twice")
        self.brokers = brokers
        self.version = name_text(version, "version")
        self.drain_timeout = seconds(drain_timeout, "drain_timeout")
        self.state: Any = SimpleNamespace()
        """What handlers see as `Context.state`: what `lifespan` yields, else a namespace for the hooks to fill."""
        self.stage: Stage = HERE
        """Where it runs: on its brokers' servers, or where a `TestApp` puts it. Not to be changed while it runs."""
        self._lifespan = None if lifespan is None else _with_app(lifespan, "lifespan")
        self._hooks: dict[str, list[Hook]] = {
            name: [] for name in ("on_startup", "after_startup", "on_shutdown", "after_shutdown")
        }
        self._app_state: AppState = "stopped"
        self._life: Life | None = None
        self._exits = AsyncExitStack()
        self._watch: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._stop_asked: asyncio.Event | None = None
        self._host: asyncio.Task[Any] | None = None
        self._host_cancelled = False
        self._stuck = False

    def __repr__(self) -> str:
        """Show title, version and brokers."""
        return f"RustStream({self.title!r}, {', '.join(map(repr, self.brokers))}, version={self.version!r})"

    def on_startup(self, hook: H) -> H:
        """Call the decorated function before anything connects. It may be async, and may take the app."""
        return self._add_hook("on_startup", hook)

    def after_startup(self, hook: H) -> H:
        """Call the decorated function once all subscriptions are open, before the first entry is read."""
        return self._add_hook("after_startup", hook)

    def on_shutdown(self, hook: H) -> H:
        """Call the decorated function when the app is told to stop, before it stops reading."""
        return self._add_hook("on_shutdown", hook)

    def after_shutdown(self, hook: H) -> H:
        """Call the decorated function once all is closed; also where the start failed after `on_startup`."""
        return self._add_hook("after_shutdown", hook)

    def health(self) -> Health:
        """Return whether the app makes progress, and what each subscription does."""
        return Health(self._app_state, [] if self._life is None else self._life.health())

    @property
    def life(self) -> Life | None:
        """Its open subscriptions; None while it does not run. For `ruststream.testing`."""
        return self._life

    def stop(self) -> None:
        """Ask `serve` or `run` to stop as SIGTERM does. Returns at once. To be called on the app's loop."""
        if self._stop_asked is not None:
            self._stop_asked.set()

    def run(self, log_level: str = "INFO") -> NoReturn:
        """Run until SIGTERM or SIGINT, and exit the process: 0 if all was worked off, else 1.

        Where nothing has set up logging, messages of this level and above go to stderr.
        """
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise ConfigError(
                "app.run() starts a loop of its own, and one is running here: `await app.serve()` instead"
            )
        plain_logging(log_level)
        sys.exit(asyncio.run(self._exit_code()))

    async def serve(self, *, signals: bool = False) -> int:
        """Run until told to stop: by `stop()`, by being cancelled, or by a signal.

        Args:
            signals: stop at SIGTERM and SIGINT, at once at a second one. Only in the main thread.

        Returns:
            0 if all was worked off, 1 if entries were left unfinished.

        Raises:
            RustStreamError: the start failed, or a subscription can't go on.
        """
        stop = self._stop_asked = asyncio.Event()
        clean = True
        with Signals(stop, lambda: self._app_state == "starting") if signals else nullcontext() as seen:
            try:
                await self._start(on_failure=stop.set)
                try:
                    await stop.wait()
                finally:
                    clean = await self._stop()
            except asyncio.CancelledError:
                if seen is None or not seen.cancelled():
                    raise
                clean = seen.count == 1
            finally:
                self._stop_asked = None
        if self._failure is not None:
            raise self._failure
        return 0 if clean else 1

    async def __aenter__(self) -> Self:
        """Start. If a subscription can't go on, the body is cancelled, and the error raised at its end."""
        self._host = asyncio.current_task()
        self._host_cancelled = False
        await self._start(on_failure=self._cancel_host)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop as SIGTERM does: running handlers get `drain_timeout` to end."""
        host, self._host = self._host, None
        ours = False
        if self._host_cancelled and host is not None and host is asyncio.current_task():
            if not isinstance(error, asyncio.CancelledError):
                # The body ended by itself in the moment it was cancelled.
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            ours = host.uncancel() == 0
        await self._stop()
        if self._failure is not None and (error is None or (ours and isinstance(error, asyncio.CancelledError))):
            raise self._failure

    async def _start(self, on_failure: Callable[[], object]) -> None:
        if self._app_state not in ("stopped", "failed"):
            raise ConfigError(f"the app {self.title!r} is {self._app_state} already")
        self._app_state = "starting"
        self._failure, self._stuck, self._exits = None, False, AsyncExitStack()
        try:
            if self._lifespan is not None:
                made = await self._exits.enter_async_context(self._lifespan(self))
                self.state = self.state if made is None else made
            await self._call_hooks("on_startup")
            self._exits.push_async_callback(self._call_hooks_logged, "after_shutdown")
            self._life = life = Life(self.brokers, self.state, self.stage)
            await life.open()
            await self._call_hooks("after_startup")
            life.start()
        except BaseException as error:
            await self._unwind("stopped" if isinstance(error, asyncio.CancelledError) else "failed")
            raise
        self._app_state = "running"
        self._watch = asyncio.ensure_future(self._watch_subscriptions(life, on_failure))
        if life.names:
            _log.info("%s %s is running: %s", self.title, self.version, ", ".join(life.names))
        else:
            _log.warning("%s %s is running without subscriptions: it will only publish", self.title, self.version)

    async def _stop(self) -> bool:
        """Drain and close. Whether all was worked off; a cancellation cuts it short."""
        life = self._life
        if life is None:
            return True
        self._app_state = "stopping"
        deadline = asyncio.get_running_loop().time() + self.drain_timeout
        if self._watch is not None:
            self._watch.cancel()
        try:
            clean = await self._call_hooks_logged("on_shutdown", deadline)
            return await life.drain(deadline) and clean
        except asyncio.CancelledError:
            life.cut_short()
            raise
        finally:
            await self._unwind("stopped" if self._failure is None else "failed")

    async def _unwind(self, state: AppState) -> None:
        """Undo what a start did, in reverse. Errors on the way are logged, so that none hides what came before."""
        life, self._life = self._life, None
        try:
            if life is not None:
                await life.close()
                self._stuck = life.stuck
        finally:
            self._app_state = state
            try:
                await self._exits.aclose()
            except Exception:  # noqa: BLE001 - a user's context manager
                _log.exception("%s: leaving lifespan failed", self.title)

    async def _watch_subscriptions(self, life: Life, on_failure: Callable[[], object]) -> None:
        name, error = await life.failure()
        _log.error("subscription %s can't go on, the app stops: %s", name, error)
        self._failure = error
        on_failure()

    def _cancel_host(self) -> None:
        if self._host is not None:
            self._host_cancelled = True
            self._host.cancel()

    def _add_hook(self, name: str, hook: H) -> H:
        self._hooks[name].append(_with_app(hook, name))
        return hook

    async def _call_hooks(self, name: str) -> None:
        for hook in self._hooks[name]:
            result = hook(self)
            if inspect.isawaitable(result):
                await result

    async def _call_hooks_logged(self, name: str, deadline: float | None = None) -> bool:
        """Call hooks on the way down, where an error must not stop the stopping. Whether there was none."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._call_hooks(name)
        except Exception:  # noqa: BLE001 - a user's hook
            _log.exception("%s: a hook of %s failed", self.title, name)
            return False
        return True

    async def _exit_code(self) -> int:
        try:
            code = await self.serve(signals=True)
        except RustStreamError as error:
            _log.error("%s: %s", self.title, error)
            code = 1
        except Exception:  # noqa: BLE001 - the process ends; what of is in the log
            _log.exception("%s ends", self.title)
            code = 1
        if self._stuck:
            _log.error("%s: handlers that do not end are left behind", self.title)
            leave_now(code or 1)
        return code


def _with_app(hook: Callable[..., Any], option: str) -> Callable[[RustStream], Any]:
    """Return the hook as a function of the app, whether it takes the app or nothing."""
    if not callable(hook):
        raise ConfigError(f"{option} takes a function, not {hook!r}")
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError):  # a builtin
        return lambda _app: hook()
    for arguments in ((), (None,)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return hook if arguments else lambda _app: hook()
    raise ConfigError(f"{option}: {hook!r} must take no parameters, or the app alone")
