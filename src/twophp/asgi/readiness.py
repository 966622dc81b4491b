"""Whether a service can take work: ``GET /_2php/readyz``, for load balancers and operators.

200 if a change reaches the disk, else 503. Plain requests are the application's and are served either way; repeats are
answered from what is stored. The probe's own write is tried once a second at most, however often a prober asks.
"""

from __future__ import annotations

import asyncio
from typing import Final

from twophp.asgi.answers import OK, of_error
from twophp.asgi.messages import Answer
from twophp.core.errors import TwoPHPError
from twophp.ports import Store
from twophp.storing.reopening import proved

READY_PATH: Final = "/_2php/readyz"
TRY_INTERVAL_S: Final = 1.0
READY: Final = Answer(OK, ((b"content-type", b"application/json"), (b"cache-control", b"no-store")), b'{"status":"ok"}')


class Readiness:
    """The answer, found out anew when it is older than a second."""

    def __init__(self) -> None:
        self._answer = READY
        self._until = 0.0
        self._store: Store | None = None

    async def of(self, store: Store) -> Answer:
        """The answer to a prober about this store."""
        seconds = asyncio.get_running_loop().time
        if store is not self._store or seconds() >= self._until:
            self._store, self._until = store, seconds() + TRY_INTERVAL_S
            try:
                await proved(store)
                self._answer = READY
            except TwoPHPError as error:
                self._answer = of_error(error)
        return self._answer
