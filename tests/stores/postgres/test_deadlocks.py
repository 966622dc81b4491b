"""Nobody waits in a circle: neither the batches of several replicas, nor a rotation beside them."""

from __future__ import annotations

import asyncio

import pytest

from tests.stores.schemas import Schema
from twophp.core.entry import LedgerEntry
from twophp.kernel.commands import AdHocCommand, MakeChange
from twophp.ports import Change, Synced
from twophp.stores.postgres import PostgresStore
from twophp.stores.testing.scene import confirmation, pair_of, register, taking

pytestmark = pytest.mark.anyio
ROUNDS = 10
SESSIONS = "SELECT 1 FROM pg_stat_activity, pg_sleep(0.01) WHERE pid <> pg_backend_pid() AND query LIKE $1"
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


def marking(row: LedgerEntry, at: int) -> MakeChange:
    return MakeChange(Change(answer=None, synced=(Synced((row,), at),)))


async def deadlocks(schema: Schema) -> int:
    """As the sessions of the replicas have reported it, which each does at its end."""
    async with asyncio.timeout(30):
        while await schema.run(SESSIONS, f"%{schema.name}%"):
            pass
    (row,) = await schema.run(DEADLOCKS)
    return int(row["deadlocks"])


@pytest.mark.req("A-57")
async def test_marks_wait_for_nobody(schema: Schema) -> None:
    """Each replica holds what the other marks; a row that is passed over is sent again."""
    before = await deadlocks(schema)
    async with PostgresStore(schema.url) as here, PostgresStore(schema.url) as there:
        made = [await register(here, str(number), arrived_at=here.now()) for number in range(2 * ROUNDS)]
        rows = {row.client_correlation_id: row for row in await here.changes(100)}
        for one, other in zip(made[::2], made[1::2], strict=True):
            await asyncio.gather(
                here.transact(AdHocCommand((pair_of(other),), taking(pair_of(other), confirmation(other)))),
                here.transact(marking(rows[one.client_correlation_id], here.now())),
                there.transact(AdHocCommand((pair_of(one),), taking(pair_of(one), confirmation(one)))),
                there.transact(marking(rows[other.client_correlation_id], there.now())),
            )
        assert {row.client_correlation_id for row in await here.changes(100)} == set(rows), "they have changed"
        left = await here.changes(100)
        await here.synced(left, here.now())
        assert not await there.changes(100)
    assert await deadlocks(schema) == before
