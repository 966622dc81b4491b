"""The victim: owes a callback and is killed, between the commit and the attempt or between the attempt and its note."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from tests.delivery.outboxes import Desk
from twophp.delivery.outbox import Delivery
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.testing.scene import HandClock


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def live(path: str, where: str) -> None:
    async def deliver(delivery: Delivery) -> None:
        os.write(1, delivery.payload.hex().encode() + b"\n")
        die()

    clock = HandClock()
    desk = Desk(deliver, SQLiteStore(path, clock=clock), clock)
    decision, owed = await desk.owe()
    os.write(1, b"durable\n")
    if where == "before_attempt":
        die()
    await owed.start(decision)
    await desk.idle()


if __name__ == "__main__":
    asyncio.run(live(*sys.argv[1:]))
