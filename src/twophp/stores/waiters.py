"""Whoever waits for an intent that another replica executes, and is woken when that replica says that it has ended."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from zlib import crc32


def mark_of(correlation_id: str) -> str:
    """Short, and the same for two ids now and then: that wakes somebody for nothing."""
    return f"{crc32(correlation_id.encode(errors='replace')):08x}"


class Waiters:
    """Those of one process."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)

    async def wait(self, correlation_id: str, longest_s: float) -> None:
        """Until something about it was told, or so long."""
        mark, told = mark_of(correlation_id), asyncio.get_running_loop().create_future()
        self._waiting[mark].add(told)
        try:
            await asyncio.wait([told], timeout=longest_s)
        finally:
            self._waiting[mark].discard(told)
            if not self._waiting[mark]:
                del self._waiting[mark]

    def wake(self, marks: str) -> None:
        """These have ended; the marks are separated by commas."""
        for mark in marks.split(","):
            for told in self._waiting.get(mark, ()):
                if not told.done():
                    told.set_result(None)
