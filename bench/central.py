"""The central ledger: rows taken in against the raw limit of the same database, and a tree among few and many rows.

The raw limit is what the driver writes of the same rows into the same columns, without index and logic, in the same
transactions: ``executemany`` for SQLite, COPY for PostgreSQL. Raw, new and re-sent take turns batch by batch, so
other load on the machine strikes all three.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any
from uuid import UUID

import apsw
import asyncpg  # type: ignore[import-untyped]
from msgspec.structs import astuple

from tests.postgres import Server, program
from twophp.central.ports import Service
from twophp.central.stores.opening import open_central
from twophp.central.stores.store import CentralStore
from twophp.core.entry import LedgerEntry
from twophp.core.intent import Mode, Phase
from twophp.stores.sqlite.connection import open_connection
from twophp.stores.sqlite.sql import named

ROWS = 50_000
BATCHES = {"as_shipped": (250, 1), "of_a_fleet": (250, 16), "largest": (5_000, 1)}
"""How many rows a batch has, and how many batches arrive at once: what a shipper sends by default, the same
from many services at the same time, and the most that is taken."""
LARGEST = 5_000
FEW, MANY = 10_000, 1_000_000
TREES = 400
PASSES = 5  # A tree is asked for so often, and its median counts: what strikes once was the machine.
NOW = 1_800_000_000_000
LEDGER = "00000000-0000-4000-8000-000000000001"
SQL = named(Path(__file__).with_name("central.sql").read_text(encoding="utf-8"))
COLUMNS = ("sequence", *LedgerEntry.__struct_fields__)

Write = Callable[[Sequence[LedgerEntry], int], Awaitable[None]]


class Made:
    """Rows as services make them: random ids, half of them inbound and half outbound calls, in order of time."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311
        self._at = NOW

    def id(self) -> str:
        """A UUID v4, the same for the same seed."""
        return str(UUID(int=self._random.getrandbits(128), version=4))

    def row(self, actor: str, client_id: str, server_id: str, parent: str) -> LedgerEntry:
        """One side of a settled call."""
        is_client, at = actor == "client", self._at
        self._at += self._random.randrange(5)
        return LedgerEntry(
            client_id,
            server_id,
            LEDGER,
            f"payments/{self._random.randrange(20)}",
            "client" if is_client else "server",
            "orders" if is_client else "payments",
            "payments" if is_client else None,
            parent,
            Phase.COMMITTED,
            at,
            at + 3,
            30_000,
            Phase.COMMITTED,
            None if is_client else f"vault:{server_id}/payload",
            NOW,
            None,
            3,
            Mode.STANDARD,
            False,  # noqa: FBT003
            at + 9,
            None,
        )

    def rows(self, count: int) -> list[LedgerEntry]:
        """Of calls that have nothing to do with each other."""
        made = []
        for number in range(count):
            client_id, server_id = self.id(), self.id()
            actor, parent = ("client", self.id()) if number % 2 else ("server", client_id)
            made.append(self.row(actor, client_id, server_id, parent))
        return made

    def tree(self) -> list[LedgerEntry]:
        """The draft's: seven calls, fourteen rows (§10.3)."""
        ids = [(self.id(), self.id()) for _call in range(7)]
        above = [0, 0, 0, 0, 1, 2, 3]
        rows = []
        for (client_id, server_id), parent in zip(ids, above, strict=True):
            rows.append(self.row("client", client_id, server_id, ids[parent][0]))
            rows.append(self.row("server", client_id, server_id, client_id))
        return rows


def measure(folder: Path, rounds: int, scale: int) -> dict[str, Any]:
    """Everything, on both databases; PostgreSQL is left out where it is not installed."""
    found = {"sqlite": asyncio.run(_sqlite(folder, rounds, scale))}
    if program("postgres") is not None:
        with _server() as url:
            found["postgres"] = asyncio.run(_postgres(url, rounds, scale))
    return found


@contextmanager
def _server() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="twophp-bench-postgres-", ignore_cleanup_errors=True) as folder:
        server = Server(Path(folder))
        try:
            yield server.url
        finally:
            server.close()


async def _sqlite(folder: Path, rounds: int, scale: int) -> dict[str, Any]:
    numbers = iter(range(1_000))

    @asynccontextmanager
    async def fresh() -> AsyncIterator[tuple[CentralStore, Write]]:
        number = next(numbers)
        ours, raw = folder / f"central-{number}.db", folder / f"raw-{number}.db"
        connection = open_connection(str(raw))
        connection.execute(SQL["sqlite_raw_table"])
        connection.execute("PRAGMA wal_autocheckpoint = 1000")

        async def write(rows: Sequence[LedgerEntry], first: int) -> None:
            await asyncio.to_thread(_insert, connection, rows, first)

        store = await open_central(f"sqlite:///{ours}")
        try:
            yield store, write
        finally:
            await store.close()
            connection.close()
            for path in (ours, raw):
                path.unlink()

    return await _figures(fresh, rounds, scale)


def _insert(connection: apsw.Connection, rows: Sequence[LedgerEntry], first: int) -> None:
    with connection:
        connection.executemany(SQL["sqlite_raw_insert"], [(first + n, *astuple(row)) for n, row in enumerate(rows)])


async def _postgres(url: str, rounds: int, scale: int) -> dict[str, Any]:
    numbers = iter(range(1_000))

    @asynccontextmanager
    async def fresh() -> AsyncIterator[tuple[CentralStore, Write]]:
        schema = f"bench_{next(numbers)}"
        connection = await asyncpg.connect(url, server_settings={"search_path": schema})
        await connection.execute(f"CREATE SCHEMA {schema}")
        store = await open_central(f"{url}?search_path={schema}")
        await connection.execute(SQL["postgres_raw_table"])

        async def write(rows: Sequence[LedgerEntry], first: int) -> None:
            records = [(first + n, *astuple(row)) for n, row in enumerate(rows)]
            async with connection.transaction():
                await connection.copy_records_to_table("raw", records=records, columns=COLUMNS)

        try:
            yield store, write
        finally:
            await store.close()
            await connection.execute(f"DROP SCHEMA {schema} CASCADE")
            await connection.close()

    return await _figures(fresh, rounds, scale)


async def _figures(fresh: Any, rounds: int, scale: int) -> dict[str, Any]:
    ingest = {}
    for name, (batch, at_once) in BATCHES.items():
        runs = []
        for seed in range(rounds):
            async with fresh() as (store, write):
                runs.append(await _ingest(store, write, batch, at_once, max(batch * at_once, ROWS // scale), seed))
        ingest[name] = {"batch": batch, "at_once": at_once} | {key: median(run[key] for run in runs) for key in runs[0]}
    trees = {}
    for stored in (FEW, MANY // scale):
        async with fresh() as (store, write):
            trees[stored] = await _trees(store, write, stored)
    few, many = trees.values()
    return {
        "ingest": ingest,
        "tree": {"among_few": few, "among_many": many, "p99_ratio": many["p99_ms"] / few["p99_ms"]},
    }


async def _ingest(
    store: CentralStore, write: Write, batch: int, at_once: int, count: int, seed: int
) -> dict[str, float]:
    """Rows per second, raw and ours, each over its own clock. A batch is durable by itself, in raw as in ours."""
    writer = await store.register("orders", LEDGER, "bench", NOW)
    rows = Made(seed).rows(count)
    raw = new = again = 0.0
    for first in range(0, count, batch * at_once):
        some = [rows[at : at + batch] for at in range(first, min(count, first + batch * at_once), batch)]
        for each in some:
            raw += await _timed(write(each, first))
        new += await _timed(_all_stored(store, writer, some, "stored"))
        again += await _timed(_all_stored(store, writer, some, "known"))
    return {
        "raw_per_second": count / raw,
        "rows_per_second": count / new,
        "ratio": raw / new,
        "sent_again_per_second": count / again,
        "sent_again_cost": again / new,
    }


async def _all_stored(
    store: CentralStore, writer: Service, batches: Sequence[Sequence[LedgerEntry]], outcome: str
) -> None:
    await asyncio.gather(*(_stored(store, writer, batch, outcome) for batch in batches))


async def _stored(store: CentralStore, writer: Service, rows: Sequence[LedgerEntry], outcome: str) -> None:
    acks = await store.ingest(writer, rows, NOW)
    assert all(ack.outcome == outcome for ack in acks)


async def _trees(store: CentralStore, write: Write, stored: int) -> dict[str, float]:
    """How long a tree of fourteen rows takes from a member of it, among ``stored`` rows; and the last of filling."""
    writer, made = await store.register("orders", LEDGER, "bench", NOW), Made(stored)
    members, since, raw, new = [], 0, 0.0, 0.0
    batch = LARGEST
    for first in range(0, stored, batch):
        planted = [made.tree() for _tree in range(TREES * batch // stored + 1)]
        rows = [row for tree in planted for row in tree]
        members += [tree[5].server_correlation_id for tree in planted]
        rows += made.rows(batch - len(rows))
        if first >= stored - 10 * batch:  # The indexes are as large as they get.
            raw += await _timed(write(rows, first))
            new += await _timed(_stored(store, writer, rows, "stored"))
            since += len(rows)
        else:
            await store.ingest(writer, rows, NOW)
    gc.collect()
    passes = [[await _timed(_found(store, member)) for member in members] for _pass in range(PASSES)]
    times = [median(each) for each in zip(*passes, strict=True)]
    return {
        "stored": stored,
        "p50_ms": median(times) * 1e3,
        "p99_ms": quantiles(times, n=100)[98] * 1e3,
        "rows_per_second_at_the_end": since / new,
        "ratio_at_the_end": raw / new,
    }


async def _found(store: CentralStore, member: str) -> None:
    assert len(await store.tree(member)) == 14  # noqa: PLR2004


async def _timed(work: Awaitable[None]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began
