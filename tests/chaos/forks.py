"""The program of the fork tests: what a child does with the package, told by the one argument.

Says on stdout, a JSON object a line, what parent and child came to.
"""

import asyncio
import json
import multiprocessing
import os
import sys

from ruststream import Context, RustStream
from ruststream.redis import RedisBroker, RedisStream

URL = os.environ["REDIS_URL"]


def tell(**what: object) -> None:
    """Say something to the test."""
    os.write(1, json.dumps(what).encode() + b"\n")


async def publish(who: str) -> None:
    """Publish with a broker of one's own."""
    async with RedisBroker(URL) as broker:
        await broker.publish({"from": who}, "payments")


def attempt(who: str) -> str:
    """Publish, and say what came of it."""
    try:
        asyncio.run(publish(who))
    except Exception as error:
        return type(error).__name__
    return "published"


def child_of_spawn() -> None:
    """What a spawned process does."""
    tell(spawned=attempt("spawned"))


def fork_and_attempt(leave: str) -> int:
    """Fork; the child publishes and leaves. Returns its exit status."""
    child = os.fork()
    if child == 0:
        tell(child=attempt("child"))
        if leave == "exit":
            sys.exit(0)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def fork_inside_a_running_app() -> None:
    """The app's own broker and app, used in a child of its process; then the app goes on."""
    broker = RedisBroker(URL)
    handled: asyncio.Queue[str] = asyncio.Queue()

    @broker.subscriber(RedisStream.recovering("payments", min_idle=30, group="ledger", start_id="0"))
    async def post(payment: dict[str, str], ctx: Context) -> None:
        await handled.put(payment["from"])

    async with RustStream("forks", broker) as app:
        child = os.fork()
        if child == 0:
            found = {}
            for name, call in {
                "publish": lambda: broker.publish({"from": "child"}, "payments").send(None),
                "publish_many": lambda: broker.publish_many([{"from": "child"}], "payments").send(None),
            }.items():
                try:
                    call()
                    found[name] = "nothing was raised"
                except BaseException as error:
                    found[name] = type(error).__name__
            tell(child=found)
            os._exit(0)
        status = await asyncio.to_thread(os.waitpid, child, 0)
        await broker.publish({"from": "parent"}, "payments")
        tell(parent=await asyncio.wait_for(handled.get(), 10), status=os.waitstatus_to_exitcode(status[1]))
        tell(health=app.health().state)


if __name__ == "__main__":
    case = sys.argv[1]
    if case == "imported only":
        tell(status=fork_and_attempt("exit"))
        tell(parent=attempt("parent"))
    elif case in ("used before", "used before, child exits"):
        tell(parent=attempt("parent"))
        tell(status=fork_and_attempt("exit" if case.endswith("exits") else "leave"))
        tell(after=attempt("parent again"))
    elif case == "inside an app":
        asyncio.run(fork_inside_a_running_app())
    elif case == "spawned":
        tell(parent=attempt("parent"))
        process = multiprocessing.get_context("spawn").Process(target=child_of_spawn)
        process.start()
        process.join(20)
        tell(status=process.exitcode)
