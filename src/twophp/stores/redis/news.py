"""News between replicas: a batch that ends an intent publishes that in its own script; who waits for it is woken.

Nothing depends on it, for whoever waits looks for itself now and then.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from contextvars import Context
from typing import Any, Final

from twophp.stores.clock import steady_seconds
from twophp.stores.redis import driver
from twophp.stores.redis.driver import Server
from twophp.stores.waiters import Waiters

log: Final = logging.getLogger("twophp.store")

AGAIN_S: Final = 5.0
"""So long nobody tries again to listen, after it has failed."""


class News:
    """One connection that listens, from when somebody first waits."""

    def __init__(self, server: Server, channel: str) -> None:
        self._server = server
        self._channel = channel
        self._waiters = Waiters()
        self._task: asyncio.Task[None] | None = None
        self._not_before = -AGAIN_S

    async def wait(self, correlation_id: str, longest_s: float) -> None:
        """Until something about it was told, or so long."""
        if self._task is None and steady_seconds() >= self._not_before:
            self._task = asyncio.get_running_loop().create_task(self._listen(), context=Context())
        await self._waiters.wait(correlation_id, longest_s)

    async def _listen(self) -> None:
        client: Any = None
        try:
            client = self._server.listener()
            async with client.pubsub(ignore_subscribe_messages=True) as heard:
                await heard.subscribe(self._channel)
                async for message in heard.listen():
                    self._waiters.wake(message["data"].decode())
        except driver.THEIRS as error:
            log.info("no news of other replicas; their outcomes are looked for now and then: %s", error)
        finally:
            self._not_before, self._task = steady_seconds() + AGAIN_S, None
            if client is not None:
                with suppress(*driver.THEIRS):
                    await client.aclose()

    async def close(self) -> None:
        """Listen no more."""
        self._not_before = float("inf")
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
