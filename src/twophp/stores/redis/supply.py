"""Ids for a writer of Redis, and the server's time: both come with what a batch reads."""

from __future__ import annotations

from typing import Final

from twophp.ports import Clock
from twophp.stores.clock import StoreTime, steady_seconds, system_clock
from twophp.stores.database_clock import DatabaseClock
from twophp.stores.redis.driver import Server
from twophp.stores.redis.layout import Layout

FRESH_S: Final = 1.0
"""So long ids are kept for use: they rise as records are made, whichever replica makes them."""
AT_ONCE: Final = 256
"""Taking some is a write, which waits for the disk."""


class Supply:
    """Time and ids."""

    def __init__(self, clock: Clock) -> None:
        """``clock`` is the machine's, in whose place the server's comes, or one that was injected."""
        self._server_time = DatabaseClock() if clock is system_clock else None
        self.time = StoreTime(self._server_time or clock)
        self._ids = iter(range(0))
        self._left = 0
        self._taken_at = -FRESH_S
        self.last_id = 0

    def lacking(self, count: int) -> int:
        """How many ids to ask for, so that there are so many."""
        if not count or (self._left >= count and steady_seconds() - self._taken_at < FRESH_S):
            return 0
        return max(count, AT_ONCE)

    def asks(self) -> int:
        """The moment before the server is asked."""
        return 0 if self._server_time is None else self._server_time.steady_ns()

    def heard(self, before_ns: int, seconds: int, micros: int, last: int, count: int) -> None:
        """The server said what time it is, and gave so many ids."""
        if self._server_time is not None:
            self._server_time.measured(seconds * 1_000 + micros // 1_000, before_ns)
        if count:
            self._take(last, count)

    def _take(self, last: int, count: int) -> None:
        self._ids, self._left, self._taken_at = iter(range(last - count + 1, last + 1)), count, steady_seconds()

    async def have(self, server: Server, keys: Layout, count: int) -> None:
        """So many ids are needed, which is more than commands mostly make."""
        if count > self._left:
            self._take(await server.ask("HINCRBY", keys.of("state"), "ids", count), count)

    def next_id(self) -> int:
        """An id that nobody else has."""
        self.last_id, self._left = next(self._ids), self._left - 1
        return self.last_id
