"""Work that takes long is done aside, in a thread: whoever else asks is answered meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

AT_ONCE: Final = 500
"""So many rows are worked on at once: a thread would cost more than it spares."""


async def aside(rows: int, make: Callable[[], T]) -> T:
    """What ``make`` makes of so many rows."""
    return await asyncio.to_thread(make) if rows > AT_ONCE else make()
