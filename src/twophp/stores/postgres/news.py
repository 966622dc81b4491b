"""News between replicas: who waits for an intent that another replica executes is woken when that has ended.

A batch tells after its COMMIT, on another connection: a NOTIFY inside of it would make all commits of the database wait
for each other. It is told as a courtesy. Nothing depends on it, for whoever waits looks for itself now and then, and
behind a pooler, where no session can listen, that is all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from contextvars import Context
from typing import Any, Final

from twophp.stores.clock import steady_seconds
from twophp.stores.postgres import driver
from twophp.stores.postgres.script import Script
from twophp.stores.waiters import Waiters, mark_of

log: Final = logging.getLogger("twophp.store")

TOLD_AT_ONCE: Final = 500
"""A message has room for 8,000 bytes."""
AGAIN_S: Final = 5.0
"""So long nobody tries again to listen, after it has failed."""


class News:
    """One session that listens, from when somebody first waits, and the messages that are still to be sent."""

    def __init__(self, pool: Any, script: Script, *, is_pooled: bool) -> None:
        self._pool = pool
        self._script = script
        self._channel = f"twophp_{script.schema}"
        self._can_listen = not is_pooled
        self._session: Any = None
        self._opening: asyncio.Task[None] | None = None
        self._not_before = -AGAIN_S
        self._waiters = Waiters()
        self._untold: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    async def wait(self, correlation_id: str, longest_s: float) -> None:
        """Until something about it was told, or so long."""
        self._begin_to_listen()
        await self._waiters.wait(correlation_id, longest_s)

    def _begin_to_listen(self) -> None:
        """Beside whoever waits, who looks for itself meanwhile: a connection may take long to be had, or fail."""
        if not self._can_listen or self._opening is not None or steady_seconds() < self._not_before:
            return
        if self._session is None or driver.is_gone(self._session):
            self._opening = asyncio.get_running_loop().create_task(self._listen(), context=Context())

    async def _listen(self) -> None:
        try:
            async with asyncio.timeout(driver.CONNECT_S):
                await self._let_go()
                self._session = await self._pool.acquire()
                await self._session.add_listener(self._channel, self._heard)
        except driver.THEIRS as error:
            log.info("no news of other replicas; their outcomes are looked for now and then: %s", error)
            self._not_before = steady_seconds() + AGAIN_S
            await self._let_go()
        finally:
            self._opening = None

    def _heard(self, _session: Any, _pid: int, _channel: str, marks: str) -> None:
        self._waiters.wake(marks)

    def tell(self, correlation_ids: Iterable[str]) -> None:
        """These have ended, and that is durable. Nobody waits until it is told."""
        if self._can_listen:  # Behind a pooler the others cannot listen either.
            self._untold.update(dict.fromkeys(map(mark_of, correlation_ids)))
            if self._untold and self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._untold:
                marks = list(self._untold)[:TOLD_AT_ONCE]
                for mark in marks:
                    del self._untold[mark]
                await self._pool.execute(self._script.named("tell"), self._channel, ",".join(marks))
        except driver.THEIRS as error:
            log.info("other replicas were not told: %s", error)
        finally:
            self._task = None

    async def close(self) -> None:
        """Say what is still to be said, and listen no more."""
        self._can_listen = False
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._task is not None:
            await asyncio.wait([self._task], timeout=driver.CONNECT_S)
        await self._let_go()

    async def _let_go(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(*driver.THEIRS):
                await session.remove_listener(self._channel, self._heard)
            with suppress(*driver.THEIRS):
                await self._pool.release(session)
