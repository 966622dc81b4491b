"""A store that is opened anew: the same file or none, all of it or nothing, and never after it was closed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

from twophp.core.errors import StoreUnavailable
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Tail
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite import store as module
from twophp.stores.sqlite.connection import open_connection

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_it_is_the_same_file_wherever_the_process_is_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    async with SQLiteStore("ledger.db") as store:
        await store.get_or_set_meta("name", "kept")
        monkeypatch.chdir(tmp_path / "elsewhere")
        await store.reopen()
        assert await store.get_or_set_meta("name", "forgotten") == "kept"
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_a_file_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    """As when its disk failed and is no longer mounted: an empty ledger would let everything run a second time."""
    path = tmp_path / "ledger.db"
    async with SQLiteStore(str(path)) as store:
        path.rename(tmp_path / "moved.db")
        with pytest.raises(StoreUnavailable) as refusal:
            await store.reopen()
        assert refusal.value.code == "store_cannot_open"
        assert not path.exists()
        (tmp_path / "moved.db").rename(path)
        await store.reopen()
        assert await store.get_or_set_meta("name", "kept") == "kept"


@pytest.mark.parametrize("fails", [1, 2, 3])
async def test_what_failed_to_open_is_opened_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    left = [fails]

    def failing(*args: Any, **options: Any) -> apsw.Connection:
        left[0] -= 1
        if not left[0]:
            raise StoreUnavailable("no more files", code="store_cannot_open")
        return open_connection(*args, **options)

    async with SQLiteStore(str(tmp_path / "ledger.db")) as store:
        open_before = len(apsw.connections())
        monkeypatch.setattr(module, "open_connection", failing)
        with pytest.raises(StoreUnavailable, match="no more files"):
            await store.reopen()
        assert len(apsw.connections()) == open_before - 3, "nothing stays half open"
        await store.reopen()
        assert await store.get_or_set_meta("name", "kept") == "kept"
        assert await store.entries(Tail()) == []


async def test_what_was_closed_stays_closed_and_says_so(tmp_path: Path) -> None:
    store = SQLiteStore(str(tmp_path / "ledger.db"))
    await store.close()
    for refused in (
        store.reopen(),
        store.get_or_set_meta("name", ""),
        store.due("intent", 1, 1),
        store.entries(Tail()),
    ):
        with pytest.raises(StoreUnavailable) as refusal:
            await refused
        assert refusal.value.code == "store_closed"


async def test_a_close_during_a_reopen_closes_for_good(tmp_path: Path) -> None:
    store = SQLiteStore(str(tmp_path / "ledger.db"))
    open_before = len(apsw.connections())
    other = apsw.Connection(store.path)
    other.execute("BEGIN IMMEDIATE")
    writing = store.transact(AdHocCommand((), lambda _records: Change(answer="written")))
    both = asyncio.gather(store.reopen(), store.close(), return_exceptions=True)
    for _turn in range(3):
        await asyncio.sleep(0)  # By now both wait for the writer, and the writer for the lock.
    other.close()
    reopened, closed = await both
    assert (type(reopened), closed) == (StoreUnavailable, None)
    assert await writing == "written"
    assert len(apsw.connections()) == open_before - 3
