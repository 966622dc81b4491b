"""Obligations read from outside, beside a running service or long after it: read-only, and as of one moment.

It answers the same questions as a ``Store`` does about obligations, so that audit and report need only be written once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import apsw

from twophp.core.obligation import OBLIGATION, Obligation, by_id
from twophp.core.records import Instant, Key, Sealed
from twophp.ports import Clock, JournalLine, Obligations, Tally
from twophp.stores.clock import system_clock
from twophp.stores.sqlite.history import history, lines_after
from twophp.stores.sqlite.questions import obligations_asked
from twophp.stores.sqlite.reading import kept, snapshot
from twophp.stores.sqlite.sql import sql
from twophp.stores.sqlite.table import Row
from twophp.stores.sqlite.tables import OBLIGATIONS


class ObligationReader:
    """The obligations in one file. Nothing here waits, although it is asked as a store is."""

    def __init__(self, connection: apsw.Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock

    def service(self) -> str | None:
        """The service whose obligations they are; None if no service has opened the file yet."""
        return kept(self._connection, "service")

    def last_line(self) -> int:
        """The number of the journal's last line."""
        return int(self._rows("read_head", ())[0][0])

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
