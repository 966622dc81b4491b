"""One of several processes on one file: changes of its own, and changes to a record that all of them change."""

from __future__ import annotations

import asyncio
import sys

from twophp.core.intent import by_pair
from twophp.core.intent_commands import Renew
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.testing import scene


async def main(path: str, rounds: int, name: str) -> None:
    """Wait for all processes, then report every version of the common record that this process has made."""
    common = by_pair("client-common", "server-common")
    async with SQLiteStore(path, clock=scene.HandClock()) as store:
        print("ready", flush=True)  # noqa: T201
        sys.stdin.readline()
        for number in range(rounds):
            decision, _ = await asyncio.gather(
                scene.act(store, common, Renew(fence=1)), scene.register(store, f"{name}-{number}")
            )
            print(scene.found(decision).version, flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
