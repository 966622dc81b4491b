"""A connection of a pool of psycopg 3, and how statements with ``$n`` are run on any connection of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twophp.stores.postgres.lent.connection import Row, ThroughDriver, as_lists


class Raw:
    """Runs statements on a blocking connection of psycopg."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, *values: Any) -> Sequence[Row]:
        """The rows that a statement answers."""
        from psycopg import RawCursor  # noqa: PLC0415 - whoever lends us a connection of psycopg has it.
        from psycopg.rows import tuple_row  # noqa: PLC0415

        with RawCursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(statement, as_lists(values) or None)
            return cursor.fetchall()


class AsyncRaw:
    """The same on a connection that does not block."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, *values: Any) -> Sequence[Row]:
        """The rows that a statement answers."""
        from psycopg import AsyncRawCursor  # noqa: PLC0415
        from psycopg.rows import tuple_row  # noqa: PLC0415

        async with AsyncRawCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(statement, as_lists(values) or None)
            return await cursor.fetchall()


class OfPsycopg(ThroughDriver):
    """See ``LentConnection``; of a ``ConnectionPool``."""

    is_blocking = True
    _connection: Any
    _transaction: Any

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def begin(self, first: str) -> tuple[Any, int | None]:
        """See ``LentConnection.begin``. Inside the library's own block nobody else can commit."""
        self._connection = self._pool.getconn()
        try:
            self._driver = Raw(self._connection)
            self._transaction = self._connection.transaction()
            self._transaction.__enter__()
            [[number]] = await self._driver.fetch(first)
        except BaseException:
            self._pool.putconn(self._connection)  # It resets what is given back.
            raise
        return self._connection, number

    async def flush(self) -> None:
        """It keeps nothing back."""

    async def commit(self) -> None:
        """See ``LentConnection.commit``."""
        self._transaction.__exit__(None, None, None)

    async def undo(self) -> None:
        """See ``LentConnection.undo``."""
        from psycopg import Rollback  # noqa: PLC0415

        try:
            if not self._connection.closed:
                self._transaction.__exit__(Rollback, Rollback(self._transaction), None)
        finally:
            await self.close()

    async def close(self) -> None:
        """See ``LentConnection.close``."""
        self._pool.putconn(self._connection)


class OfAsyncPsycopg(ThroughDriver):
    """See ``LentConnection``; of an ``AsyncConnectionPool``."""

    is_blocking = False
    _connection: Any
    _transaction: Any

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def begin(self, first: str) -> tuple[Any, int | None]:
        """See ``LentConnection.begin``. Inside the library's own block nobody else can commit."""
        self._connection = await self._pool.getconn()
        try:
            self._driver = AsyncRaw(self._connection)
            self._transaction = self._connection.transaction()
            await self._transaction.__aenter__()
            [[number]] = await self._driver.fetch(first)
        except BaseException:
            await self._pool.putconn(self._connection)  # It resets what is given back.
            raise
        return self._connection, number

    async def flush(self) -> None:
        """It keeps nothing back."""

    async def commit(self) -> None:
        """See ``LentConnection.commit``."""
        await self._transaction.__aexit__(None, None, None)

    async def undo(self) -> None:
        """See ``LentConnection.undo``."""
        from psycopg import Rollback  # noqa: PLC0415

        try:
            if not self._connection.closed:
                await self._transaction.__aexit__(Rollback, Rollback(self._transaction), None)
        finally:
            await self.close()

    async def close(self) -> None:
        """See ``LentConnection.close``."""
        await self._pool.putconn(self._connection)
