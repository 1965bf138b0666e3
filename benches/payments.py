"""The messages of the benches: payments with a key, and the streams they lie in."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import redis

GROUP = "ledger"
PAYLOAD = "_payload"
KEY = "h:redis-partition-key"
CONTENT_TYPE = "h:content-type"
KEYS = 997
PIPELINE = 1000
LETTERS, REPLIES = "letters", "replies"


class Payment(msgspec.Struct):
    """What every handler takes."""

    id: int
    account: str
    amount_cents: int


class Probe(msgspec.Struct):
    """A payment that says when it was sent."""

    id: int
    account: str
    sent_ns: int
    """`time.monotonic_ns()`, which all processes of one machine share."""


def payment(number: int) -> Payment:
    """Return the payment of this number: always the same, 997 accounts in turn."""
    return Payment(number, f"acct-{number % KEYS}", number * 7919 % 100_000)


def load(client: redis.Redis, stream: str, messages: int) -> None:
    """Fill a stream with payments: JSON body and key header, as upstream RustStream lays them out."""
    _fill(
        client,
        stream,
        ({PAYLOAD: json.dumps(msgspec.to_builtins(each)), KEY: each.account} for each in map(payment, range(messages))),
    )


def load_for_faststream(client: redis.Redis, stream: str, messages: int) -> None:
    """Fill a stream with the same payments and keys in FastStream's own form, as its publisher writes it."""
    from faststream.redis.parser import BinaryMessageFormatV1

    async def encode_all() -> list[bytes]:
        return [
            await BinaryMessageFormatV1.encode(
                message=msgspec.to_builtins(each),
                reply_to=None,
                headers={"redis-partition-key": each.account},
                correlation_id=str(each.id),
            )
            for each in map(payment, range(messages))
        ]

    _fill(client, stream, ({"__data__": body} for body in asyncio.run(encode_all())))


def _fill(client: redis.Redis, stream: str, entries: Iterator[dict[str, str | bytes]]) -> None:
    client.unlink(stream)
    pipeline = client.pipeline(transaction=False)
    for number, fields in enumerate(entries, 1):
        pipeline.xadd(stream, fields)
        if not number % PIPELINE:
            pipeline.execute()
    pipeline.execute()


def rewind(client: redis.Redis, stream: str) -> None:
    """Make the group anew, before the stream's first entry."""
    with suppress(redis.ResponseError):  # there is no such group, or no such stream
        client.xgroup_destroy(stream, GROUP)
    client.xgroup_create(stream, GROUP, id="0", mkstream=True)


def beside(stream: str, what: str) -> str:
    """Return the name of the stream that takes the letters or the replies of this one."""
    return f"{stream}:{what}"


def delay_key(stream: str) -> str:
    """Return the key of what waits for its time, as this package names it."""
    return f"{{{stream}}}:{GROUP}:delayed"


def copy_of(backlog: str) -> Callable[[redis.Redis, str], None]:
    """Return what makes a stream anew as a copy of this backlog, for those who add to it or delete from it."""

    def prepare(client: redis.Redis, stream: str) -> None:
        left = list(client.scan_iter(match=f"*{stream}*", count=10_000))  # with the keys that were written beside it
        for at in range(0, len(left), PIPELINE):
            client.unlink(*left[at : at + PIPELINE])
        client.copy(backlog, stream)
        rewind(client, stream)

    return prepare


def empty(client: redis.Redis, stream: str) -> None:
    """Remove the stream."""
    client.unlink(stream)


def empty_with_group(client: redis.Redis, stream: str) -> None:
    """Remove the stream, and make it anew with its group and nothing else."""
    client.unlink(stream)
    rewind(client, stream)
