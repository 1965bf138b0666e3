"""Batch handlers as they are registered: what they may take, and the options that go with them."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

import msgspec
import pytest

from ruststream import BatchContext, Context, Header, Headers
from ruststream.codec import codec_of
from ruststream.errors import ConfigError
from ruststream.redis.stream import RedisStream
from ruststream.registration import Registration


class Job(msgspec.Struct):
    number: int


SOURCE = RedisStream.recovering("s", group="g", min_idle=30)


def made(handler, source=SOURCE, **options):
    return Registration(source, handler, {"batch": 10, **options}).subscriber("s", source.attached(), codec_of("json"))


async def jobs_alone(jobs: list[Job]): ...


async def jobs_and_batch(jobs: list[Job], batch: BatchContext): ...


async def batch_by_name(jobs: list[Job], *, batch: BatchContext | None): ...


async def sequence(jobs: Sequence[Job]): ...


@pytest.mark.parametrize("handler", [jobs_alone, jobs_and_batch, batch_by_name, sequence])
def test_the_element_is_what_is_decoded(handler):
    plan = made(handler).plan
    assert plan.payload_type is Job
    assert plan.decode is not None
    assert plan.decode(b'{"number":1}') == Job(1)


def test_a_bare_list_takes_anything():
    async def bare(jobs: list): ...
    async def unsaid(jobs): ...

    assert made(bare).plan.payload_type is made(unsaid).plan.payload_type is Any


async def test_the_call_has_the_list_and_the_batch_where_the_handler_wants_them():
    seen = []

    async def alone(jobs: list[Job]):
        seen.append((jobs,))

    async def second(jobs: list[Job], batch: BatchContext):
        seen.append((jobs, batch))

    async def by_name(jobs: list[Job], *, batch: BatchContext):
        seen.append((jobs, batch))

    def threaded(jobs: list[Job], batch: BatchContext):
        seen.append((jobs, batch))

    for handler in (alone, second, by_name, threaded):
        await made(handler).plan.invoke(["messages"], "batch")

    assert seen == [(["messages"],), *[(["messages"], "batch")] * 3]


def test_the_defaults_and_what_was_said():
    one = made(jobs_alone)
    assert (one.batch, one.batch_wait, one.max_in_flight) == (10, 0.05, 800)
    other = made(jobs_alone, batch=1000, batch_wait=timedelta(seconds=2), workers=3)
    assert (other.batch, other.batch_wait, other.max_in_flight) == (1000, 2.0, 4200)
    assert made(jobs_alone, batch=5, max_in_flight=5, batch_wait=0).max_in_flight == 5
    single = Registration(SOURCE, jobs_alone, {}).subscriber("s", SOURCE.attached(), codec_of("json"))
    assert single.batch is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 0}, "batch"),
        ({"batch": -1}, "batch"),
        ({"batch": 1.5}, "batch"),
        ({"batch": True}, "batch"),
        ({"batch": "10"}, "batch"),
        ({"batch": 10**9}, "batch"),
        ({"batch_wait": -1}, "batch_wait"),
        ({"batch_wait": "1"}, "batch_wait"),
        ({"batch_wait": None}, "batch_wait"),
        ({"batch": None, "batch_wait": 1}, "there is no batch="),
        ({"max_in_flight": 9}, r"max_in_flight \(9\) must be at least batch \(10\)"),
    ],
)
def test_a_wrong_option_is_named(options, words):
    with pytest.raises(ConfigError, match=words):
        made(jobs_alone, **options)


async def takes_one(job: Job): ...
async def takes_context(jobs: list[Job], ctx: Context): ...
async def takes_header(jobs: list[Job], tenant: Annotated[str, Header("tenant")]): ...
async def takes_headers(jobs: list[Job], meta: Annotated[dict, Headers()]): ...
async def takes_batch_alone(batch: BatchContext): ...
async def takes_unknown(jobs: list[Job], other: int): ...
async def takes_dict(jobs: dict[str, Job]): ...
async def takes_what_is_unknown(jobs: list[object]): ...


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (takes_one, r"takes list\[T\], not Job"),
        (takes_dict, r"takes list\[T\]"),
        (takes_context, "parameter ctx: a batch has many; take a BatchContext"),
        (takes_header, "parameter tenant: a batch has many"),
        (takes_headers, "parameter meta: a batch has many"),
        (takes_batch_alone, r"its first parameter takes list\[T\]"),
        (takes_unknown, "parameter other"),
        (takes_what_is_unknown, "can't decode into object"),
    ],
)
def test_a_handler_that_no_batch_fits_is_refused(handler, words):
    with pytest.raises(ConfigError, match=words):
        made(handler)


def test_a_batch_context_is_for_batches():
    with pytest.raises(ConfigError, match="a BatchContext is for subscribers with batch="):
        made(jobs_and_batch, batch=None)


def test_without_batch_a_list_is_one_message():
    plan = made(jobs_alone, batch=None).plan
    assert plan.payload_type == list[Job]
    assert plan.decode(b'[{"number":1}]') == [Job(1)]
