"""The call plan of a handler: how each delivery becomes a call, with everything decided beforehand."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ruststream.arguments import DEFAULT, PayloadReader, argument_reader
from ruststream.codec import Codec, Decode
from ruststream.context import Context
from ruststream.errors import ConfigError
from ruststream.signature import Handler, Signature
from ruststream.threads import HandlerThreads

Call: TypeAlias = Callable[[Context], Coroutine[Any, Any, Any]]
Shape: TypeAlias = Literal["payload", "payload_context", "other"]


@dataclass(frozen=True, slots=True, eq=False)
class HandlerPlan:
    """How the deliveries of one subscription reach their handler."""

    handler: Handler
    """The user's function."""
    name: str
    """The handler's name, for logs and errors."""
    is_async: bool
    """Whether the handler runs on the loop. Otherwise it runs in `threads`."""
    wants_context: bool
    """Whether a parameter takes the `Context`."""
    payload_type: Any
    """The type that payloads decode into; None together with `decode` where the handler takes no payload."""
    shape: Shape
    """The positional parameters. `payload` and `payload_context` allow `handler(decode(payload)[, ctx])`."""
    decode: Decode | None
    """Decodes a payload that is not empty; None where there is none to take, or where each entry's headers decide.

    What it raises is for `extract` to explain: call that with the same context.
    """
    extract: Callable[[Context], Any]
    """Return the decoded message of a delivery, whatever form the entry has. Raises `DecodeError`."""
    invoke: Call
    """Prepare one call and return its coroutine. Raises `DecodeError`."""
    threads: HandlerThreads | None
    """Where a `def` handler runs."""


def make_plan(signature: Signature, codec: Codec, fields: str, workers: int) -> HandlerPlan:
    """Compile a handler's signature for one subscription.

    Args:
        signature: what the handler wants.
        codec: decodes the payloads.
        fields: how an entry without an envelope is read: `auto`, `envelope`, or a field's name.
        workers: how many threads a `def` handler gets.

    Raises:
        ConfigError: the codec or msgspec can't decode into a type that the handler asks for.
    """
    payload, name = signature.payload, signature.name
    decode: Decode | None = None
    extract: Callable[[Context], Any] = _no_payload
    if payload is not None:
        try:
            reader = PayloadReader(payload.type, codec, fields, name)
        except ConfigError as error:
            raise ConfigError(f"handler {name}, parameter {payload.name}: {error}") from error
        decode, extract = reader.decode, reader.extract
    threads = None if signature.is_async else HandlerThreads(workers, name)
    call = signature.handler if threads is None else threads.call(signature.handler)
    form = _shape(signature)
    return HandlerPlan(
        handler=signature.handler,
        name=name,
        is_async=signature.is_async,
        wants_context=any(argument.role == "context" for argument in signature.arguments),
        payload_type=None if payload is None else payload.type,
        shape=form,
        decode=decode,
        extract=extract,
        invoke=_invoke(signature, call, form, decode, extract),
        threads=threads,
    )


def _no_payload(_ctx: Context) -> None:
    """Stand for the payload of a handler that takes none."""


def _shape(signature: Signature) -> Shape:
    match [(argument.role, argument.position) for argument in signature.arguments]:
        case [("payload", 0)]:
            return "payload"
        case [("payload", 0), ("context", 1)]:
            return "payload_context"
        case _:
            return "other"


def _invoke(
    signature: Signature, call: Handler, form: Shape, decode: Decode | None, extract: Callable[[Context], Any]
) -> Call:
    if form == "payload" and decode is not None:
        return _invoke_payload(call, decode, extract)
    if form == "payload_context" and decode is not None:
        return _invoke_payload_context(call, decode, extract)
    readers = [(argument.name, argument_reader(argument, signature.name, extract)) for argument in signature.arguments]

    def invoke(ctx: Context) -> Coroutine[Any, Any, Any]:
        arguments = {}
        for name, read in readers:
            value = read(ctx)
            if value is not DEFAULT:
                arguments[name] = value
        return call(**arguments)  # type: ignore[no-any-return]

    return invoke


def _invoke_payload(call: Handler, decode: Decode, extract: Callable[[Context], Any]) -> Call:
    def invoke(ctx: Context) -> Coroutine[Any, Any, Any]:
        try:
            message = decode(ctx.payload)
        except Exception:  # noqa: BLE001, S110 - whatever a codec raises: extract knows better, or says what is wrong
            pass
        else:
            return call(message)  # type: ignore[no-any-return]
        return call(extract(ctx))  # type: ignore[no-any-return]

    return invoke


def _invoke_payload_context(call: Handler, decode: Decode, extract: Callable[[Context], Any]) -> Call:
    def invoke(ctx: Context) -> Coroutine[Any, Any, Any]:
        try:
            message = decode(ctx.payload)
        except Exception:  # noqa: BLE001, S110 - as above
            pass
        else:
            return call(message, ctx)  # type: ignore[no-any-return]
        return call(extract(ctx), ctx)  # type: ignore[no-any-return]

    return invoke
