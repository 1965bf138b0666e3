"""Codecs and keys."""

from typing import Any

import msgspec
import pytest

from ruststream.codec import (
    AutoCodec,
    Codec,
    JsonCodec,
    MsgpackCodec,
    codec_of,
    encoded,
    key_bytes,
    type_name,
)
from ruststream.errors import ConfigError
from unit.messages import Payment, PaymentData


class Pickled:
    content_type = "application/x-pickle"

    def encode(self, message):
        return repr(message).encode()

    def decoder(self, payload_type):
        return lambda payload: payload_type(payload.decode())


@pytest.mark.parametrize("codec", [JsonCodec(), MsgpackCodec(), AutoCodec()])
def test_what_is_encoded_decodes(codec):
    payment = Payment(1, "a", amount=1.5)
    assert codec.decoder(Payment)(codec.encode(payment)) == payment
    assert isinstance(codec, Codec)


@pytest.mark.parametrize("codec", [JsonCodec(), MsgpackCodec(), AutoCodec()])
@pytest.mark.parametrize("payload_type", [complex, type("Model", (), {}), str | bytes, "Payment", int | complex])
def test_a_type_that_msgspec_does_not_know_is_refused(codec, payload_type):
    with pytest.raises(ConfigError, match="can't decode into"):
        codec.decoder(payload_type)


def test_codecs_have_names():
    assert isinstance(codec_of("json"), JsonCodec)
    assert isinstance(codec_of("msgpack"), MsgpackCodec)
    assert isinstance(codec_of("auto"), AutoCodec)
    mine = Pickled()
    assert codec_of(mine) is mine


@pytest.mark.parametrize("value", ["yaml", None, 1, Pickled, object(), JsonCodec])
def test_something_else_is_no_codec(value):
    with pytest.raises(ConfigError, match="codec must be"):
        codec_of(value)


@pytest.mark.parametrize(
    "content_type", [None, "application/json", "Application/JSON; charset=utf-8", "application/x+json"]
)
def test_auto_takes_json_by_content_type(content_type):
    assert AutoCodec().selector(PaymentData)(content_type)(b'{"id": 1}') == PaymentData(1)


@pytest.mark.parametrize("content_type", ["application/msgpack", "application/x-msgpack", "application/vnd.msgpack"])
def test_auto_takes_messagepack_by_content_type(content_type):
    payload = msgspec.msgpack.encode({"id": 1})
    assert AutoCodec().selector(PaymentData)(content_type)(payload) == PaymentData(1)


@pytest.mark.parametrize("content_type", ["text/plain", "", "application/pickle"])
def test_auto_refuses_a_content_type_that_it_does_not_know(content_type):
    with pytest.raises(ValueError, match="content-type"):
        AutoCodec().selector(PaymentData)(content_type)


def test_bytes_and_raw_are_payloads_already():
    assert encoded(b"\xff", JsonCodec()) == (b"\xff", "application/octet-stream")
    assert encoded(bytearray(b"a"), JsonCodec()) == (b"a", "application/octet-stream")
    assert encoded(msgspec.Raw(b'{"a":1}'), JsonCodec()) == (b'{"a":1}', "application/json")
    assert encoded("text", JsonCodec()) == (b'"text"', "application/json")
    assert encoded({"a": 1}, Pickled()) == (b"{'a': 1}", "application/x-pickle")


@pytest.mark.parametrize(
    ("key", "wire"),
    [(None, None), (b"\xff", b"\xff"), ("acc-ä", "acc-ä".encode()), (12, b"12"), (bytearray(b"a"), b"a")],
)
def test_keys_are_bytes_on_the_wire(key, wire):
    assert key_bytes(key, "key") == wire


@pytest.mark.parametrize("key", [1.5, True, ("a",), object()])
def test_something_else_is_no_key(key):
    with pytest.raises(ConfigError, match="key must be"):
        key_bytes(key, "key")


@pytest.mark.parametrize(
    ("value", "name"), [(Payment, "Payment"), (Any, "Any"), (list[int], "list"), (int | None, "int | None")]
)
def test_types_have_names(value, name):
    assert name in type_name(value)
