"""A desk in a process of its own, to be killed: for each line "URL MODE" on stdin a fork serves until it dies.

Forked, because importing takes longer than all else in these tests. Prints the child's pid, then how it ended.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import anyio

from wire import topics
from wire.bus import Bus, BusOptions, Delivery
from wire.desk import serve_desk
from wire.errors import InvalidRequestError
from wire.messages import Job, Prompt, Recalled
from wire.step import Step

OPTIONS = BusOptions(block_s=0.2, reply_timeout_s=5.0, claim_idle_s=30.0)


async def handle(bus: Bus, mode: str, job: Job, _record: dict[str, Any]) -> Step:
    """Do a desk's work: look something up, then hand on, or fail."""
    await bus.record(job.partition, job.request_id, "request")  # an await of the desk's own
    if mode == "fail":
        raise InvalidRequestError("not like this", param="messages")
    return Step(to=topics.tokenizer(job.partition, job.model), fields={"recalled": Recalled(version=1)})


async def finish(bus: Bus, delivery: Delivery) -> None:
    """Store a turn: the reply goes out before the turn is finished."""
    await bus.route.call("{p0}turns", "SADD", "{p0}turns", delivery.entry_id)
    await bus.finish(delivery)


async def handle_further(bus: Bus, job: Job, record: dict[str, Any]) -> Step:
    """Do the work of the next desk, which needs what the one before it wrote."""
    await bus.record(job.partition, job.request_id, "request")
    fields = {"prompt": Prompt(token_ids=b"", num_tokens=record["recalled"].version)}
    return Step(to=topics.prefix(job.partition, job.model), fields=fields)


async def serve_desks(bus: Bus, mode: str, consumer: str) -> None:
    """Serve the history desk of partition 0; in mode "pair" the tokenizer desk sits beside it."""
    async with anyio.create_task_group() as tasks:
        if mode == "pair":
            further = functools.partial(
                serve_desk,
                bus,
                name="tokenizer",
                streams=[topics.tokenizer(0, "m")],
                consumer=consumer,
                handle=functools.partial(handle_further, bus),
                fields=["recalled"],
            )
            await tasks.start(further)
        await serve_desk(
            bus,
            name="history",
            streams=[topics.history(0)],
            consumer=consumer,
            handle=functools.partial(handle, bus, mode),
            on_message=functools.partial(finish, bus),
            fields=["request"],
        )


async def serve(url: str, mode: str) -> None:
    """Serve until killed."""
    async with Bus.open(url, OPTIONS) as bus:
        await serve_desks(bus, mode, f"victim-{os.getpid()}")


def main() -> None:
    """Fork a victim per line."""
    for line in sys.stdin:
        url, mode = line.split()
        child = os.fork()
        if child == 0:
            anyio.run(serve, url, mode)
            os._exit(0)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
