"""What is written stays: the database refuses every way to change it, on both stores nothing can be dropped."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.registrar.scene import KEPT, TABLES, Scene, sqlite_url
from twophp.core.errors import Refused, StoreError
from twophp.core.registrar_records import Inert, NonceIssue, NonceUse, by_nonce, by_nonce_use
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Put, Store
from twophp.registrar import Registrar
from twophp.stores.memory import MemoryStore
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.registrar import RegistrarStore, as_registrar
from twophp.stores.sqlite.verify import verify


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A row in every table. One for all tests: every change tried on it is refused."""
    with closing(Scene(sqlite_url(tmp_path_factory.mktemp("full")), verifier=lambda _row: False)) as scene:
        scene.registrar.open_gate("board-7")
        scene.registrar.resolve("lrk-1")
        scene.registrar.register(scene.asks())
        scene.registrar.register(scene.asks())
        scene.registrar.compensate("lrk-1", scene.nonce())
        assert all(scene.rows()[table] for table in TABLES)
        yield scene


@pytest.mark.req("REG-6-e", "REG-4-06", "REG-1-05")
@pytest.mark.parametrize("is_registrar", [False, True])
@pytest.mark.parametrize("table", KEPT)
def test_no_row_is_changed_deleted_or_replaced(full: Scene, table: str, is_registrar: bool) -> None:
    before = full.rows()
    with closing(apsw.Connection(full.path)) as connection:
        if is_registrar:
            as_registrar(connection)
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        for column in columns:
            with pytest.raises((apsw.ConstraintError, apsw.SQLError)):
                connection.execute(f"UPDATE {table} SET {column} = {column}")  # noqa: S608 - our names
        with pytest.raises(apsw.ConstraintError, match="append-only"):
            connection.execute(f"DELETE FROM {table}")  # noqa: S608
        for verb in ("INSERT", "INSERT OR REPLACE", "REPLACE"):
            with pytest.raises((apsw.ConstraintError, apsw.SQLError)):
                connection.execute(f"{verb} INTO {table} SELECT * FROM {table}")  # noqa: S608
    assert full.rows() == before


@pytest.mark.req("REG-6-e")
@pytest.mark.parametrize("table", [*KEPT, "registrar_gate", "registrar_fence"])
def test_whoever_is_not_the_registrar_cannot_write(full: Scene, table: str) -> None:
    with closing(apsw.Connection(full.path)) as connection:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        values = ", ".join("NULL" if name == "id" else f"{name} || 'x'" for name in columns)
        with pytest.raises(apsw.SQLError, match="no such function: twophp_registrar"):
            connection.execute(f"INSERT INTO {table} SELECT {values} FROM {table}")  # noqa: S608 - our names


@pytest.mark.parametrize("table", ["registrar_gate", "registrar_fence"])
def test_gate_and_fence_only_rise(full: Scene, table: str) -> None:
    with closing(apsw.Connection(full.path)) as connection:
        as_registrar(connection)
        for change in ("version = version", "version = version - 1", "version = version + 2"):
            with pytest.raises(apsw.ConstraintError, match="rises by one"):
                connection.execute(f"UPDATE {table} SET {change}")  # noqa: S608 - our names
        with pytest.raises(apsw.ConstraintError, match="never deleted"):
            connection.execute(f"DELETE FROM {table}")  # noqa: S608


@pytest.mark.req("A-97")
def test_a_registration_is_inert_or_is_not_there(full: Scene) -> None:
    with closing(apsw.Connection(full.path)) as connection:
        as_registrar(connection)
        with pytest.raises(apsw.ConstraintError, match="nothing here is active"):
            connection.execute("INSERT INTO registrar_registration VALUES (NULL, 'k', 'r', 1, 'active')")


def stores(tmp_path: Path) -> list[Store]:
    return [MemoryStore(clock=lambda: 5), RegistrarStore(str(tmp_path / "x.db"), clock=lambda: 5)]


@pytest.mark.req("REG-4-03", "REG-6-e")
def test_both_stores_refuse_to_drop_or_rewrite_what_is_written_once(tmp_path: Path) -> None:
    issue, use = NonceIssue("n", "o", 1, 2), NonceUse("n", "k", "registration", 3)

    async def show(store: Store) -> None:
        keys = (by_nonce("n"), by_nonce_use("n"))
        await store.transact(AdHocCommand(keys, lambda _records: Change(answer=None, puts=(Put(record=issue),))))
        for change in (
            Change(answer=None, drops=(keys[0],)),
            Change(answer=None, puts=(Put(record=NonceIssue("n", "another", 1, 2)),)),
            Change(answer=None, puts=(Put(record=use), Put(record=use))),
        ):
            with pytest.raises(StoreError):
                await store.transact(AdHocCommand(keys, lambda _records, change=change: change))  # type: ignore[misc]
        found = await store.transact(
            AdHocCommand(keys, lambda records: Change(answer=[records.get(key) for key in keys]))
        )
        assert found == [issue, None]
        await store.close()

    for store in stores(tmp_path):
        asyncio.run(show(store))


@pytest.mark.req("REG-6-e")
def test_a_store_that_is_not_the_registrars_cannot_write_its_rows(tmp_path: Path) -> None:
    async def show() -> None:
        store = SQLiteStore(str(tmp_path / "x.db"), clock=lambda: 5)
        row = Inert("k", "r", 5)
        with pytest.raises(StoreError, match="twophp_registrar"):
            await store.transact(AdHocCommand((), lambda _records: Change(answer=None, puts=(Put(record=row),))))
        await store.close()

    asyncio.run(show())


# Erased consumption has a name (REG-4-07).


@pytest.mark.req("REG-4-07", "REG-4-03")
def test_a_consume_row_that_disappears_is_called_by_its_name(durable: Scene) -> None:
    request, _ = durable.registered()
    durable.tampering("DELETE FROM registrar_consumed")
    for act in (lambda: durable.registrar.resolve("lrk-1"), durable.registrar.check):
        with pytest.raises(Refused) as caught:
            act()
        assert caught.value.code == "CONSUMED_STATE_ERASED_BY_STALE_REQUEST"
    with pytest.raises(Refused, match="lrk-1"):
        Registrar(durable.url)
    with pytest.raises(Refused):
        durable.registrar.register(request)
    assert durable.query("SELECT count(*) FROM registrar_consumed") == 0


@pytest.mark.req("REG-4-07")
def test_even_when_every_row_is_gone_the_journal_knows(durable: Scene) -> None:
    durable.registered()
    durable.registrar.check()
    durable.tampering(*(f"DELETE FROM {table}" for table in KEPT))  # noqa: S608
    with pytest.raises(Refused, match="lrk-1"):
        durable.registrar.check()


@pytest.mark.req("REG-4-07")
def test_memory_is_checked_as_well() -> None:
    with closing(Scene("memory:")) as scene:
        scene.registrar.open_gate("board-7")
        scene.registered()
        scene.registrar.check()
        found = scene.registrar._registrar._opened.store._found  # type: ignore[attr-defined]
        for key in [key for key in found if key.by.startswith("consumed.")]:
            del found[key]
        with pytest.raises(Refused, match="lrk-1"):
            scene.registrar.check()


def test_the_ledgers_verification_holds_beside_registrations(full: Scene) -> None:
    assert verify(full.path).holds
