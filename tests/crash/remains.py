"""What a dead server has left on the disk, read from a copy: looking must not heal what the next life has to."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import apsw
import msgspec

from tests.crash.life import Life
from tests.crash.service import marks
from twophp.core.entry import LedgerEntry
from twophp.core.intent import INTENT, Phase
from twophp.core.machine import Goto
from twophp.core.phase import TABLE
from twophp.ports import JournalLine, Stalled, Tail
from twophp.stores.sqlite import SQLiteStore
from twophp.stores.sqlite.verify import verify

EVERYTHING: Final = 1_000_000
END_OF_TIME: Final = 2**53  # By then every lease has ended.
FINAL: Final = frozenset({Phase.COMMITTED, Phase.FAILED, Phase.ABANDONED})

# Every step that the phase machine knows, such as ("WAITING_CONFIRM", "PROCESSING").
LEGAL: Final = frozenset(
    (str(before), str(after))
    for start, row in TABLE.items()
    for cell in row.values()
    if isinstance(cell, Goto)
    for before, after in zip((start, *cell.path), cell.path, strict=False)
)


class Remains(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger, its history, and what the business side has to show."""

    entries: Sequence[LedgerEntry]
    unfinished: Sequence[LedgerEntry]  # What a ledger query for stalled and running calls finds.
    journal: Sequence[JournalLine]
    marks: dict[str, list[str]]
    rows: list[tuple[str, str]]

    @property
    def phase(self) -> Phase:
        """The phase of the only intent there is."""
        assert len(self.entries) <= 1
        return self.entries[0].phase if self.entries else Phase.ABSENT

    @property
    def runs(self) -> int:
        """How often the handler of the only intent had its effect."""
        assert len(self.marks) <= 1
        return sum(map(len, self.marks.values()))


def of(life: Life) -> Remains:
    """Everything that is there, after making sure that the journal holds and every record and row agrees with it."""
    copy = _copied(Path(life.database))
    if not copy.exists():
        return Remains(entries=[], unfinished=[], journal=[], marks={}, rows=[])
    found = asyncio.run(_read(copy, marks(life.marks), with_rows=life.effect == "row"))
    verify(str(copy)).require()
    _is_legal(found.journal)
    return found


def _copied(database: Path) -> Path:
    """The files as they lie there. The shared memory would not survive a crash of the machine, so it stays behind."""
    folder = database.parent / "remains"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for suffix in ("", "-wal"):
        file = database.with_name(database.name + suffix)
        if file.exists():
            shutil.copy(file, folder)
    return folder / database.name


async def _read(database: Path, marked: dict[str, list[str]], *, with_rows: bool) -> Remains:
    async with SQLiteStore(str(database)) as store:
        return Remains(
            entries=await store.entries(Tail(EVERYTHING)),
            unfinished=await store.entries(Stalled(END_OF_TIME)),
            journal=await store.journal(0, EVERYTHING),
            marks=marked,
            rows=_rows(store.path) if with_rows else [],
        )


def _rows(path: str) -> list[tuple[str, str]]:
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return list(connection.execute("SELECT server_correlation_id, run FROM orders"))
    finally:
        connection.close()


def _is_legal(journal: Sequence[JournalLine]) -> None:
    """Each intent's history begins with nothing, goes on where it was, and takes only steps that there are."""
    at: dict[str, str] = {}
    for event in (line.event for line in journal if line.event.kind == INTENT):
        assert event.before == at.get(event.subject, Phase.ABSENT), event
        assert (event.before, event.after) in LEGAL, event
        at[event.subject] = event.after
