"""What only the SQLite file has: older files that are brought up to date, and changes that share a transaction."""

from __future__ import annotations

import asyncio
from pathlib import Path
from zlib import crc32

import apsw
import pytest
from msgspec.structs import astuple, replace

from tests.central.store.scene import FOURTEEN, LEDGER, T0, everything, order, outcomes, send
from twophp.central.ports import RowFilter
from twophp.central.proof import merkle
from twophp.central.stores.sqlite import SqliteCentral
from twophp.central.stores.sqlite import store as sqlite_store
from twophp.central.stores.sqlite.database import Database
from twophp.central.stores.store import EXPORT_ROWS
from twophp.core.entry import LedgerEntry
from twophp.core.errors import CommitUnknown, Refused, StoreUnavailable
from twophp.stores.sqlite.connection import CENTRAL_APPLICATION_ID
from twophp.stores.sqlite.sql import migrations

pytestmark = pytest.mark.anyio

FIRST_INSERT = "INSERT INTO entry VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
ALL_SPOTS = "SELECT spot FROM any_spot"


def as_first_kept(number: int, row: LedgerEntry) -> tuple[object, ...]:
    """With a hash of each id, as the first schema had it."""
    is_child = row.actor == "client" and row.parent_reference_id != row.client_correlation_id
    ids = (row.client_correlation_id, row.server_correlation_id, row.parent_reference_id if is_child else None)
    fields = astuple(row)[:-1]  # It had no field for what is indeterminate.
    return (number, *fields, *(None if id_ is None else crc32(id_.encode()) for id_ in ids))


def write_first_schema(path: Path, rows: list[LedgerEntry]) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(migrations("twophp.central.stores.sqlite")[0][1])
    connection.execute(f"PRAGMA application_id = {CENTRAL_APPLICATION_ID}")
    connection.execute("PRAGMA user_version = 1")
    values = [as_first_kept(number, row) for number, row in enumerate(rows, 1)]
    connection.executemany(FIRST_INSERT, values)
    tiles = merkle.appended(0, {}, [merkle.leaf_hash(row) for row in rows])
    connection.executemany("INSERT INTO tile VALUES (?, ?, ?)", [(*key, hashes) for key, hashes in tiles.items()])
    connection.execute("UPDATE head SET size = ?, at = ?", (len(rows), T0))
    connection.close()


@pytest.mark.req("A-59")
async def test_a_file_of_the_first_schema_is_brought_up_to_date_with_everything_in_it(tmp_path: Path) -> None:
    same = order(7, server_correlation_id="client-7", service_ledger_id=LEDGER)  # Both of its ids have one spot.
    rows = [replace(row, sync_timestamp=T0) for row in (*FOURTEEN, same)]
    write_first_schema(tmp_path / "central.db", rows)
    store = SqliteCentral(str(tmp_path / "central.db"))
    try:
        assert [row.entry for row in await everything(store)] == rows
        for member in (FOURTEEN[0].client_correlation_id, FOURTEEN[9].server_correlation_id):
            assert [row.entry for row in await store.tree(member)] == rows[:14]
        assert len((await store.entries(RowFilter(correlation_id=FOURTEEN[3].server_correlation_id))).rows) == 2
        assert [row.entry for row in await store.of_pairs([("client-7", "client-7")])] == rows[14:]
        assert outcomes(await send(store, same, order(8))) == ["known", "stored"]
        head = await store.head()
        path = await store.inclusion(3, head.size)
        assert merkle.verify_inclusion(merkle.leaf_hash(rows[2]), 2, head.size, path, head.root)
    finally:
        await store.close()


@pytest.fixture
def moved_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recent rows are few, and a batch of eight is large: what a real ledger does over hours happens at once."""
    monkeypatch.setattr(sqlite_store, "MOVED_AT", 16)
    monkeypatch.setattr(sqlite_store, "LARGE", 8)


@pytest.mark.req("A-57")
@pytest.mark.usefixtures("moved_often")
async def test_ids_are_found_whether_their_rows_are_recent_or_not(tmp_path: Path) -> None:
    """Rows and newer versions of them, in small and large batches, across several moves."""
    store = SqliteCentral(str(tmp_path / "central.db"))
    try:
        for first in range(0, 60, 6):
            await send(store, *(order(number) for number in range(first, first + 6)))
            await send(store, *(order(number, version=2) for number in range(first, first + 2)))
        await send(store, *(order(number) for number in range(60, 80)))
        await send(store, *(order(number, version=3) for number in range(0, 80, 7)))
        for number in range(80):
            version = 3 if number % 7 == 0 else 2 if number < 60 and number % 6 < 2 else 1
            for id_ in (f"client-{number}", f"server-{number}"):
                [row] = (await store.entries(RowFilter(correlation_id=id_))).rows
                assert (row.entry.client_correlation_id, row.entry.version) == (f"client-{number}", version)
        spots = await store._database.read(
            lambda connection: connection.execute("SELECT spot FROM any_spot").fetchall()
        )
        assert len(spots) == len(set(spots)) == 2 * 80  # Both ids of each row, and nothing of versions that are gone.
        known = [order(number, version=3) if number % 7 == 0 else order(number) for number in range(80)]
        assert set(outcomes(await send(store, *known))) == {"known", "older"}
    finally:
        await store.close()


async def test_a_change_that_fails_is_undone_alone(tmp_path: Path) -> None:
    """Changes that wait together share a transaction, and none fails with another."""
    store = SqliteCentral(str(tmp_path / "central.db"))

    def refused(connection: apsw.Connection) -> None:
        connection.execute("UPDATE head SET size = 99")
        raise Refused("not this one", code="no")

    try:
        told = await asyncio.gather(
            send(store, order(1)),
            store._database.write(refused),
            send(store, order(2), order(3)),
            return_exceptions=True,
        )
        assert isinstance(told[1], Refused)
        assert [row.sequence for row in await everything(store)] == [1, 2, 3]
        assert (await store.head()).size == 3
    finally:
        await store.close()


async def test_a_disk_that_comes_back_is_read_again_whoever_asks_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit failed, and the database could not be opened anew: no request writes before its token was read."""
    folder, elsewhere = tmp_path / "disk", tmp_path / "elsewhere"
    folder.mkdir()
    store = SqliteCentral(str(folder / "central.db"))
    commit = Database._commit

    class Failing(apsw.Connection):
        def execute(self, *_statement: object, **_more: object) -> apsw.Cursor:
            raise apsw.IOError("the disk is gone")

    try:
        await send(store, order(1))
        with monkeypatch.context() as patch:
            patch.setattr(Database, "_commit", lambda self, _connection: commit(self, Failing(":memory:")))
            with pytest.raises(CommitUnknown):
                await send(store, order(2))
        folder.rename(elsewhere)
        for ask in (lambda: send(store, order(2)), store.head):
            with pytest.raises(StoreUnavailable) as error:
                await ask()
            assert error.value.code == "store_cannot_open"
        elsewhere.rename(folder)
        assert (await store.head()).size == 1
        assert outcomes(await send(store, order(2))) == ["stored"]
    finally:
        await store.close()


async def test_an_export_that_nobody_goes_on_with_ends_quietly_after_the_database_was_closed(tmp_path: Path) -> None:
    store = SqliteCentral(str(tmp_path / "central.db"))
    await send(store, *(order(number) for number in range(EXPORT_ROWS + 1)))
    exported = store.export(RowFilter())
    assert len(await anext(exported)) == EXPORT_ROWS
    await store.close()
    await exported.aclose()
    assert not [one for one in apsw.connections() if one.filename == str(tmp_path / "central.db")]
