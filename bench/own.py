"""Handlers that settle in their own transaction on PostgreSQL, beside the same handler with a plain commit.

``plain``   FastAPI and SQLAlchemy over asyncpg, one row and COMMIT for each request, without 2PHP
``beside``  the same handler behind the middleware: it commits its row, and the middleware its outcome
``own``     the same handler in the intent's transaction: both in one commit

One uvicorn worker each, 64 connections, a server of PostgreSQL with fsync on; all three in each round, one after the
other. ``own_ratio`` is handshakes with ``own`` ÷ handshakes with ``beside``; ``plain_ratio`` is ÷ requests of
``plain``, whose client sends one request and not two.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from base64 import b64encode
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import asyncpg  # type: ignore[import-untyped]

from bench.processes import Server, serving
from bench.server import CONNECTIONS, Figures, Say
from bench.wrk import Run, wrk
from tests import postgres

MODES = {"plain": "plain", "beside": "handshake", "own": "handshake"}


def measure(folder: Path, rounds: int, seconds: float, say: Say) -> Figures:
    """All three in each round; ratios are taken inside it."""
    if postgres.program("initdb") is None:
        say("own: needs postgresql; skipped")
        return {}
    with ExitStack() as stack:
        here = stack.enter_context(tempfile.TemporaryDirectory(prefix="twophp-bench-", ignore_cleanup_errors=True))
        database = postgres.Server(Path(here))
        stack.callback(database.close)
        asyncio.run(_make_table(database.url))
        environment = {
            "BENCH_POSTGRES": database.url,
            "TWOPHP_KEYS": f"bench:{b64encode(secrets.token_bytes(32)).decode()}",
        }
        servers = {
            name: stack.enter_context(
                serving(name, folder / f"own-{name}.db", module="bench.own_apps", environment=environment)
            )
            for name in MODES
        }
        for name, server in servers.items():
            _loaded(server, name, "warm", 1)
        found = []
        for number in range(rounds):
            say(f"own: {', '.join(MODES)}, round {number + 1} of {rounds}")
            found.append({name: _loaded(server, name, f"own-{number}", seconds) for name, server in servers.items()})
    return _summary(found)


def _loaded(server: Server, name: str, run: str, seconds: float) -> Run:
    return wrk(server, MODES[name], connections=CONNECTIONS, seconds=seconds, run=run)


def _summary(found: list[dict[str, Run]]) -> Figures:
    def rate(number: int, name: str) -> float:
        return found[number][name].per_second

    numbers = range(len(found))
    return {
        **{f"{name}_per_second": median(rate(number, name) for number in numbers) for name in MODES},
        **{f"{name}_cpu_us": median(runs[name].cpu_us for runs in found) for name in MODES},
        **{f"{name}_errors": sum(runs[name].errors for runs in found) for name in MODES},
        "own_ratio": median(rate(number, "own") / rate(number, "beside") for number in numbers),
        "plain_ratio": median(rate(number, "own") / rate(number, "plain") for number in numbers),
    }


async def _make_table(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE orders (id bigserial PRIMARY KEY, sku text, quantity integer)")
    await connection.close()
