"""A payments service: the group `ledger` posts each payment, the group `fraud` screens it.

Run it by `REDIS_URL=redis://localhost:6379 ruststream run examples.service:app`.
"""

import logging
import os

import msgspec

from ruststream import Context, Outcome, RustStream, retry
from ruststream.redis import RedisBroker, RedisStream, StreamStart

# Longer than the slowest posting takes: an entry that lay idle for so long belongs to no worker that lives.
MIN_IDLE = float(os.environ.get("MIN_IDLE", "30"))

log = logging.getLogger("payments")


class Payment(msgspec.Struct):
    """What arrives in the stream `payments`."""

    id: int
    account: str
    amount_cents: int


class Posted(msgspec.Struct):
    """What the ledger writes into the stream `payments.posted`."""

    payment_id: int
    account: str
    earlier_deliveries: int
    consumer: str


class Screened(msgspec.Struct):
    """What the fraud desk writes into the stream `payments.screened`."""

    payment_id: int
    suspicious: bool


broker = RedisBroker.from_env()
app = RustStream("payments", broker)


@broker.subscriber(RedisStream.recovering("payments", min_idle=MIN_IDLE, group="ledger"), workers=8, by_key=True)
async def post_payment(payment: Payment, ctx: Context) -> Outcome | None:
    """Post a payment, or leave it pending while its account is locked. It may come twice: see the README."""
    earlier = ctx.delivery_count - 1
    if is_locked(payment.account, earlier):
        log.warning("payment %d: account locked, left pending (earlier deliveries: %d)", payment.id, earlier)
        return retry()
    if earlier:
        log.info("payment %d: posted (earlier deliveries: %d)", payment.id, earlier)
    await ctx.publish(Posted(payment.id, payment.account, earlier, ctx.consumer), "payments.posted")
    return None


def is_locked(account: str, earlier: int) -> bool:
    """Stand in for a look-up of the account: here every migration is over at the third delivery."""
    return account.startswith("migrating-") and earlier < 2


# Recovery as it is written for servers without CLAIM (before Redis 8.4): a second subscription of the same group.
@broker.subscriber(RedisStream.reclaim("payments", min_idle=MIN_IDLE, group="fraud", start_id=StreamStart.BEGINNING))
@broker.subscriber(RedisStream.new("payments", group="fraud", start_id=StreamStart.BEGINNING))
async def screen_payment(payment: Payment, ctx: Context) -> None:
    """Screen a payment. The group was added later than `ledger`, so it begins at the beginning."""
    await ctx.publish(Screened(payment.id, suspicious=payment.amount_cents > 1_000_000), "payments.screened")
