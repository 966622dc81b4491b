"""Long work is done in a thread, so that other requests are answered at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

AT_ONCE: Final = 500
"""Up to this many rows are processed on the event loop: a thread would cost more than it spares."""


async def aside(rows: int, make: Callable[[], T]) -> T:
    """What ``make`` makes of so many rows."""
    return await asyncio.to_thread(make) if rows > AT_ONCE else make()
