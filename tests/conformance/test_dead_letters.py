"""What is given up: where it goes, and what it says of itself there."""

import pytest

from backend import MIN_IDLE, Backend
from ruststream import Context, RustStream, dead_letter, retry
from ruststream.redis import RedisStream

SOURCES = {
    "new": RedisStream.new("s", group="g", min_idle=30),
    "recovering": RedisStream.recovering("s", min_idle=MIN_IDLE, group="g"),
}


def letters_app(backend: Backend, handler: object, mode: str, **options: object) -> RustStream:
    return backend.app(handler, SOURCES[mode], dead_letter="s.dead", **options)


@pytest.mark.parametrize("mode", SOURCES)
async def test_a_rejected_entry_is_copied_with_its_story_and_acked(backend: Backend, mode: str):
    async def handler(body: int):
        return dead_letter("no such account")

    async with backend(letters_app(backend, handler, mode)) as t:
        entry_id = await t.publish(7, "s", key="k", headers={"x-mine": "1"})
        t.subscriber("main").assert_outcome(dead_letter("no such account"))
        (letter,) = t.published("s.dead")
        headers = letter.headers
        assert (letter.value, letter.key, headers["x-mine"]) == (7, b"k", "1")
        told = {name.removeprefix("x-dead-letter-"): value for name, value in headers.items() if "dead-letter" in name}
        assert (told["reason"], told["stream"], told["group"]) == ("rejected", "s", "g")
        assert (told["consumer"], told["entry-id"], told["deliveries"]) == ("main-1", str(entry_id), "1")
        assert "no such account" in told["error"]
        assert t.pending("s", "g") == []
        assert t.stream("s").length == 1


@pytest.mark.parametrize("mode", SOURCES)
async def test_what_does_not_decode_is_given_up_where_there_is_a_place_for_it(backend: Backend, mode: str):
    async def handler(body: int):
        pass

    async with backend(letters_app(backend, handler, mode)) as t:
        await t.publish("no number", "s")
        t.subscriber("main").assert_not_called().assert_outcome("dead_letter")
        (letter,) = t.published("s.dead")
        assert (letter.payload, letter.headers["x-dead-letter-reason"]) == (b'"no number"', "decode-error")
        assert t.pending("s", "g") == []


async def test_an_error_may_end_in_a_dead_letter(backend: Backend):
    async def handler(body: int, ctx: Context):
        if ctx.delivery_count == 1:
            return retry()
        raise ValueError("still no account")

    app = letters_app(backend, handler, "recovering", on_error={ValueError: dead_letter()})
    async with backend(app) as t:
        await t.publish(7, "s")
        await t.advance(MIN_IDLE)
        (letter,) = t.published("s.dead")
        assert letter.headers["x-dead-letter-deliveries"] == "2"
        assert letter.headers["x-dead-letter-error"] == "ValueError: still no account"
        assert t.pending("s", "g") == []
