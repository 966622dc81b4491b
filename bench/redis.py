"""Changes per second on Redis with every change synced: one handle that gathers them, and a connection for each caller.

The second is what a service has that sends one script for each change and waits for it: the very same store, with as
many handles as callers and one change in a batch. Redis syncs once for all of them that come in one turn of its loop.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, closing
from pathlib import Path
from statistics import median

import uvloop

from bench.handshakes import handshake, new_commands
from bench.server import Figures, Say
from tests.redis import Server
from twophp.core.entry import Writer
from twophp.engine.intents import Intents
from twophp.stores.clock import mint_uuid
from twophp.stores.group_commit import BATCH_LIMIT
from twophp.stores.redis import RedisStore
from twophp.stores.vault import AesGcmVault, KeyRing

CALLERS = 64
HANDSHAKES = 6_400
CHANGES = 3
"""Of a handshake."""


async def _rate(url: str, handles: int, handshakes: int) -> float:
    """Changes per second of 64 callers over so many handles; one handle gathers, several send one change each."""
    vault, writer = AesGcmVault(KeyRing.generate()), Writer(source="orders", service_ledger_id=mint_uuid())
    async with AsyncExitStack() as stack:
        limit = BATCH_LIMIT if handles == 1 else 1
        stores = [await stack.enter_async_context(RedisStore(url, batch_limit=limit)) for _ in range(handles)]
        asked = [[new_commands() for _ in range(handshakes // CALLERS)] for _ in range(CALLERS)]

        async def caller(number: int) -> None:
            intents = Intents(stores[number % handles], vault, writer)
            for commands in asked[number]:
                await handshake(intents, commands)

        began = time.perf_counter()
        await asyncio.gather(*map(caller, range(CALLERS)))
        return CHANGES * len(asked) * len(asked[0]) / (time.perf_counter() - began)


def measure(folder: Path, rounds: int, scale: int, say: Say) -> Figures:
    """Both in each round; the ratio is taken inside it."""
    found = []
    (data := folder / "redis").mkdir()
    with closing(Server(data)) as server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for number in range(rounds):
            say(f"redis: round {number + 1} of {rounds}")
            rates = {}
            for handles in (1, CALLERS) if number % 2 == 0 else (CALLERS, 1):
                url = f"{server.url}?prefix=bench-{number}-{handles}"
                amount = HANDSHAKES // scale if handles == 1 else HANDSHAKES // scale // 4
                rates[handles] = runner.run(_rate(url, handles, max(amount, CALLERS)))
            found.append((rates[1], rates[CALLERS]))
    return {
        "callers": CALLERS,
        "changes_per_second": median(gathered for gathered, _each in found),
        "one_each_per_second": median(each for _gathered, each in found),
        "ratio": median(gathered / each for gathered, each in found),
    }
