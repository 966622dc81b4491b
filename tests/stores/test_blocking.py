"""The handle for threads: the first thread writes for all that wait, and an interrupt affects no other thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from twophp.core.errors import CommitUnknown, StoreOverloaded, StorePoisoned, StoreUnavailable
from twophp.core.records import Key
from twophp.kernel.commands import AdHocCommand
from twophp.ports import Change, Records, Statement
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.blocking import BlockingSQLite

KEYS: tuple[Key, ...] = ()
NOTE = "INSERT INTO meta (name, value) VALUES (?, '')"


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "ledger.db")

    async def make() -> None:
        await SQLiteStore(path).close()

    asyncio.run(make())
    return path


@pytest.fixture
def handle(path: str) -> Iterator[BlockingSQLite]:
    handle = BlockingSQLite(path)
    yield handle
    handle.close()


def noting(name: str) -> Callable[[Records], Change]:
    return lambda _records: Change(answer=name, statements=(Statement(sql=NOTE, rows=[(name,)]),))


def noted(path: str) -> set[str]:
    """What is on the disk, seen through a connection of its own."""
    connection = apsw.Connection(path)
    try:
        return {name for (name,) in connection.execute("SELECT name FROM meta WHERE value = ''")}
    finally:
        connection.close()


def test_it_is_durable_before_it_returns(handle: BlockingSQLite, path: str) -> None:
    assert handle.transact(AdHocCommand(KEYS, noting("one"))) == "one"
    assert noted(path) == {"one"}


def test_what_was_handed_over_goes_with_the_next_that_is_waited_for(handle: BlockingSQLite, path: str) -> None:
    told: list[tuple[Any, Exception | None]] = []
    handle.hand_over(AdHocCommand(KEYS, noting("behind")), lambda *outcome: told.append(outcome))
    assert (noted(path), told, handle.is_idle()) == (set(), [], False)
    handle.transact(AdHocCommand(KEYS, noting("waited")))
    assert (noted(path), told, handle.is_idle()) == ({"behind", "waited"}, [("behind", None)], True)
    assert (handle._writer.load().batches, handle._writer.load().changes) == (1, 2)


def test_threads_that_wait_while_another_writes_share_the_next_flush(handle: BlockingSQLite, path: str) -> None:
    inside, go = threading.Event(), threading.Event()

    def slow(_records: Records) -> Change:
        inside.set()
        go.wait()
        return noting("slow")(_records)

    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(handle.transact, AdHocCommand(KEYS, slow))
        inside.wait()
        others = [threads.submit(handle.transact, AdHocCommand(KEYS, noting(str(number)))) for number in range(8)]
        while len(handle._waiting) < 9:
            threading.Event().wait(0.001)
        go.set()
        assert first.result() == "slow"
        assert {other.result() for other in others} == {str(number) for number in range(8)}
    assert len(noted(path)) == 9
    assert handle._writer.load().batches == 2


def test_a_decision_that_fails_is_its_callers_alone(handle: BlockingSQLite, path: str) -> None:
    def broken(_records: Records) -> Change:
        raise ValueError("mine")

    handle.hand_over(AdHocCommand(KEYS, noting("good")), lambda *_outcome: None)
    with pytest.raises(ValueError, match="mine"):
        handle.transact(AdHocCommand(KEYS, broken))
    assert noted(path) == {"good"}


def test_an_interrupted_thread_gives_the_others_an_unknown_outcome(handle: BlockingSQLite, path: str) -> None:
    told: list[tuple[Any, Exception | None]] = []

    def interrupted(_records: Records) -> Change:
        raise KeyboardInterrupt

    handle.hand_over(AdHocCommand(KEYS, noting("behind")), lambda *outcome: told.append(outcome))
    with pytest.raises(KeyboardInterrupt):
        handle.transact(AdHocCommand(KEYS, interrupted))
    ((answer, error),) = told
    assert (answer, type(error)) == (None, CommitUnknown)
    assert noted(path) == set()
    assert handle.transact(AdHocCommand(KEYS, noting("after"))) == "after", "and it goes on"
    assert noted(path) == {"after"}


@pytest.mark.parametrize("written", [True, False])
def test_after_a_failed_commit_it_is_opened_anew(
    handle: BlockingSQLite, path: str, monkeypatch: pytest.MonkeyPatch, *, written: bool
) -> None:
    writer = handle._writer

    def broken() -> None:
        if written:
            writer._connection.execute("COMMIT")
        raise apsw.IOError("injected")

    monkeypatch.setattr(writer, "_sync", broken)
    with pytest.raises(CommitUnknown):
        handle.transact(AdHocCommand(KEYS, noting("one")))
    with pytest.raises(StorePoisoned):
        handle.transact(AdHocCommand(KEYS, noting("two")))
    handle.reopen()
    handle.transact(AdHocCommand(KEYS, noting("three")))
    assert noted(path) == ({"one", "three"} if written else {"three"})


def test_reopening_writes_over_what_failed(handle: BlockingSQLite, path: str) -> None:
    """A commit whose sync failed lies behind the end of the log, and a recovery from a crash would find it."""
    written = _opened(path)
    handle.reopen()
    assert _opened(path) == written + 1


def _opened(path: str) -> int:
    with closing(apsw.Connection(path)) as connection:
        return int(connection.execute("SELECT opened FROM head").get)


@pytest.mark.usefixtures("path")
def test_it_is_opened_anew_wherever_the_process_is_by_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    handle = BlockingSQLite("ledger.db")
    monkeypatch.chdir(tmp_path / "elsewhere")
    handle.reopen()
    handle.transact(AdHocCommand(KEYS, noting("one")))
    handle.close()
    assert noted(str(tmp_path / "ledger.db")) == {"one"}


def test_a_file_that_is_gone_is_not_made_anew(handle: BlockingSQLite, path: str) -> None:
    Path(path).rename(f"{path}.moved")
    with pytest.raises(StoreUnavailable):
        handle.reopen()
    assert not Path(path).exists()


def test_what_was_closed_is_not_reopened(path: str) -> None:
    handle = BlockingSQLite(path)
    handle.close()
    with pytest.raises(StoreUnavailable) as refusal:
        handle.reopen()
    assert refusal.value.code == "store_closed"


def test_it_is_bounded_and_it_ends(path: str) -> None:
    handle = BlockingSQLite(path, capacity=1)
    handle.hand_over(AdHocCommand(KEYS, noting("one")), lambda *_outcome: None)
    with pytest.raises(StoreOverloaded):
        handle.transact(AdHocCommand(KEYS, noting("two")))
    handle.close()
    assert noted(path) == {"one"}, "closing finishes what was accepted"
    with pytest.raises(StoreUnavailable) as refusal:
        handle.transact(AdHocCommand(KEYS, noting("three")))
    assert refusal.value.code == "store_closed"


def test_it_waits_for_another_writer(handle: BlockingSQLite, path: str) -> None:
    other = apsw.Connection(path)
    other.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(handle.transact, AdHocCommand(KEYS, noting("one")))
        other.execute("COMMIT")
        assert waiting.result() == "one"
    other.close()
