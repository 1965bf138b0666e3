"""The call plan of a handler: how each delivery becomes a call, with everything decided beforehand."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ruststream.arguments import DEFAULT, PayloadReader, argument_reader, publisher_of
from ruststream.codec import Codec, Decode, type_name
from ruststream.context import Context
from ruststream.errors import ConfigError
from ruststream.publisher import Publishes
from ruststream.signature import Handler, Signature
from ruststream.threads import HandlerThreads

Call: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]
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
    """Prepare one call and return its coroutine. Raises `DecodeError`. Of a handler that takes batches it is
    `invoke(messages, batch)`, after each message was decoded."""
    threads: HandlerThreads | None
    """Where a `def` handler runs."""


def make_plan(
    signature: Signature,
    codec: Codec,
    fields: str,
    workers: int,
    *,
    batch: bool = False,
    broker: Publishes | None = None,
) -> HandlerPlan:
    """Compile a handler's signature for one subscription.

    Args:
        signature: what the handler wants.
        codec: decodes the payloads.
        fields: how an entry without an envelope is read: `auto`, `envelope`, or a field's name.
        workers: how many threads a `def` handler gets.
        batch: whether the handler takes a list of messages.
        broker: what a `Publisher` parameter publishes through.

    Raises:
        ConfigError: the handler takes what a batch, or what one message, does not have; the codec or msgspec can't
            decode into a type that it asks for.
    """
    payload, name = signature.payload, signature.name
    payload_type = _payload_type(signature, batch=batch)
    decode: Decode | None = None
    extract: Callable[[Context], Any] = _no_payload
    if payload is not None:
        try:
            reader = PayloadReader(payload_type, codec, fields, name)
        except ConfigError as error:
            raise ConfigError(f"handler {name}, parameter {payload.name}: {error}") from error
        decode, extract = reader.decode, reader.extract
    threads = None if signature.is_async else HandlerThreads(workers, name)
    call = signature.handler if threads is None else threads.call(signature.handler)
    form: Shape = "other" if batch else _shape(signature)
    if batch:
        invoke = _invoke_batch(signature, call, broker)
    else:
        invoke = _invoke(signature, call, form, decode, extract, broker)
    return HandlerPlan(
        handler=signature.handler,
        name=name,
        is_async=signature.is_async,
        wants_context=any(argument.role == "context" for argument in signature.arguments),
        payload_type=payload_type,
        shape=form,
        decode=decode,
        extract=extract,
        invoke=invoke,
        threads=threads,
    )


def _payload_type(signature: Signature, *, batch: bool) -> Any:
    """Return what one message decodes into; None for a handler that takes none."""
    payload = signature.payload
    for argument in signature.arguments:
        where = f"handler {signature.name}, parameter {argument.name}"
        if argument.role == "batch" and not batch:
            raise ConfigError(f"{where}: a BatchContext is for subscribers with batch=")
        if batch and argument.role in ("context", "header", "headers"):
            raise ConfigError(f"{where}: a batch has many; take a BatchContext and look at its contexts")
    if not batch:
        return None if payload is None else payload.type
    if payload is None:
        raise ConfigError(f"handler {signature.name}: with batch= its first parameter takes list[T]")
    if payload.type in (list, Any):
        return Any
    if typing.get_origin(payload.type) not in (list, Sequence):
        raise ConfigError(
            f"handler {signature.name}, parameter {payload.name}: with batch= it takes list[T], "
            f"not {type_name(payload.type)}"
        )
    return typing.get_args(payload.type)[0]


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
    signature: Signature,
    call: Handler,
    form: Shape,
    decode: Decode | None,
    extract: Callable[[Context], Any],
    broker: Publishes | None,
) -> Call:
    if form == "payload" and decode is not None:
        return _invoke_payload(call, decode, extract)
    if form == "payload_context" and decode is not None:
        return _invoke_payload_context(call, decode, extract)
    readers = [
        (argument.name, argument_reader(argument, signature.name, extract, broker)) for argument in signature.arguments
    ]

    def invoke(ctx: Context) -> Coroutine[Any, Any, Any]:
        arguments = {}
        for name, read in readers:
            value = read(ctx)
            if value is not DEFAULT:
                arguments[name] = value
        return call(**arguments)  # type: ignore[no-any-return]

    return invoke


def _invoke_payload(call: Handler, decode: Decode, extract: Callable[[Context], Any]) -> Call:
    message = _message(decode, extract)
    return lambda ctx: call(message(ctx))


def _invoke_payload_context(call: Handler, decode: Decode, extract: Callable[[Context], Any]) -> Call:
    message = _message(decode, extract)
    return lambda ctx: call(message(ctx), ctx)


def _message(decode: Decode, extract: Callable[[Context], Any]) -> Callable[[Context], Any]:
    def message(ctx: Context) -> Any:
        payload = ctx.payload
        if payload:
            try:
                return decode(payload)
            except Exception:  # noqa: BLE001, S110 - whatever a codec raises: extract knows better, or says what is wrong
                pass
        return extract(ctx)

    return message


def _invoke_batch(signature: Signature, call: Handler, broker: Publishes | None) -> Call:
    publishers = [argument for argument in signature.arguments if argument.role == "publisher"]
    if publishers:
        made = {argument.name: publisher_of(argument, signature.name, broker) for argument in publishers}
        call = functools.partial(call, **made)
    others = [argument for argument in signature.arguments if argument.role == "batch"]
    if not others:
        return lambda messages, _batch: call(messages)
    if [argument.position for argument in others] == [1]:
        return call
    names = [argument.name for argument in others]
    return lambda messages, batch: call(messages, **dict.fromkeys(names, batch))
