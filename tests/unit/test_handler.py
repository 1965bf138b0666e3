"""Call plans: from a delivery to the call of its handler."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import msgspec
import pytest

from ruststream.arguments import undecodable
from ruststream.context import Context
from ruststream.errors import ConfigError, DecodeError
from unit.plans import Model, call, plan_of


class Payment(msgspec.Struct):
    id: int
    account: str = ""


async def payload_only(payment: Payment):
    return payment


async def with_context(payment: Payment, ctx: Context):
    return payment, ctx


async def context_first(ctx: Context, payment: Payment):
    return payment, ctx


async def context_only(ctx: Context):
    return ctx


async def context_by_name(payment: Payment, *, ctx: Context):
    return payment, ctx


async def test_a_payload_alone(envelope):
    plan = plan_of(payload_only)
    assert await call(plan, envelope(b'{"id": 1}')) == Payment(1)
    assert (plan.shape, plan.wants_context, plan.is_async) == ("payload", False, True)
    assert plan.payload_type is Payment
    assert plan.decode(b'{"id": 1}') == Payment(1)
    assert plan.threads is None


@pytest.mark.parametrize(
    ("handler", "shape"), [(with_context, "payload_context"), (context_first, "other"), (context_by_name, "other")]
)
async def test_payload_and_context(envelope, handler, shape):
    delivery = envelope(b'{"id": 1}')
    plan = plan_of(handler)
    assert await call(plan, delivery) == (Payment(1), delivery)
    assert plan.shape == shape
    assert plan.wants_context


async def test_a_context_alone_decodes_nothing(envelope):
    delivery = envelope(b"\xff not json")
    plan = plan_of(context_only)
    assert await call(plan, delivery) is delivery
    assert plan.decode is plan.payload_type is plan.extract(delivery) is None


async def test_invoke_prepares_the_call_before_anything_is_awaited(envelope):
    coroutine = plan_of(payload_only).invoke(envelope(b'{"id": 1}'))
    assert asyncio.iscoroutine(coroutine)
    assert await coroutine == Payment(1)
    with pytest.raises(DecodeError):
        plan_of(payload_only).invoke(envelope(b"{}"))


def taking(annotation):
    async def handler(payload: annotation):
        return payload

    return handler


@dataclass
class PaymentData:
    id: int


class PaymentDict(TypedDict):
    id: int


@pytest.mark.parametrize(
    ("annotation", "payload", "expected"),
    [
        (Any, b'{"id": 1}', {"id": 1}),
        (dict[str, int], b'{"id": 1}', {"id": 1}),
        (PaymentData, b'{"id": 1}', PaymentData(1)),
        (PaymentDict, b'{"id": 1}', {"id": 1}),
        (list[int], b"[1, 2]", [1, 2]),
        (int, b"7", 7),
        (Payment | None, b"null", None),
        (bytes, b"\xff\x00", b"\xff\x00"),
        (bytes, b"", b""),
        (bytearray, b"\xff", bytearray(b"\xff")),
        (bytes | None, b"\xff", b"\xff"),
        (Annotated[bytes, msgspec.Meta(max_length=3)], b"\xff", b"\xff"),
        (Annotated[int, msgspec.Meta(ge=0)], b"7", 7),
    ],
)
async def test_payload_types(envelope, annotation, payload, expected):
    result = await call(plan_of(taking(annotation)), envelope(payload))
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize("payload", [b'{"id":1}', b""])
async def test_raw_stays_raw(envelope, payload):
    result = await call(plan_of(taking(msgspec.Raw)), envelope(payload))
    assert type(result) is msgspec.Raw
    assert bytes(result) == payload


async def test_a_payload_without_annotation_is_anything(envelope):
    async def handler(payload):
        return payload

    assert await call(plan_of(handler), envelope(b"[1]")) == [1]


async def test_messagepack(envelope):
    assert await call(plan_of(payload_only, codec="msgpack"), envelope(msgspec.msgpack.encode({"id": 1}))) == Payment(1)


async def test_auto_goes_by_each_entrys_content_type(envelope):
    plan = plan_of(payload_only, codec="auto")
    packed = msgspec.msgpack.encode({"id": 2})
    assert plan.decode is None
    assert await call(plan, envelope(b'{"id": 1}')) == Payment(1)
    assert await call(plan, envelope(packed, {"Content-Type": "application/msgpack"})) == Payment(2)
    with pytest.raises(DecodeError, match="text/csv"):
        plan.invoke(envelope(b"1,a", {"content-type": "text/csv"}))
    assert await call(plan_of(taking(bytes), codec="auto"), envelope(b"1", {"content-type": "text/csv"})) == b"1"


class Upper:
    content_type = "text/upper"

    def encode(self, message):
        return message.encode()

    def decoder(self, payload_type):
        def decode(payload):
            if payload == b"boom":
                raise ArithmeticError("boom")
            return payload_type(payload.decode().upper())

        return decode


async def test_a_codec_of_ones_own_decides_about_types(envelope):
    plan = plan_of(taking(Model), codec=Upper())
    assert (await call(plan, envelope(b"abc"))).text == "ABC"
    assert (await call(plan, envelope(b""))).text == ""
    with pytest.raises(DecodeError, match="boom") as caught:
        plan.invoke(envelope(b"boom"))
    assert isinstance(caught.value.__cause__, ArithmeticError)


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b'{"id": "x"}', b"\xff"])
@pytest.mark.parametrize("handler", [payload_only, with_context, context_first])
def test_a_payload_that_does_not_decode_is_explained(envelope, payload, handler):
    with pytest.raises(DecodeError) as caught:
        plan_of(handler).invoke(envelope(payload))
    error = caught.value
    for part in ("5-1", "payments", "ledger", handler.__name__, "Payment", "codec=", "fields=", "on_decode_error"):
        assert part in str(error)
    assert isinstance(error.__cause__, msgspec.DecodeError)
    assert (error.stream, error.group, str(error.entry_id), error.handler) == (
        "payments", "ledger", "5-1", handler.__name__,
    )  # fmt: skip


async def test_a_foreign_entry_is_read_field_by_field(foreign):
    delivery = foreign((b"id", b"7"), (b"account", b"a"))
    assert await call(plan_of(payload_only), delivery) == Payment(7, "a")
    assert await call(plan_of(with_context), delivery) == (Payment(7, "a"), delivery)
    assert await call(plan_of(payload_only, codec="auto"), delivery) == Payment(7, "a")
    assert await call(plan_of(payload_only, codec="msgpack"), delivery) == Payment(7, "a")


async def test_a_foreign_entry_may_hold_the_payload_in_one_field(foreign, envelope):
    plan = plan_of(payload_only, fields="body")
    assert await call(plan, foreign((b"type", b"x"), (b"body", b'{"id": 7}'))) == Payment(7)
    assert await call(plan, envelope(b'{"id": 8}')) == Payment(8)
    assert await call(plan_of(taking(bytes), fields="body"), foreign((b"body", b"\xff"))) == b"\xff"
    with pytest.raises(DecodeError, match="'body'"):
        plan.invoke(foreign((b"id", b"7")))


def test_a_foreign_entry_may_be_refused(foreign):
    with pytest.raises(DecodeError, match="_payload"):
        plan_of(payload_only, fields="envelope").invoke(foreign((b"id", b"7")))


@pytest.mark.parametrize("annotation", [bytes, msgspec.Raw, int, list[int]])
def test_fields_do_not_become_what_has_no_fields(foreign, annotation):
    with pytest.raises(DecodeError, match="fields can't become"):
        plan_of(taking(annotation)).invoke(foreign((b"id", b"7")))


def test_a_foreign_entry_that_does_not_fit_is_explained(foreign):
    with pytest.raises(DecodeError, match=r"Payment.*id"):
        plan_of(payload_only).invoke(foreign((b"account", b"a")))


def test_a_payload_that_can_never_decode_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"handler handler, parameter payload: .*Model"):
        plan_of(taking(Model))


async def test_a_def_handler_runs_in_a_thread(envelope):
    def handler(payment: Payment, ctx: Context):
        return payment, ctx

    delivery = envelope(b'{"id": 1}')
    plan = plan_of(handler, workers=2)
    assert await call(plan, delivery) == (Payment(1), delivery)
    assert not plan.is_async
    plan.threads.close()


def test_an_error_names_where_and_what(envelope):
    error = undecodable(envelope(b"x"), "post_payment", "it is no Payment", "change it")
    assert str(error) == (
        "entry 5-1 of stream 'payments' (group 'ledger') does not fit handler post_payment: it is no Payment; change it"
    )
