"""A writer's chain of links, its ids, and the database's time: what a batch takes up and hands on."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import msgspec

from twophp.core.records import Instant
from twophp.kernel.journal import GENESIS
from twophp.ports import Clock
from twophp.stores.clock import AnchoredClock, StoreTime, steady_seconds, system_clock

LINE_BITS: Final = 40
"""A line's number is its writer's, shifted by so much, and its place among that writer's lines."""
FRESH_S: Final = 1.0
"""So long a measured time is relied on, and so long ids are kept for use: they rise as records are made."""
_STEP_NS: Final = 500_000_000
_CLOSE_NS: Final = 50_000_000
_NS_PER_MS: Final = 1_000_000


class Chain(msgspec.Struct, frozen=True):
    """Who writes, and how far it has come. Every handle has a row of its own, which no other updates."""

    id: int
    seq: int = 0
    link: int = 0
    lines: int = 0
    hash: bytes = GENESIS

    @property
    def last_line(self) -> int:
        """The number of its last line; also before there is one."""
        return self.id << LINE_BITS | self.lines


class DatabaseClock(AnchoredClock):
    """The database's time, carried on between looks by a clock that nobody can set.

    It never turns back: where a look says less than before it stands for as long as a message takes, and where the
    server's clock was set back it goes on as it was.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: Instant = 0
        self._is_measured = False

    def __call__(self) -> Instant:
        """See ``AnchoredClock``."""
        self._last = max(self._last, super().__call__())
        return self._last

    def steady_ns(self) -> int:
        """What a look is measured by."""
        return self._steady_ns()

    def measured(self, at: Instant, before_ns: int) -> None:
        """The database said ``at`` after we asked at ``before_ns``, and it is heard now."""
        after_ns = self._steady_ns()
        anchor_ns = at * _NS_PER_MS - (before_ns + after_ns) // 2
        further_ns = anchor_ns - self._anchor_ns
        if not self._is_measured or further_ns > _STEP_NS:
            self._anchor_ns, self._is_measured = anchor_ns, True
        elif further_ns > -_STEP_NS and after_ns - before_ns < _CLOSE_NS:
            self._anchor_ns = anchor_ns


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
