"""What must be true of a database whatever has happened to the process that wrote it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import apsw

from tests.faults.handshake import NOW, PAYLOAD, RESPONSE, VAULT, WRITER
from twophp.core.entry import server_entry
from twophp.core.intent import Intent, Phase, by_logical_key
from twophp.engine.intents import Intents
from twophp.kernel.journal import GENESIS
from twophp.ports import Find
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.testing import scene

PHASES = (Phase.ABSENT, Phase.WAITING_CONFIRM, Phase.PROCESSING, Phase.COMMITTED)


def version_in(database: Path, client: str = "client-1") -> int:
    """Open the database as it lies there and return the intent's version, after making sure that nothing is half."""
    return asyncio.run(_version_in(database, client))


def version_after_a_crash(database: Path, client: str = "client-1") -> tuple[int, int]:
    """The version that is found, and the one that is found once more if the machine dies right after the answer."""
    return asyncio.run(_looking_twice(database, client))


async def _version_in(database: Path, client: str) -> int:
    async with SQLiteStore(str(database), clock=lambda: NOW) as store:
        return await whole(store, client)


async def _looking_twice(database: Path, client: str) -> tuple[int, int]:
    async with SQLiteStore(str(database), clock=lambda: NOW) as store:
        first = await whole(store, client)
        copy = copied(database, "after the answer")
    return first, await _version_in(copy, client)


def copied(database: Path, name: str) -> Path:
    """The files as they are at this moment, as a crash would leave them. The shared memory does not survive one."""
    folder = database.parent / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for suffix in ("", "-wal", "-journal"):
        file = database.with_name(database.name + suffix)
        if file.exists():
            shutil.copy(file, folder)
    return folder / database.name


async def whole(store: SQLiteStore, client: str) -> int:
    """Record, ledger row, history and sealed parts tell the same story. Returns how far it goes."""
    await _journal_is_whole(store)
    key = by_logical_key("alice", client)
    intent = await scene.read(store, key)
    rows = await store.entries(Find(client))
    if intent is None:
        assert rows == []
        return 0
    assert isinstance(intent, Intent)
    assert intent.phase is PHASES[intent.version]
    assert rows == [server_entry(intent, WRITER)]
    history = await store.history(scene.pair_of(intent))
    assert [line.event.after for line in history] == list(PHASES[1 : intent.version + 1])
    intents = Intents(store, VAULT, WRITER, resolves=False)
    assert await intents.payload(intent) == PAYLOAD
    assert await intents.response(intent) == (RESPONSE if intent.phase is Phase.COMMITTED else None)
    return intent.version


async def _journal_is_whole(store: SQLiteStore) -> None:
    lines = await scene.verified_journal(store)
    head = apsw.Connection(store.path)
    [end] = head.execute("SELECT link.id + count - 1, writer.hash FROM writer JOIN link ON link.id = writer.link"
        " UNION ALL SELECT 0, x'' ORDER BY 1 DESC LIMIT 1")  # fmt: skip
    assert end == (len(lines), lines[-1].digest if lines else GENESIS)
    assert head.execute("PRAGMA integrity_check").get == "ok"
    head.close()
