"""Two copies of SQLite in one process take each other's locks away: the second one is refused (ADR 14)."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from twophp.core.errors import ConfigError
from twophp.registrar import evaluate_surface
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.one_library import connect

ROUNDS = 500
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


def test_another_library_may_open_a_closed_ledger(path: Path) -> None:
    asyncio.run(SQLiteStore(str(path)).close())
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT count(*) FROM entry").fetchone() == (0,)


def test_another_thread_that_opens_or_closes_it_is_no_other_library(path: Path) -> None:
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
