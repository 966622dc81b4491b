"""Chains of the journal to lend: a settlement outside of the writer's batches continues one of these.

Each is a writer with a row of its own (ADR 38). There are as many as settlements ever ran at once, and no more than
``MOST``; the one that came back last is lent first.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from twophp.core.errors import StoreOverloaded
from twophp.stores.chains import Chain
from twophp.stores.postgres import driver, opening
from twophp.stores.postgres.script import Script

MOST: Final = 32


class LentChains:
    """The chains of one handle. Use it on the store's loop."""

    def __init__(self, pool: Any, script: Script, name: str) -> None:
        self._pool = pool
        self._script = script
        self._name = name
        self._free: list[Chain] = []
        self._places = asyncio.Semaphore(MOST)

    async def take(self) -> Chain:
        """One that nobody else continues."""
        await self._places.acquire()
        if self._free:
            return self._free.pop()
        try:
            async with driver.in_our_words():
                connection = await self._acquired()
                try:
                    chain, _at = await opening.begin_writer(connection, self._script, self._name)
                finally:
                    await self._pool.release(connection)
        except BaseException:
            self._places.release()
            raise
        return chain

    def give_back(self, chain: Chain) -> None:
        """As far as it has come."""
        self._free.append(chain)
        self._places.release()

    def drop(self) -> None:
        """One that was lent does not come back."""
        self._places.release()

    async def close(self, chain: Chain) -> None:
        """Nothing more becomes durable in this one: a commit that is under way is waited for, a later one fails."""
        async with driver.in_our_words():
            connection = await self._acquired()
            try:
                await opening.close_writer(connection, self._script, chain)
            finally:
                with suppress(*driver.THEIRS):
                    await self._pool.release(connection)

    async def _acquired(self) -> Any:
        try:
            return await self._pool.acquire(timeout=driver.CONNECT_S)
        except TimeoutError as error:
            raise StoreOverloaded("all connections to the database are busy") from error
