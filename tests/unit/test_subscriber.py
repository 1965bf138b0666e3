"""Options of a subscriber, and their defaults."""

from typing import Any

import msgspec
import pytest

from ruststream.codec import codec_of
from ruststream.context import Context
from ruststream.errors import ConfigError
from ruststream.outcome import dead_letter, drop, leave, retry
from ruststream.policy import Backoff
from ruststream.redis.stream import RedisStream
from ruststream.registration import Registration


class Payment(msgspec.Struct):
    id: int
    account: str = ""


async def handler(payment: Payment, ctx: Context): ...


SOURCE = RedisStream.claiming("payments", min_idle=30, group="ledger")


def subscriber_of(source: Any = SOURCE, function: Any = handler, **options: Any):
    registration = Registration(source, function, options)
    return registration.subscriber("name", registration.source.attached(), codec_of("json"))


def test_the_defaults():
    made = subscriber_of()
    assert (made.name, made.stream, made.group) == ("name", "payments", "ledger")
    assert made.delay_key == "{payments}:ledger:delayed"
    assert (made.workers, made.by_key, made.key_of, made.max_in_flight) == (1, False, None, 800)
    assert made.codec is codec_of("json")
    assert made.on_error.outcome(ValueError()) is leave()
    assert made.on_decode_error is leave()
    assert made.backoff is None
    assert made.renew_stalled == 600
    assert made.plan.handler is handler


def test_in_flight_follows_count_and_workers():
    assert subscriber_of(RedisStream("s", group="g", count=10)).max_in_flight == 40
    assert subscriber_of(RedisStream("s", group="g", count=10), workers=50).max_in_flight == 200
    assert subscriber_of(max_in_flight=3, workers=3).max_in_flight == 3


def test_without_min_idle_nothing_is_renewed_until_it_is_known():
    made = subscriber_of(RedisStream("s", group="g"))
    assert made.renew_stalled is None
    renewed = made.renewed(10.0)
    assert (renewed.source.min_idle, renewed.renew_stalled, renewed.plan) == (10.0, 200.0, made.plan)
    assert subscriber_of(RedisStream("s", group="g"), renew_stalled=5).renewed(10.0).renew_stalled == 5


def test_options_are_kept():
    made = subscriber_of(
        workers=8,
        by_key=True,
        codec="msgpack",
        on_error={ValueError: drop()},
        on_decode_error=drop(),
        renew_stalled=7,
    )
    assert (made.workers, made.by_key, made.key_of) == (8, True, None)
    assert made.codec is codec_of("msgpack")
    assert made.on_error.outcome(ValueError()) is made.on_decode_error is drop()
    assert (made.backoff, made.renew_stalled) == (None, 7.0)


def test_attempts_are_capped_where_it_is_said_what_follows():
    made = subscriber_of(max_attempts=3, on_exhausted=drop())
    assert (made.max_attempts, made.on_exhausted) == (3, drop())
    assert subscriber_of().max_attempts is None
    with pytest.raises(ConfigError, match=r"max_attempts needs to know .* on_exhausted=drop\(\)"):
        subscriber_of(max_attempts=3)
    made = subscriber_of(max_attempts=3, dead_letter="dlq")
    assert made.on_exhausted is dead_letter()
    assert subscriber_of(max_attempts=3, dead_letter="dlq", on_exhausted=drop()).on_exhausted is drop()
    with pytest.raises(ConfigError, match=r"on_exhausted names dead_letter\(\): say where to"):
        subscriber_of(max_attempts=3, on_exhausted=dead_letter())


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "3", True])
def test_attempts_are_a_whole_number_of_one_at_least(wrong):
    with pytest.raises(ConfigError, match="max_attempts must be a whole number from 1"):
        subscriber_of(max_attempts=wrong, on_exhausted=drop())


@pytest.mark.parametrize("wrong", [leave(), retry(), "drop", drop])
def test_what_is_used_up_is_not_kept(wrong):
    with pytest.raises(ConfigError, match=r"on_exhausted must be dead_letter\(\) or drop"):
        subscriber_of(max_attempts=3, on_exhausted=wrong)


def test_what_follows_the_last_attempt_needs_a_last_attempt():
    with pytest.raises(ConfigError, match="needs max_attempts"):
        subscriber_of(on_exhausted=drop())


def test_a_backoff_is_kept_in_every_mode():
    backoff = Backoff(2, 4)
    made = Registration(RedisStream("s", group="g"), handler, {"backoff": backoff})
    assert made.subscriber("s", RedisStream("s", group="g"), codec_of("json")).backoff is backoff
    assert subscriber_of(backoff=backoff).backoff is backoff


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("workers", 0),
        ("workers", -1),
        ("workers", 1.5),
        ("workers", "8"),
        ("workers", True),
        ("workers", None),
        ("by_key", "account"),
        ("by_key", 1),
        ("max_in_flight", 0),
        ("max_in_flight", "x"),
        ("codec", "yaml"),
        ("codec", 1),
        ("on_error", retry),
        ("on_error", {ValueError: dead_letter()}),
        ("on_decode_error", "drop"),
        ("on_decode_error", dead_letter("x")),
        ("dead_letter", ""),
        ("dead_letter", True),
        ("dead_letter", b"payments.dlq"),
        ("backoff", 3),
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", "1"),
        ("renew_stalled", 0),
        ("renew_stalled", "1"),
        ("name", ""),
        ("name", 1),
    ],
)
def test_a_wrong_value_is_refused_by_the_options_name(option, value):
    with pytest.raises(ConfigError, match=option):
        subscriber_of(**{option: value})


def test_fewer_in_flight_than_workers_is_refused():
    with pytest.raises(ConfigError, match=r"max_in_flight \(2\) must be at least workers \(3\)"):
        subscriber_of(max_in_flight=2, workers=3)


def test_a_strict_order_is_one_of_keys():
    assert not subscriber_of(by_key=True, order="relaxed").strict
    assert subscriber_of(by_key=True, order="strict").strict
    assert subscriber_of(by_key=lambda payload: payload, order="strict").strict
    with pytest.raises(ConfigError, match="needs by_key"):
        subscriber_of(order="strict")
    with pytest.raises(ConfigError, match="order must be"):
        subscriber_of(by_key=True, order="fifo")


@pytest.mark.parametrize("option", ["wokers", "orders"])
def test_an_option_that_there_is_not_is_refused(option):
    with pytest.raises(ConfigError, match=f"a subscriber has no option {option}"):
        subscriber_of(**{option: 1})


def test_what_does_not_decode_is_a_dead_letter_where_there_is_a_stream_for_it():
    """Unless on_decode_error says otherwise."""
    assert subscriber_of().on_decode_error is leave()
    assert subscriber_of(dead_letter="payments.dlq").on_decode_error is dead_letter()
    assert subscriber_of(dead_letter="payments.dlq", on_decode_error=leave()).on_decode_error is leave()


def test_dead_letter_may_be_named_where_there_is_a_stream_for_it():
    made = subscriber_of(dead_letter="payments.dlq", on_error={ValueError: dead_letter()})
    assert made.on_error.outcome(ValueError()) is dead_letter()
    for options in ({"on_error": {ValueError: dead_letter()}}, {"on_decode_error": dead_letter()}):
        with pytest.raises(ConfigError, match=r'say where to, for example dead_letter="payments\.dlq"'):
            subscriber_of(**options)


@pytest.mark.parametrize("name", ["payments", "{payments}:ledger:delayed"])
def test_dead_letters_go_to_a_stream_of_their_own(name):
    with pytest.raises(ConfigError, match="a stream of its own"):
        subscriber_of(dead_letter=name)


def test_a_decorator_that_was_not_called_is_explained():
    """`@broker.subscriber` above a handler takes the handler for its source."""
    with pytest.raises(ConfigError, match=r"name the stream of handler handler: @broker.subscriber\("):
        Registration(handler, handler, {})


@pytest.mark.parametrize("source", [None, 1, b"payments", object()])
def test_something_else_is_no_source(source):
    with pytest.raises(ConfigError, match="stream's name"):
        Registration(source, handler, {})


def test_the_handler_is_read_at_once():
    async def wrong(*args): ...

    with pytest.raises(ConfigError, match="handler wrong"):
        Registration(SOURCE, wrong, {})


@pytest.mark.parametrize(
    ("by_key", "key"),
    [
        (lambda payment: payment.account, b"acc"),
        (lambda payment: payment.account.encode(), b"acc"),
        (lambda payment: payment.id, b"1"),
        (lambda _payment: None, None),
    ],
)
def test_a_key_may_be_computed_from_the_payload(envelope, by_key, key):
    made = subscriber_of(by_key=by_key)
    assert made.by_key
    assert made.key_of(envelope(b'{"id": 1, "account": "acc"}')) == key


def test_an_entry_that_does_not_decode_has_no_key(envelope):
    assert subscriber_of(by_key=lambda payment: payment.account).key_of(envelope(b"{")) is None


def test_a_key_function_that_fails_is_not_hidden(envelope):
    with pytest.raises(AttributeError):
        subscriber_of(by_key=lambda payment: payment.nothing).key_of(envelope(b'{"id": 1}'))
    with pytest.raises(ConfigError, match="by_key"):
        subscriber_of(by_key=lambda _payment: 1.5).key_of(envelope(b'{"id": 1}'))
