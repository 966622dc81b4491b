"""Verification knows calls: an edited one, a deleted one, and a ledger row that says something else are found."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tests.stores.verifying import found
from twophp.core.call_commands import Note, Tick
from twophp.core.call_machine import DEFAULT_CARE
from twophp.core.intent import Phase
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.testing.calls import ended, opening, registered, take
from twophp.stores.testing.scene import WRITER, HandClock
from twophp.storing.reopening import open_ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three calls: one that has ended, one that waits, one that is only noted; and one that was forgotten."""
    file = tmp_path / "ledger.db"

    async def fill() -> None:
        clock = HandClock()
        async with SQLiteStore(str(file), clock=clock) as store:
            await open_ledger(store, WRITER.source, lambda: WRITER.service_ledger_id)
            await take(store, registered("0"), "0")
            await take(store, ended(Phase.FAILED), "0")
            clock.now += DEFAULT_CARE.kept_ms
            await take(store, Tick(owner="x"), "0")
            await take(store, registered("1"))
            await take(store, ended())
            await take(store, registered("2"), "2")
            await take(store, Note(opening=opening("3")), "3")

    asyncio.run(fill())
    return file


def edit(path: Path, statement: str) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(statement)


def test_an_untouched_ledger_holds(path: Path) -> None:
    assert found(path) == []


@pytest.mark.parametrize(
    ("statement", "what", "subject"),
    [
        ("UPDATE call SET stage = 'COMMITTED' WHERE client_correlation_id = 'client-2'", "record_differs", "client-2"),
        ("UPDATE call SET fence = 9 WHERE client_correlation_id = 'client-1'", "record_differs", "client-1"),
        ("UPDATE call SET status = 500 WHERE client_correlation_id = 'client-1'", "record_differs", "client-1"),
        ("UPDATE call SET url = 'https://evil' WHERE client_correlation_id = 'client-3'", "record_differs", "client-3"),
        ("DELETE FROM call WHERE client_correlation_id = 'client-3'", "record_missing", "client-3"),
        (
            "UPDATE client_entry SET target = 'evil' WHERE client_correlation_id = 'client-1'",
            "entry_differs",
            "client-1",
        ),
        (
            "UPDATE client_entry SET parent_reference_id = 'x' WHERE client_correlation_id = 'client-2'",
            "entry_differs",
            "client-2",
        ),
        ("DELETE FROM client_entry WHERE client_correlation_id = 'client-2'", "entry_missing", "client-2"),
        (
            "UPDATE client_entry SET phase = 'COMMITTED' WHERE client_correlation_id = 'client-0'",
            "entry_differs",
            "client-0",
        ),
        (
            "UPDATE client_entry SET source = 'evil' WHERE client_correlation_id = 'client-0'",
            "entry_differs",
            "client-0",
        ),
    ],
)
def test_an_edit_is_found(statement: str, what: str, subject: str, path: Path) -> None:
    edit(path, statement)
    assert (what, subject) in {(finding, about) for finding, _seq, about in found(path)}
