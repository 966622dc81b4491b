"""The ledger in a local PostgreSQL with fsync on: handshakes through uvicorn, and changes through the store.

handshakes  one worker, as a share of the bare application's requests in the same round; then two and four workers
on one ledger, in processes and a schema of their own
changes     64 callers on one handle, whose changes share commits; and the same callers over as many handles as the
server serves best, each with one transaction for each change: the quickest of these counts
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.processes import serving
from bench.server import CONNECTIONS, Figures, Say, ways_in
from bench.wrk import wrk
from tests.postgres import Server
from twophp.stores.group_commit import BATCH_LIMIT
from twophp.stores.postgres import PostgresStore
from twophp.stores.testing.scene import register

KEYS: Final = "one:a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="
WORKERS: Final = (1, 2, 4)
CALLERS: Final = 64
EACH: Final = (1, 8, 32)
"""So many handles write one transaction for each change."""
SETTLE_S: Final = 1
_schemas: Final = count(1)


def measure(folder: Path, rounds: int, seconds: float, say: Say) -> Figures:
    """All of it on one server of its own."""
    with tempfile.TemporaryDirectory(prefix="twophp-bench-postgres-", ignore_cleanup_errors=True) as where:
        Path(where).chmod(0o755)
        server = Server(Path(where))
        try:
            return {
                "handshakes": _handshakes(server, folder, rounds, seconds, say),
                "workers": _workers(server, folder, rounds, seconds, say),
                "changes": _changes(server, rounds, seconds, say),
            }
        finally:
            server.close()


def _fresh(server: Server) -> Mapping[str, str]:
    """A ledger that nobody has used."""
    url = f"{server.url}?schema=bench_{next(_schemas)}"
    return {"BENCH_STORE": url, "TWOPHP_KEYS": KEYS}


def _handshakes(server: Server, folder: Path, rounds: int, seconds: float, say: Say) -> Figures:
    found: dict[str, Any] = {}
    with serving("starlette_app", folder / "none.db") as bare:
        for way, http in ways_in(say).items():
            with serving("starlette_twophp", folder / way, http=http, environment=_fresh(server)) as ours:
                wrk(ours, "handshake", connections=CONNECTIONS, seconds=SETTLE_S, run="warm")
                ratios, rates = [], []
                for number in range(rounds):
                    say(f"postgres: handshakes, {way}, round {number + 1} of {rounds}")
                    plain = wrk(bare, "plain", connections=CONNECTIONS, seconds=seconds, run="bare")
                    done = wrk(ours, "handshake", connections=CONNECTIONS, seconds=seconds, run=f"pg-{way}-{number}")
                    rates.append(done.per_second)
                    ratios.append(done.per_second / plain.per_second)
            found[way] = {"ratio": median(ratios), "least_ratio": min(ratios), "per_second": median(rates)}
    return found


def _workers(server: Server, folder: Path, rounds: int, seconds: float, say: Say) -> Figures:
    found = []
    for number in range(rounds):
        say(f"postgres: workers {WORKERS}, round {number + 1} of {rounds}")
        found.append({workers: _rate(server, folder, workers, number, seconds) for workers in WORKERS})
    return {
        **{f"{workers}_per_second": median(rates[workers] for rates in found) for workers in WORKERS},
        "two_to_one": median(rates[2] / rates[1] for rates in found),
        "four_to_one": median(rates[4] / rates[1] for rates in found),
    }


def _rate(server: Server, folder: Path, workers: int, number: int, seconds: float) -> float:
    where = folder / f"postgres-{workers}-{number}"
    with serving("starlette_twophp", where, workers=workers, environment=_fresh(server)) as ours:
        wrk(ours, "handshake", connections=CONNECTIONS, seconds=SETTLE_S, run="warm")
        return wrk(ours, "handshake", connections=CONNECTIONS, seconds=seconds, run="workers").per_second


def _changes(server: Server, rounds: int, seconds: float, say: Say) -> Figures:
    ratios, together, each = [], [], []
    for number in range(rounds):
        say(f"postgres: changes, round {number + 1} of {rounds}")
        ours = asyncio.run(_changed(server, 1, seconds))
        quickest = max(asyncio.run(_changed(server, handles, seconds, batch_limit=1)) for handles in EACH)
        together.append(ours)
        each.append(quickest)
        ratios.append(ours / quickest)
    return {"per_second": median(together), "one_each_per_second": median(each), "ratio": median(ratios)}


async def _changed(server: Server, handles: int, seconds: float, batch_limit: int = BATCH_LIMIT) -> float:
    url, done = _fresh(server)["BENCH_STORE"], 0
    async with AsyncExitStack() as opened:
        stores = [await opened.enter_async_context(PostgresStore(url, batch_limit=batch_limit)) for _ in range(handles)]
        began = time.perf_counter()

        async def caller(name: int) -> None:
            nonlocal done
            store = stores[name % handles]
            for number in count():
                if time.perf_counter() - began >= seconds:
                    return
                await register(store, f"{name}-{number}", arrived_at=store.now())
                done += 1

        await asyncio.gather(*map(caller, range(CALLERS)))
        return done / (time.perf_counter() - began)
