"""A connection of asyncpg's pool."""

from __future__ import annotations

from typing import Any

from twophp.stores.postgres.lent.connection import ThroughDriver


class OfAsyncpg(ThroughDriver):
    """See ``LentConnection``."""

    is_blocking = False
    _connection: Any
    _transaction: Any

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def begin(self, first: str) -> tuple[Any, int | None]:  # noqa: ARG002 - it has a mark.
        """See ``LentConnection.begin``."""
        self._connection = self._driver = await self._pool.acquire()
        try:
            self._transaction = self._connection.transaction(deferrable=True)
            await self._transaction.start()
        except BaseException:
            await self._pool.release(self._connection)  # It resets what is released.
            raise
        return self._connection, None

    async def flush(self) -> None:
        """It keeps nothing back."""

    async def commit(self) -> None:
        """See ``LentConnection.commit``."""
        await self._transaction.commit()

    async def undo(self) -> None:
        """See ``LentConnection.undo``."""
        try:
            if not self._connection.is_closed():
                await self._transaction.rollback()
        finally:
            await self.close()

    async def close(self) -> None:
        """See ``LentConnection.close``."""
        await self._pool.release(self._connection)
