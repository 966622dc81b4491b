"""The event loop that a service runs on."""

from __future__ import annotations

import asyncio
from typing import Final

from twophp.core.errors import ConfigError

NEEDS_ASYNCIO: Final = "two-phase requests need asyncio: run the server with its asyncio worker, not with trio"


def runs_asyncio() -> bool:
    """Whether this is called under asyncio, which the store and the executions need. Trio is another event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def check_loop() -> None:
    """Raise ConfigError unless this is called under asyncio."""
    if not runs_asyncio():
        raise ConfigError(NEEDS_ASYNCIO, code="needs_asyncio")


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
