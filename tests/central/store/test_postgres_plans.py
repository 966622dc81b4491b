"""How PostgreSQL answers what is asked by id: the same whether or not it has ever looked at what the table holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.central.conftest import schema
from tests.central.store.scene import order, send
from twophp.central.stores.postgres import PostgresCentral
from twophp.central.stores.postgres.database import SQL

pytestmark = pytest.mark.anyio

ASKED = {
    "tree": ("client-1", 10_000),
    "of_pairs": (["client-1"], ["server-1"]),
    "known_entries": ("ledger of orders", ["client-1"], ["server-1"], ["server"]),
}
STATISTICS = "SELECT reltuples FROM pg_class WHERE oid = 'entry'::regclass"


@pytest.fixture
def fresh_url(postgres_url: str) -> Iterator[str]:
    with schema(postgres_url) as url:
        yield url


@pytest.mark.req("P-9.4-d")
async def test_without_statistics_nothing_by_id_reads_the_table_or_reserves_memory_for_guesses(fresh_url: str) -> None:
    """A table that has just grown is not analysed yet: the planner then expects thousands of rows for every id."""
    async with await PostgresCentral.open(fresh_url) as store:
        async with store._database.connection() as connection:
            await connection.execute("ALTER TABLE entry SET (autovacuum_enabled = off)")
        await send(store, *(order(number) for number in range(10)))
        assert len(await store.tree("client-1")) == 1  # Prepared while reading the whole table would be quickest.
        await send(store, *(order(number) for number in range(10, 3_000)))
        async with store._database.connection() as connection:
            assert await connection.fetchval(STATISTICS) == -1
            for name, values in ASKED.items():
                steps = [row[0] for row in await connection.fetch(f"EXPLAIN {SQL[name]}", *values)]
                assert [step for step in steps if "Seq Scan on entry" in step] == [], name
                assert any("entry_" in step for step in steps), name
            # A hash table is laid out for as many rows as are expected, up to this much, before the first is read.
            assert await connection.fetchval("SHOW work_mem") == "64kB"
        async with store._database.surveying() as connection:
            assert await connection.fetchval("SHOW work_mem") == "32MB"
        async with store._database.connection() as connection:
            assert await connection.fetchval("SHOW work_mem") == "64kB", "what a survey sets ends with it"
