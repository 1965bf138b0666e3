"""Call plans under test: made of a handler, and called; and a type that only a codec of one's own makes."""

from ruststream.codec import codec_of
from ruststream.handler import make_plan
from ruststream.signature import read_signature


def plan_of(handler, *, codec="json", fields="auto", workers=1):
    return make_plan(read_signature(handler), codec_of(codec), fields, workers)


async def call(plan, ctx):
    return await plan.invoke(ctx)


class Model:
    def __init__(self, text):
        self.text = text
