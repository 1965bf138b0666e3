"""Reading a handler's signature."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pytest

from ruststream.context import Context, Header, Headers
from ruststream.errors import ConfigError
from ruststream.signature import Argument, handler_name, read_signature

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTypeCheckers


class Payment(msgspec.Struct):
    id: int


class Meta(msgspec.Struct):
    tenant: str


async def payload_only(payment: Payment): ...
async def bare(payment): ...
async def with_context(payment: Payment, ctx: Context): ...
async def context_first(ctx: Context, payment: Payment): ...
async def context_only(ctx: Context): ...
async def context_by_name(payment: Payment, *, ctx: Context | None = None): ...
async def with_headers(
    payment: bytes, tenant: Annotated[str, Header("X-Tenant")], meta: Annotated[Meta, Headers()]
): ...
async def with_default(payment: Payment, retries: int = 3, *, dry_run: bool = False): ...
async def payload_with_default(payment: Payment = None): ...
async def context_and_default(ctx: Context, retries: int = 3): ...
async def constrained(amount: Annotated[int, msgspec.Meta(ge=0), "cents"]): ...
def in_a_thread(payment: Payment): ...


def roles(handler: Any) -> list[tuple[str, str, Any, int | None]]:
    return [(found.name, found.role, found.type, found.position) for found in read_signature(handler).arguments]


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (payload_only, [("payment", "payload", Payment, 0)]),
        (bare, [("payment", "payload", Any, 0)]),
        (with_context, [("payment", "payload", Payment, 0), ("ctx", "context", Context, 1)]),
        (context_first, [("ctx", "context", Context, 0), ("payment", "payload", Payment, 1)]),
        (context_only, [("ctx", "context", Context, 0)]),
        (context_by_name, [("payment", "payload", Payment, 0), ("ctx", "context", Context, None)]),
        (with_default, [("payment", "payload", Payment, 0)]),
        (payload_with_default, [("payment", "payload", Payment, 0)]),
        (context_and_default, [("ctx", "context", Context, 0)]),
        (constrained, [("amount", "payload", Annotated[int, msgspec.Meta(ge=0), "cents"], 0)]),
    ],
)
def test_parameters_find_their_part(handler, expected):
    assert roles(handler) == expected


def test_headers_are_asked_for_by_markers():
    _, tenant, meta = read_signature(with_headers).arguments
    assert tenant == Argument("tenant", "header", str, "x-tenant")
    assert meta == Argument("meta", "headers", Meta)


def test_a_constraint_beside_the_marker_is_kept():
    async def handler(payment: bytes, n: Annotated[int, msgspec.Meta(ge=0), Header("n")] = 1): ...

    argument = read_signature(handler).arguments[1]
    assert argument.type == Annotated[int, msgspec.Meta(ge=0)]
    assert argument.has_default


class Service:
    async def method(self, payment: Payment, ctx: Context): ...
    @staticmethod
    async def static(payment: Payment): ...
    @classmethod
    async def of_class(cls, payment: Payment): ...
    async def __call__(self, payment: Payment): ...


class InThread:
    def __call__(self, payment: Payment): ...


def decorated(handler):
    @functools.wraps(handler)
    async def wrapper(*args, **kwargs):
        return await handler(*args, **kwargs)

    return wrapper


async def with_dependency(db: str, payment: Payment, ctx: Context): ...


@pytest.mark.parametrize(
    ("handler", "name", "is_async", "parts"),
    [
        (Service().method, "method", True, "payload context"),
        (Service.static, "static", True, "payload"),
        (Service().of_class, "of_class", True, "payload"),
        (Service(), "Service", True, "payload"),
        (InThread(), "InThread", False, "payload"),
        (in_a_thread, "in_a_thread", False, "payload"),
        (decorated(with_context), "with_context", True, "payload context"),
        (functools.partial(with_dependency, "db"), "with_dependency", True, "payload context"),
        (functools.partial(functools.partial(with_dependency, "db")), "with_dependency", True, "payload context"),
        (lambda payment: payment, "<lambda>", False, "payload"),
    ],
)
def test_every_kind_of_callable_is_a_handler(handler, name, is_async, parts):
    signature = read_signature(handler)
    assert signature.name == handler_name(handler) == name
    assert signature.is_async is is_async
    assert " ".join(argument.role for argument in signature.arguments) == parts
    assert signature.payload is None or signature.payload.type in (Payment, Any)


def test_an_argument_bound_by_name_is_left_alone():
    async def handler(payment: Payment, db: str): ...

    assert roles(functools.partial(handler, db="x")) == [("payment", "payload", Payment, 0)]


def test_classes_made_inside_a_function_are_found():
    class Local(msgspec.Struct):
        id: int

    async def handler(payment: Local, ctx: Context): ...

    assert read_signature(handler).payload.type is Local


def test_an_annotation_that_can_not_be_resolved_is_explained():
    async def handler(payment: OnlyForTypeCheckers): ...

    with pytest.raises(ConfigError, match=r"handler handler.*OnlyForTypeCheckers.*TYPE_CHECKING"):
        read_signature(handler)


def test_the_annotation_of_the_result_may_be_anything():
    async def handler(payment: Payment) -> OnlyForTypeCheckers: ...

    assert read_signature(handler).payload.type is Payment


class Depends:
    pass


async def variadic(*args): ...
async def variadic_by_name(payment: Payment, **kwargs): ...
async def positional_only(payment: Payment, /): ...
async def two_payloads(payment: Payment, second: Meta): ...
async def not_annotated(payment: Payment, ctx): ...
async def by_name_alone(*, payment: Payment): ...
async def dependency(payment: Payment, db: Annotated[str, Depends()]): ...
async def marked_payload(payment: Annotated[Payment, Depends()]): ...
async def uncalled_header(payment: Payment, tenant: Annotated[str, Header]): ...
async def uncalled_headers(payment: Payment, tenant: Annotated[Meta, Headers]): ...
async def marker_as_default(payment: Payment, tenant: str = Header("tenant")): ...
async def two_markers(payment: Payment, tenant: Annotated[str, Header("a"), Header("b")]): ...


@pytest.mark.parametrize(
    ("handler", "parameter", "why"),
    [
        (variadic, "args", "functools.wraps"),
        (variadic_by_name, "kwargs", "functools.wraps"),
        (positional_only, "payment", "positional-only"),
        (two_payloads, "second", "nothing fills Meta"),
        (not_annotated, "ctx", "neither an annotation nor a default"),
        (by_name_alone, "payment", "nothing fills Payment"),
        (dependency, "db", "nothing fills"),
        (marked_payload, "payment", "nothing is known of"),
        (uncalled_header, "tenant", "is called"),
        (uncalled_headers, "tenant", "is called"),
        (marker_as_default, "tenant", "annotation"),
        (two_markers, "tenant", "one marker at most"),
    ],
)
def test_what_nothing_can_fill_is_refused_with_both_names(handler, parameter, why):
    with pytest.raises(ConfigError, match=why) as caught:
        read_signature(handler)
    message = str(caught.value)
    assert message.startswith(f"handler {handler.__name__}, parameter {parameter}: ")
    assert "Context" in message
    assert "Header" in message


async def generator(payment: Payment):
    yield payment


def plain_generator(payment: Payment):
    yield payment


async def nothing(): ...


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (generator, "yields"),
        (plain_generator, "yields"),
        (nothing, "takes no parameters"),
        (Service, "not a handler"),
        (None, "not a handler"),
        ("service.handler", "not a handler"),
        (int, "not a handler"),
    ],
)
def test_what_is_no_handler_is_refused(handler, why):
    with pytest.raises(ConfigError, match=why):
        read_signature(handler)
