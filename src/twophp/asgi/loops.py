"""The event loop that a service runs on."""

from __future__ import annotations

import asyncio


class LockOfLoop:
    """A lock that can be used again on another event loop. An asyncio lock stays with the first that waited for it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self) -> asyncio.Lock:
        """The lock for the loop that runs."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._lock = loop, asyncio.Lock()
        return self._lock
