"""A ledger read from outside, beside its running service or long after it: every question, and all about one call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import apsw

from twophp.core.entry import LedgerEntry
from twophp.ports import MOST_ROWS, Evidence, JournalLine, Question
from twophp.stores.sqlite.history import history
from twophp.stores.sqlite.questions import asked
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
