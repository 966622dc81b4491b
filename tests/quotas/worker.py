"""A process that registers and settles under a quota until it is told to stop, or killed."""

from __future__ import annotations

import asyncio
import sys

from tests.quotas.counting import Service
from twophp.core.errors import StoreError
from twophp.core.quota import EXCEEDED, Quota
from twophp.stores.clock import system_clock
from twophp.stores.sqlite import SQLiteStore


async def only_register(service: Service, name: str, tries: int) -> int:
    """How many of so many were admitted."""
    now = system_clock()
    found = await asyncio.gather(*(service.register(f"{name}-{number}", now) for number in range(tries)))
    return sum(decision.verdict is not EXCEEDED for decision in found)


async def live(service: Service, name: str, number: int) -> None:
    decision = await service.register(f"{name}-{number}", system_clock(), principal=f"p{number % 3}")
    if decision.intent is None or number % 5 == 0:  # Refused, or never confirmed.
        return
    confirmed = await service.confirm(decision.intent, system_clock())
    if confirmed.intent is not None and number % 7:
        await service.settle(confirmed.intent, succeeded=number % 2 == 0)


async def main(path: str, name: str, tries: int) -> None:
    async with SQLiteStore(path) as store:
        service = Service(store, Quota(open_intents=50))
        if tries:
            print(await only_register(service, name, tries))  # noqa: T201 - what its parent reads.
            return
        print("ready", flush=True)  # noqa: T201
        number = 0
        while True:
            wave = [live(service, name, number + each) for each in range(16)]
            for error in await asyncio.gather(*wave, return_exceptions=True):
                if isinstance(error, BaseException) and not isinstance(error, StoreError):
                    raise error
            number += 16
            if number == 256:
                print("under way", flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
