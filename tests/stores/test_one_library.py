"""Two copies of SQLite in one process take each other's locks away: the second one is refused (ADR 14)."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from twophp.core.errors import ConfigError, StoreUnavailable
from twophp.registrar import evaluate_surface
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.one_library import connect

ROUNDS = 500
GUARD_S = 30
WRITING = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE

pytestmark = pytest.mark.req("P-12.2-a")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "an orders.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    with asyncio.Runner() as runner:
        made = SQLiteStore(str(path))
        yield made
        runner.run(made.close())


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("spelt", ["text", "path", "bytes", "uri", "link", "relative"])
def test_an_open_ledger_is_not_opened_by_sqlite3(spelt: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path.parent / "link.db").symlink_to(path)
    monkeypatch.chdir(path.parent)
    names: dict[str, str | bytes | Path] = {
        "text": str(path),
        "path": path,
        "bytes": bytes(path),
        "uri": f"{path.as_uri()}?mode=ro",
        "link": str(path.parent / "link.db"),
        "relative": path.name,
    }
    with pytest.raises(ConfigError) as refused:
        sqlite3.connect(names[spelt], uri=spelt == "uri")
    assert refused.value.code == "two_sqlite_libraries"
    assert "apsw" in str(refused.value), "it says what to do instead"


@pytest.mark.usefixtures("store")
def test_apsw_and_other_files_are_as_open_as_ever(path: Path, tmp_path: Path) -> None:
    with closing(apsw.Connection(str(path))) as beside:
        assert beside.execute("SELECT count(*) FROM entry").get == 0
    for name in (":memory:", "", tmp_path / "another.db"):
        with closing(sqlite3.connect(name)) as other:
            assert other.execute("SELECT 1").fetchone() == (1,)


def test_a_ledger_that_was_closed_is_anybodys(path: Path) -> None:
    asyncio.run(SQLiteStore(str(path)).close())
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT count(*) FROM entry").fetchone() == (0,)


def test_whoever_opens_or_closes_it_in_another_thread_is_no_other_library(path: Path) -> None:
    """There is a moment when apsw has the file open and does not say so."""
    failed: list[BaseException] = []

    def open_and_close() -> None:
        try:
            for _ in range(ROUNDS):
                connect(str(path), WRITING).close()
        except BaseException as error:  # noqa: BLE001 - a thread's error would be lost.
            failed.append(error)

    threads = [threading.Thread(target=open_and_close) for _ in range(4)]
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switching)
    assert failed == []


def test_what_sqlite3_has_open_already_does_not_become_a_ledger(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 0")
        with pytest.raises(ConfigError) as refused:
            SQLiteStore(str(path))
        assert refused.value.code == "two_sqlite_libraries"
    asyncio.run(SQLiteStore(str(path)).close())


def test_nor_is_it_tried_as_a_surface(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE consumed (nonce TEXT PRIMARY KEY)")
        verdict = evaluate_surface(f"sqlite:///{path}", "consumed")
    assert not verdict.fit
    assert "sqlite3" in str(verdict)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_what_a_forked_child_writes_stays_when_its_parent_closes(path: Path) -> None:
    """The child has what its parent's SQLite remembers of locks, and none of them."""
    closed_by_parent, closed = os.pipe()
    written_by_child, written = os.pipe()

    async def as_a_child() -> None:
        async with SQLiteStore(str(path)) as store:
            await store.kept("before", "child")
            os.write(written, b".")
            os.read(closed_by_parent, 1)
            await store.kept("after", "child")

    async def as_the_parent(store: SQLiteStore) -> None:
        await store.kept("parent", "parent")
        os.read(written_by_child, 1)
        await store.close()
        os.write(closed, b".")

    with asyncio.Runner() as runner:
        store = SQLiteStore(str(path))
        child = _forked(lambda: _run_in_child(as_a_child))
        runner.run(as_the_parent(store))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for end in (closed_by_parent, closed, written_by_child, written):
        os.close(end)
    with closing(apsw.Connection(str(path))) as found:
        assert found.execute("SELECT name FROM meta ORDER BY name").fetchall() == [("after",), ("before",), ("parent",)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_was_forked_in_the_middle_of_a_transaction_opens_nothing(path: Path, store: SQLiteStore) -> None:
    """To close it would undo it in the memory that both share."""
    with closing(connect(str(path), WRITING)) as writing:
        writing.execute("BEGIN IMMEDIATE")
        child = _forked(lambda: _is_refused(path))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        writing.execute("INSERT INTO meta VALUES ('parent', 'goes on')")
        writing.execute("COMMIT")
    assert asyncio.run(store.kept("parent", "")) == "goes on"


def _forked(work: Callable[[], int]) -> int:
    child = os.fork()
    if not child:
        signal.alarm(GUARD_S)
        try:
            os._exit(work())
        finally:
            os._exit(3)
    return child


def _run_in_child(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    asyncio.new_event_loop().run_until_complete(work())
    return 0


def _is_refused(path: Path) -> int:
    try:
        connect(str(path), WRITING)
    except StoreUnavailable as error:
        return 0 if error.code == "forked" else 1
    return 2
