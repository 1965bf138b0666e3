"""Call plans: headers by type."""

from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import msgspec
import pytest

from ruststream.context import Header, Headers
from ruststream.errors import ConfigError, DecodeError
from unit.plans import Model, call, plan_of


def headers_of(annotation):
    async def handler(payload: bytes, value: annotation):
        return value

    return handler


def optional_header(annotation, default):
    async def handler(payload: bytes, value: annotation = default):
        return value

    return handler


TENANT = {"X-Tenant": "12", "Flag": "true"}


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (Annotated[str, Header("x-tenant")], "12"),
        (Annotated[int, Header("X-TENANT")], 12),
        (Annotated[bytes, Header("x-tenant")], b"12"),
        (Annotated[bytes | None, Header("x-tenant")], b"12"),
        (Annotated[int | None, Header("x-tenant")], 12),
        (Annotated[bool, Header("flag")], True),
        (Annotated[Any, Header("flag")], "true"),
        (Annotated[str | None, Header("none")], None),
    ],
)
async def test_a_header_by_type(envelope, annotation, expected):
    assert await call(plan_of(headers_of(annotation)), envelope(b"x", TENANT)) == expected


async def test_a_header_that_is_not_there_takes_the_default(envelope):
    assert await call(plan_of(optional_header(Annotated[int, Header("none")], 7)), envelope(b"x", TENANT)) == 7
    assert await call(plan_of(optional_header(Annotated[int, Header("x-tenant")], 7)), envelope(b"x", TENANT)) == 12


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        (Annotated[str, Header("none")], "no header 'none'"),
        (Annotated[int, Header("flag")], "header 'flag' is no int"),
        (Annotated[int, msgspec.Meta(ge=100), Header("x-tenant")], "header 'x-tenant' is no"),
    ],
)
def test_a_header_that_does_not_fit_is_explained(envelope, annotation, why):
    with pytest.raises(DecodeError, match=why) as caught:
        plan_of(headers_of(annotation)).invoke(envelope(b"x", TENANT))
    assert "on_decode_error" in str(caught.value)


class Meta(msgspec.Struct):
    x_tenant: int
    flag: bool = False
    missing: str = "none"
    trace: bytes = b""


class KebabMeta(msgspec.Struct, rename="kebab"):
    x_tenant: int


@dataclass
class MetaData:
    x_tenant: int


class MetaDict(TypedDict):
    x_tenant: int


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (Meta, Meta(12, flag=True)),
        (KebabMeta, KebabMeta(12)),
        (MetaData, MetaData(12)),
        (MetaDict, {"x_tenant": 12}),
        (dict[str, str], {"x-tenant": "12", "flag": "true"}),
        (dict[str, bytes], {"x-tenant": b"12", "flag": b"true"}),
        (Any, {"x-tenant": "12", "flag": "true"}),
    ],
)
async def test_all_headers_by_type(envelope, annotation, expected):
    assert await call(plan_of(headers_of(Annotated[annotation, Headers()])), envelope(b"x", TENANT)) == expected


async def test_a_bytes_field_takes_the_headers_bytes(envelope):
    delivery = envelope(b"x", {"x-tenant": "1"})
    delivery.fields.append((b"h:trace", b"\xff"))
    assert (await call(plan_of(headers_of(Annotated[Meta, Headers()])), delivery)).trace == b"\xff"


def test_headers_that_do_not_fit_are_explained(envelope):
    with pytest.raises(DecodeError, match=r"headers are no Meta.*x_tenant"):
        plan_of(headers_of(Annotated[Meta, Headers()])).invoke(envelope(b"x"))


@pytest.mark.parametrize(
    "annotation",
    [
        Annotated[complex, Header("a")],
        Annotated[str | bytes, Header("a")],
        Annotated[int, Headers()],
        Annotated[list[str], Headers()],
        Annotated[Model, Headers()],
    ],
)
def test_headers_that_can_never_fit_are_refused_at_once(annotation):
    with pytest.raises(ConfigError, match="parameter value"):
        plan_of(headers_of(annotation))
