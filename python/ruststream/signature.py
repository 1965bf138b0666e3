"""What a handler wants: its signature, read once when it is registered."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NoReturn, TypeAlias, Union

import msgspec

from ruststream.codec import type_name
from ruststream.context import BatchContext, Context, Header, Headers
from ruststream.errors import ConfigError
from ruststream.publisher import Publisher

Handler: TypeAlias = Callable[..., Any]
Role: TypeAlias = Literal["payload", "context", "batch", "header", "headers", "publisher"]

_POSSIBLE: Final = (
    "a handler takes its payload first, and then parameters annotated Context, Publisher, "
    'Annotated[T, Header("name")] or Annotated[T, Headers()]; others need a default'
)
_MISSING: Final = inspect.Parameter.empty
_CONTEXTS: Final[tuple[tuple[type, Role], ...]] = ((Context, "context"), (BatchContext, "batch"))


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter that is filled for each delivery."""

    name: str
    role: Role
    type: Any
    """The type to decode into, without the marker."""
    header: str = ""
    """The header's name, where the role is `header`."""
    has_default: bool = False
    position: int | None = None
    """Its place in a call by position; None for one that is passed by name alone."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a handler wants, read once when it is registered."""

    handler: Handler
    name: str
    """The handler's name, for logs and errors."""
    is_async: bool
    """Whether calling it gives a coroutine. Otherwise it runs in a thread."""
    arguments: tuple[Argument, ...]
    """In the order of the parameters."""
    returns: Any = None
    """The annotation of the result; None where there is none, or where it can't be resolved."""

    @property
    def payload(self) -> Argument | None:
        """The parameter that takes the payload; None where the handler looks at its context alone."""
        return next((argument for argument in self.arguments if argument.role == "payload"), None)


def read_signature(handler: Any) -> Signature:
    """Read what a handler wants.

    Raises:
        ConfigError: not a function, method or callable object, or a parameter that nothing can fill.
    """
    name = handler_name(handler)
    if not callable(handler) or inspect.isclass(handler):
        raise ConfigError(f"{handler!r} is not a handler: give a function, a method or a callable object")
    function = _function_of(handler)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"handler {name} yields; it must return its outcome instead")
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"handler {name} has no signature that can be read: {error}") from error
    hints = _hints(function, name, {parameter.name for parameter in parameters})
    arguments: list[Argument] = []
    for position, parameter in enumerate(parameters):
        seen = any(argument.role == "payload" for argument in arguments)
        found = _Parameter(name, parameter, hints.get(parameter.name, _MISSING), position)
        argument = found.argument(payload_seen=seen)
        if argument is not None:
            arguments.append(argument)
    if not arguments:
        raise ConfigError(f"handler {name} takes no parameters: {_POSSIBLE}")
    return Signature(handler, name, inspect.iscoroutinefunction(function), tuple(arguments), _returns(function))


def handler_name(handler: object) -> str:
    """Return how logs and errors name a handler."""
    inner = _without_partial(handler)
    return str(getattr(inner, "__name__", type(inner).__name__))


def _without_partial(handler: Any) -> Any:
    while isinstance(handler, functools.partial):
        handler = handler.func
    return handler


def _function_of(handler: Handler) -> Handler:
    inner: Handler = _without_partial(handler)
    return inner if inspect.isroutine(inner) else type(inner).__call__


@dataclass(frozen=True, slots=True)
class _Parameter:
    """One parameter of a handler, to be matched with what can fill it."""

    handler: str
    parameter: inspect.Parameter
    hint: Any
    position: int

    def argument(self, *, payload_seen: bool) -> Argument | None:
        """Return what fills it; None leaves it to its default."""
        self._check_kind()
        bare, metadata = _unwrapped(self.hint)
        marked = self._marked(bare, metadata)
        if marked is not None:
            return marked
        by_position = self.parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        name, has_default = self.parameter.name, self.parameter.default is not _MISSING
        for context, role in _CONTEXTS:
            if _is_context(bare, context):
                return Argument(name, role, context, position=self.position if by_position else None)
        if bare is Publisher or typing.get_origin(bare) is Publisher:
            wanted = (*typing.get_args(bare), Any)[0]
            return Argument(name, "publisher", wanted, position=self.position if by_position else None)
        if payload_seen or not by_position or (has_default and self.position > 0):
            if has_default:
                return None
            if self.hint is _MISSING:
                self._refuse("it has neither an annotation nor a default")
            self._refuse(f"nothing fills {type_name(self.hint)}")
        for item in metadata:
            if not isinstance(item, (msgspec.Meta, str)):
                self._refuse(f"nothing is known of {item!r}")
        return Argument(name, "payload", Any if self.hint is _MISSING else self.hint, position=self.position)

    def _check_kind(self) -> None:
        if self.parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            self._refuse("*args and **kwargs can't be filled (does a decorator lack functools.wraps?)")
        if self.parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            self._refuse("positional-only parameters can't be filled")
        if isinstance(self.parameter.default, (Header, Headers)):
            self._refuse(f"a marker belongs into the annotation: Annotated[T, {self.parameter.default!r}]")

    def _marked(self, bare: Any, metadata: tuple[Any, ...]) -> Argument | None:
        """Return the argument of a parameter with a marker; None where there is no marker."""
        if Header in metadata or Headers in metadata:
            self._refuse('a marker is called: Header("name"), Headers()')
        markers = [item for item in metadata if isinstance(item, (Header, Headers))]
        if not markers:
            return None
        if len(markers) > 1:
            self._refuse(f"one marker at most, not {markers!r}")
        kept = tuple(item for item in metadata if item is not markers[0])
        wanted = Annotated[(bare, *kept)] if kept else bare
        header = markers[0].name if isinstance(markers[0], Header) else None
        has_default = self.parameter.default is not _MISSING
        if header is None:
            return Argument(self.parameter.name, "headers", wanted)
        return Argument(self.parameter.name, "header", wanted, header, has_default)

    def _refuse(self, why: str) -> NoReturn:
        raise ConfigError(f"handler {self.handler}, parameter {self.parameter.name}: {why}; {_POSSIBLE}")


def _unwrapped(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without `Annotated`, and the metadata."""
    if typing.get_origin(hint) is Annotated:
        return hint.__origin__, hint.__metadata__
    return hint, ()


def _is_context(hint: Any, context: type) -> bool:
    """Whether this is the class, or `Context | None` for handlers that tests call without one."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return set(typing.get_args(hint)) == {context, type(None)}
    return hint is context


def _hints(function: Handler, name: str, wanted: set[str]) -> Mapping[str, Any]:
    """Resolve the annotations of the parameters. That of the result may be anything."""
    source = inspect.unwrap(function)
    source = getattr(source, "__func__", source)
    scope = types.SimpleNamespace()
    try:
        annotations = getattr(source, "__annotations__", {})
        scope.__annotations__ = {key: hint for key, hint in annotations.items() if key in wanted}
        global_names = getattr(source, "__globals__", {})
        try:
            return typing.get_type_hints(scope, global_names, include_extras=True)
        except NameError:
            # A class made inside a function, named by a string: look where the handler was written.
            return typing.get_type_hints(scope, global_names, _local_names(), include_extras=True)
    except Exception as error:
        raise ConfigError(
            f"handler {name}: its annotations can't be resolved ({error}); what they name must be importable at run "
            f"time (not only under TYPE_CHECKING) and be defined before the handler"
        ) from error


def _returns(function: Handler) -> Any:
    """Return the annotation of the result, if it can be resolved: it only tells beforehand where replies go."""
    with contextlib.suppress(ConfigError):
        return _hints(function, "", {"return"}).get("return")
    return None


def _local_names() -> dict[str, Any]:
    """Return the local names of whoever registers the handler."""
    package = __name__.partition(".")[0]
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented; inspect.stack() reads source files
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame = frame.f_back
    return dict(frame.f_locals) if frame is not None else {}
