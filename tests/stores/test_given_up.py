"""A ledger of schema 14, which knew no call that was given up, goes on as one that does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import pytest

from twophp.core.call import CALL, Stage
from twophp.core.call_commands import GiveUp, Note, Tick
from twophp.core.intent import Phase
from twophp.ports import Find
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.connection import APPLICATION_ID
from twophp.stores.sqlite.sql import migrations
from twophp.stores.sqlite.verify import verify
from twophp.stores.testing.calls import KEY, ended, opening, registered, take
from twophp.stores.testing.scene import T0, HandClock, read

SCHEMA = 14
HELD = ("meta", "call", "client_entry", "seal", "link", "writer")


def schema_14(path: Path) -> Path:
    """The same ledger as the version before wrote it."""
    old = path.with_name("old.db")
    connection = apsw.Connection(str(old))
    connection.execute("PRAGMA journal_mode = WAL")
    for number, script in migrations():
        if number <= SCHEMA:
            connection.execute(script)
    connection.execute("ATTACH ? AS today", (str(path),))
    for name in HELD:
        connection.execute(f"DELETE FROM main.{name}; INSERT INTO main.{name} SELECT * FROM today.{name}")  # noqa: S608
    connection.execute("DETACH today")
    connection.execute(f"PRAGMA user_version = {SCHEMA}; PRAGMA application_id = {APPLICATION_ID};")
    connection.close()
    return old


@pytest.mark.req("A-49", "A-52")
def test_an_older_ledger_keeps_its_calls_and_can_give_one_up(tmp_path: Path) -> None:
    async def before() -> None:
        async with SQLiteStore(str(tmp_path / "ledger.db"), clock=HandClock()) as store:
            await take(store, registered())
            await take(store, registered("2"), "2")
            await take(store, ended(), "2")
            await take(store, Note(opening=opening("3")), "3", payload=b"request")

    async def after(old: Path) -> None:
        clock = HandClock()
        async with SQLiteStore(str(old), clock=clock) as store:
            given_up = (await take(store, GiveUp(fence=1, late=False))).call
            assert given_up is not None
            assert (given_up.stage, given_up.due_at) == (Stage.GIVEN_UP, T0 + 29_400)
            assert await read(store, KEY) == given_up
            assert [row.phase for row in await store.entries(Find("client-1"))] == [Phase.WAITING_CONFIRM]
            clock.now = T0 + 29_400
            assert KEY in await store.due(CALL, clock.now + 1, 9)
            await take(store, Tick(owner="other"))
            assert [row.phase for row in await store.entries(Find("client-1"))] == [Phase.TTL_EXPIRED]
            assert [row.phase for row in await store.entries(Find("client-2"))] == [Phase.COMMITTED]
            assert await store.owners_of(CALL) == ["driver"], "found by its index"
        assert verify(str(old)).findings == verify(str(tmp_path / "ledger.db")).findings, (
            "nothing that was not there before"
        )

    asyncio.run(before())
    old = schema_14(tmp_path / "ledger.db")
    rows = list(apsw.Connection(str(old)).execute("SELECT * FROM call"))
    assert len(rows) == 3
    asyncio.run(after(old))
    asyncio.run(before_is_kept(old, rows))


async def before_is_kept(old: Path, rows: list[apsw.SQLiteValues]) -> None:
    async with SQLiteStore(str(old), clock=HandClock()) as store:
        kept = list(store._connection.execute("SELECT * FROM call WHERE client_correlation_id > 'client-1'"))
    assert kept == rows[1:]
