"""A ledger read from outside, beside its running service or long after it: read-only, and as of one moment.

An ``ObligationReader`` answers as a ``Store`` does about obligations, so that audit and report are written once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import apsw

from twophp.core.entry import LedgerEntry
from twophp.core.obligation import OBLIGATION, Obligation, by_id
from twophp.core.records import Instant, Key, Sealed
from twophp.ports import MOST_ROWS, Clock, Evidence, JournalLine, Obligations, Question, Tally
from twophp.stores.clock import system_clock
from twophp.stores.sqlite.history import asked, history, lines_after, obligations_asked
from twophp.stores.sqlite.reading import kept, snapshot
from twophp.stores.sqlite.sql import sql
from twophp.stores.sqlite.table import Row, Table
from twophp.stores.sqlite.tables import CALLS, INTENTS, JOBS, OBLIGATIONS, entry_of

MOST_DETAILS: Final = 1_000
"""No more lines, jobs or obligations of one call are read."""


class LedgerReader:
    """The ledger in one file, as it is at one moment."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._execute = connection.execute

    def service(self) -> str | None:
        """Whose ledger it is, if a service has ever opened it."""
        return kept(self._connection, "service")

    def entries(self, question: Question) -> list[LedgerEntry]:
        """See ``Store.entries``."""
        return [entry_of(row) for row in self._execute(*asked(question))]

    def changed_after(self, seq: int) -> list[LedgerEntry]:
        """The rows that a later line than ``seq`` is about, in the order of their latest change."""
        return [entry_of(row) for row in self._execute(sql("entries_changed_after"), (seq, MOST_ROWS))]

    def last_line(self) -> int:
        """The number of the journal's last line."""
        row: Row = next(self._execute(sql("read_head")))
        return int(row[0])

    def evidence(self, client_correlation_id: str, server_correlation_id: str) -> Evidence:
        """All about one call. Jobs and obligations are looked for row by row: no index knows whose they are."""
        pair = (client_correlation_id, server_correlation_id)
        intents = self._records(INTENTS, "intent_of_pair", *pair)
        calls = self._records(CALLS, "call_of_pair", *pair)
        return Evidence(
            intent=intents[0] if intents else None,
            call=calls[0] if calls else None,
            lines=self._lines(*pair),
            jobs=self._records(JOBS, "jobs_of_subject", server_correlation_id, MOST_DETAILS),
            obligations=self._records(OBLIGATIONS, "obligations_of_intent", server_correlation_id, MOST_DETAILS),
        )

    def _lines(self, *pair: str) -> tuple[JournalLine, ...]:
        about = list(self._execute(sql("last_lines_about_pair"), pair))
        found = [line for id_, last_line in about for line in history(self._connection, id_, last_line)]
        return tuple(sorted(found, key=lambda line: line.seq)[:MOST_DETAILS])

    def _records(self, table: Table, statement: str, *bindings: str | int) -> tuple[Any, ...]:
        return tuple(table.record(row) for row in self._execute(sql(statement), bindings))


@contextmanager
def ledger_reader(path: str) -> Iterator[LedgerReader]:
    """The ledger of a database, all of it as of one moment. Never makes or migrates anything, or holds a writer up."""
    with snapshot(path) as connection:
        yield LedgerReader(connection)


class ObligationReader(LedgerReader):
    """The obligations in one file. Nothing here waits, although it is asked as a store is."""

    def __init__(self, connection: apsw.Connection, clock: Clock) -> None:
        super().__init__(connection)
        self._clock = clock

    def now(self) -> Instant:
        """See ``Store.now``."""
        return max(self._clock(), int(self._rows("read_head", ())[0][2]))

    def find(self, obligation_id: str) -> Obligation | None:
        """The obligation with this id."""
        rows = self._rows("obligation_with_id", (obligation_id,))
        found: Any = OBLIGATIONS.record(rows[0]) if rows else None
        return found if isinstance(found, Obligation) else None

    def sealed(self, obligation_id: str) -> Sealed | None:
        """What was reserved, sealed as it lies there. None once it was rolled back, or if there was nothing."""
        rows = list(self._connection.execute(OBLIGATIONS.seal, (obligation_id, "payload")))
        return Sealed(rows[0][0]) if rows else None

    async def obligations(self, wanted: Obligations) -> Sequence[Obligation]:
        """See ``Store.obligations``."""
        statement, bindings = obligations_asked(wanted)
        found: list[Any] = [OBLIGATIONS.record(row) for row in self._connection.execute(statement, bindings)]
        return found

    async def history(self, key: Key) -> Sequence[JournalLine]:
        """See ``Store.history``."""
        found = self._connection.execute(OBLIGATIONS.last_line, key.values).fetchone()
        return [] if found is None else history(self._connection, *found)

    async def journal(self, after: int, limit: int) -> Sequence[JournalLine]:
        """See ``Store.journal``."""
        return list(lines_after(self._connection, after, limit))

    async def due(self, kind: str, before: Instant, limit: int) -> Sequence[Key]:
        """See ``Store.due``, for obligations alone."""
        assert kind == OBLIGATION
        return [by_id(row[0]) for row in self._connection.execute(OBLIGATIONS.due, (before, limit))]

    async def tally(self, since: Instant = 0) -> Sequence[Tally]:
        """See ``Store.tally``."""
        return [Tally(*row) for row in self._rows("tally_obligations", (since,))]

    def _rows(self, name: str, bindings: tuple[Any, ...]) -> list[Row]:
        return list(self._connection.execute(sql(name), bindings))


@contextmanager
def reading_obligations(path: str, *, clock: Clock = system_clock) -> Iterator[ObligationReader]:
    """The obligations in a file, as they are at one moment while others write on."""
    with snapshot(path) as connection:
        yield ObligationReader(connection, clock)
