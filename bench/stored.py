"""Handshakes per second on a file that holds 1.2 million settled intents, as a share of those on an empty one.

The file is filled once in a run, through the store itself: whole handshakes, sealed, journalled and in large batches.
So it is what a service would have left, and this knows nothing of the tables. Then the same application serves from
both files, in turn.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import uvloop

from bench.handshakes import handshake, new_commands
from bench.processes import serving
from bench.server import CONNECTIONS, Figures, Say
from bench.wrk import wrk
from twophp.engine.intents import Intents
from twophp.stores.clock import mint_uuid
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.urls import open_vault
from twophp.storing.reopening import open_ledger

STORED = 1_200_000
AT_ONCE = 512
CHUNK = 50_000
SERVICE = "orders"


def filled(folder: Path, stored: int, say: Say) -> Path:
    """A file with so many settled intents; the first caller fills it."""
    path = folder / f"filled-{stored}.db"
    if not path.exists():
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_fill(path, stored, say))
    return path


async def _fill(path: Path, stored: int, say: Say) -> None:
    vault, began = open_vault(f"sqlite:///{path}"), time.monotonic()
    async with SQLiteStore(str(path)) as store:
        intents = Intents(store, vault, await open_ledger(store, SERVICE, mint_uuid))
        for done in range(0, stored, CHUNK):
            left = iter(range(min(CHUNK, stored - done)))

            async def caller() -> None:
                for _number in left:  # noqa: B023 - the callers of a chunk share it, and end with it.
                    await handshake(intents, new_commands())

            await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
            reached = min(done + CHUNK, stored)
            say(f"filling: {reached:,} of {stored:,} intents, {time.monotonic() - began:.0f} s")


def measure(folder: Path, rounds: int, seconds: float, stored: int, say: Say) -> Figures:
    """Both files in turn; the ratio is taken inside each round."""
    full = filled(folder, stored, say)
    found = []
    with ExitStack() as stack:
        servers = [
            stack.enter_context(serving("starlette_twophp", path)) for path in (folder / "filled-nothing.db", full)
        ]
        for server in servers:
            wrk(server, "handshake", connections=CONNECTIONS, seconds=1, run="warm")
        for number in range(rounds):
            say(f"stored: round {number + 1} of {rounds}")
            order = servers if number % 2 == 0 else servers[::-1]  # Neither is always the first.
            rates = {
                server.pid: wrk(
                    server, "handshake", connections=CONNECTIONS, seconds=seconds, run=f"stored-{number}"
                ).per_second
                for server in order
            }
            found.append((rates[servers[0].pid], rates[servers[1].pid]))
    return {
        "stored": stored,
        "file_mib": full.stat().st_size / 2**20,
        "empty_per_second": median(empty for empty, _full in found),
        "full_per_second": median(full for _empty, full in found),
        "ratio": median(full / empty for empty, full in found),
    }
