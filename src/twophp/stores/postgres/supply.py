"""Ids for a writer of PostgreSQL, and the database's time: what a batch takes up in one trip."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from twophp.ports import Clock
from twophp.stores.clock import StoreTime, steady_seconds, system_clock
from twophp.stores.database_clock import DatabaseClock

FRESH_S: Final = 1.0
"""So long a measured time is relied on, and so long ids are kept for use: they rise as records are made."""


class Supply:
    """Time and ids, looked up in one trip."""

    def __init__(self, clock: Clock) -> None:
        """``clock`` is the machine's, in whose place the database's comes, or one that was injected."""
        self._database = DatabaseClock() if clock is system_clock else None
        self.time = StoreTime(self._database or clock)
        self._ids: deque[int] = deque()
        self._looked_at = -FRESH_S
        self.last_id = 0

    async def look(self, connection: Any, statement: str, commands: int) -> None:
        """Ask for both if there is need: so many commands are to be decided."""
        seconds = steady_seconds()
        if seconds - self._looked_at < FRESH_S and len(self._ids) >= commands:
            return
        if seconds - self._looked_at >= FRESH_S:
            self._ids.clear()
        before_ns = 0 if self._database is None else self._database.steady_ns()
        at, ids = await connection.fetchrow(statement, 2 * commands)
        if self._database is not None:
            self._database.measured(at, before_ns)
        self._ids.extend(ids)
        self._looked_at = seconds

    async def have(self, connection: Any, statement: str, count: int) -> None:
        """So many ids are needed, which is more than commands mostly make."""
        if len(self._ids) < count:
            _at, ids = await connection.fetchrow(statement, count - len(self._ids))
            self._ids.extend(ids)

    def next_id(self) -> int:
        """An id that nobody else has."""
        self.last_id = self._ids.popleft()
        return self.last_id
