"""What is indeterminate, in the central ledger's database: kept, found, counted apart, and never unsaid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from tests.central.store.scene import LEDGER, T0, client_row, everything, order, outcomes, send
from twophp.central.ports import RowFilter
from twophp.central.proof import merkle
from twophp.central.stores.sqlite.store import SqliteCentral
from twophp.central.stores.store import CentralStore
from twophp.core.entry import LedgerEntry
from twophp.core.intent import Phase
from twophp.core.policy import DAY_MS
from twophp.stores.sqlite.sql import migrations

pytestmark = pytest.mark.anyio

PACKAGE = "twophp.central.stores.sqlite"


def failed(number: int, *, indeterminate: bool = True, **facts: Any) -> LedgerEntry:
    times = {"phase_2_timestamp": T0 + number + 10, "settled_at": T0 + number + 30_010}
    return order(number, phase=Phase.FAILED, indeterminate=indeterminate, **(times | facts))


async def holds(store: CentralStore) -> bool:
    """Whether every row is what its leaf says."""
    head = await store.head()
    for row in await everything(store):
        path = await store.inclusion(row.sequence, head.size)
        leaf = merkle.leaf_hash(row.entry)
        if not merkle.verify_inclusion(leaf, row.sequence - 1, head.size, path, head.root):
            return False
    return True


@pytest.mark.req("A-34", "A-57")
async def test_it_is_kept_proven_and_found(store: CentralStore) -> None:
    rows = failed(1), failed(2, indeterminate=False), order(3), client_row(service_ledger_id=LEDGER)
    assert outcomes(await send(store, *rows)) == ["stored"] * 4
    assert [row.entry.indeterminate for row in await everything(store)] == [True, False, False, False]
    assert await holds(store)
    for asked, numbers in ((True, [1]), (False, [4, 3, 2]), (None, [4, 3, 2, 1])):
        page = await store.entries(RowFilter(indeterminate=asked))
        assert [row.sequence for row in page.rows] == numbers


@pytest.mark.req("A-34", "A-57")
@pytest.mark.parametrize("phase", sorted(set(Phase) - {Phase.FAILED, Phase.ABSENT}))
async def test_only_what_failed_can_be_indeterminate(store: CentralStore, phase: Phase) -> None:
    assert outcomes(await send(store, order(1, phase=phase, indeterminate=True))) == ["broken_rule"]


@pytest.mark.req("A-34")
async def test_it_is_counted_apart_and_its_wait_is_no_handlers(store: CentralStore) -> None:
    await send(store, failed(1), failed(2, indeterminate=False, settled_at=T0 + 52), order(3))
    [line] = await store.sla(T0, T0 + DAY_MS)
    assert (line.calls, line.committed, line.failed, line.indeterminate) == (3, 1, 1, 1)
    assert line.settle_p99_ms == 40
    [step] = await store.activity(T0, T0 + DAY_MS, DAY_MS)
    assert (step.committed, step.failed, step.indeterminate, step.settle_p99_ms) == (1, 1, 1, 40)


@pytest.mark.req("A-57", "A-34")
async def test_a_version_may_come_again_with_it_and_not_without_it(store: CentralStore) -> None:
    """An older central ledger has dropped the field; its writer sends the row again, or is pulled."""
    assert outcomes(await send(store, failed(1, indeterminate=False))) == ["stored"]
    old = await store.head()
    assert outcomes(await send(store, failed(1))) == ["stored"]
    [row] = await everything(store)
    assert (row.entry.indeterminate, row.sequence) == (True, 2)
    assert outcomes(await send(store, failed(1))) == ["known"]
    assert outcomes(await send(store, failed(1, indeterminate=False))) == ["version_conflict"]
    assert outcomes(await send(store, replace(failed(1), ttl_ms=7))) == ["version_conflict"]
    assert [alarm.code for alarm in await store.alarms()] == ["version_conflict"]
    head = await store.head()
    path = await store.consistency(old.size, head.size)
    assert merkle.verify_consistency(old.size, old.root, head.size, head.root, path), "nothing was rewritten"
    assert await holds(store)


@pytest.mark.req("A-57")
async def test_rows_of_an_older_database_stay_as_their_leaves_say(tmp_path: Path) -> None:
    path = tmp_path / "older.db"
    async with SqliteCentral(str(path)) as store:
        await send(store, failed(1, indeterminate=False), order(2))
        before = await store.head()
    connection = apsw.Connection(str(path))
    connection.execute("DROP INDEX entry_indeterminate; ALTER TABLE entry DROP COLUMN indeterminate;")
    [migration] = [script for _number, script in migrations(PACKAGE) if "ADD COLUMN indeterminate" in script]
    connection.execute(migration)
    connection.close()
    async with SqliteCentral(str(path)) as store:
        assert (await store.head()).root == before.root
        assert [row.entry.indeterminate for row in await everything(store)] == [False, False]
        assert await holds(store)
        assert outcomes(await send(store, failed(3))) == ["stored"]
        assert await holds(store)
