"""A session of SQLAlchemy 2, over asyncpg or psycopg 3.

The session joins a transaction of ours with a savepoint. Its own ``commit`` and ``rollback`` reach as far as that, so
code that calls them works, and the transaction stays ours. The settlement uses the driver's own connection.
"""

from __future__ import annotations

from typing import Any, Final

from twophp.core.errors import ConfigError
from twophp.stores.postgres.lent.connection import ThroughDriver
from twophp.stores.postgres.lent.of_psycopg import AsyncRaw, Raw

_JOINS: Final = {"join_transaction_mode": "create_savepoint"}


def bound_engine(source: Any, maker: Any) -> tuple[Any, Any]:
    """The engine, and what makes a session: of an engine, ``maker``; of a sessionmaker, itself."""
    options = getattr(source, "kw", None)
    engine = source if options is None else options.get("bind")
    if engine is None:
        raise ConfigError("the sessionmaker has no engine: give it bind=", code="unknown_connection")
    url = engine.url
    if url.get_backend_name() != "postgresql" or url.get_driver_name() not in ("asyncpg", "psycopg", "psycopg_async"):
        message = f"a transaction of yours needs PostgreSQL through asyncpg or psycopg 3, and not {url.drivername}"
        raise ConfigError(message, code="unknown_connection")
    return engine, maker if options is None else source


class OfSqlalchemy(ThroughDriver):
    """See ``LentConnection``; of an ``Engine`` or a ``sessionmaker``."""

    is_blocking = True
    _connection: Any
    _session: Any

    def __init__(self, source: Any) -> None:
        from sqlalchemy.orm import Session  # noqa: PLC0415 - whoever lends us its engine has it.

        self._engine, self._maker = bound_engine(source, Session)

    async def begin(self, first: str) -> tuple[Any, int | None]:
        """See ``LentConnection.begin``."""
        self._connection = self._engine.connect()
        try:
            self._connection.begin()
            (number,) = self._connection.exec_driver_sql(first).one()
            self._driver = Raw(self._connection.connection.driver_connection)
            self._session = self._maker(bind=self._connection, **_JOINS)
        except BaseException:
            self._connection.close()
            raise
        return self._session, number

    async def flush(self) -> None:
        """See ``LentConnection.flush``."""
        self._session.flush()

    async def commit(self) -> None:
        """See ``LentConnection.commit``."""
        self._connection.commit()

    async def undo(self) -> None:
        """See ``LentConnection.undo``."""
        try:
            self._session.close()
        finally:
            self._connection.close()

    async def close(self) -> None:
        """See ``LentConnection.close``."""
        await self.undo()


class OfAsyncSqlalchemy(ThroughDriver):
    """See ``LentConnection``; of an ``AsyncEngine`` or an ``async_sessionmaker``."""

    is_blocking = False
    _first: str
    _connection: Any
    _session: Any

    def __init__(self, source: Any) -> None:
        from sqlalchemy.ext.asyncio import AsyncSession  # noqa: PLC0415

        self._engine, self._maker = bound_engine(source, AsyncSession)
        self._is_asyncpg = self._engine.url.get_driver_name() == "asyncpg"

    async def begin(self, first: str) -> tuple[Any, int | None]:
        """See ``LentConnection.begin``. The driver begins with SQLAlchemy's first statement."""
        number, self._first = None, first
        self._connection = await self._engine.connect()
        try:
            if self._is_asyncpg:
                await self._connection.execution_options(postgresql_deferrable=True)
                await self._connection.begin()
                self._driver = (await self._connection.get_raw_connection()).driver_connection
            else:
                await self._connection.begin()
                (number,) = (await self._connection.exec_driver_sql(first)).one()
                self._driver = AsyncRaw((await self._connection.get_raw_connection()).driver_connection)
            self._session = self._maker(bind=self._connection, **_JOINS)
        except BaseException:
            await self._connection.close()
            raise
        return self._session, number

    async def flush(self) -> None:
        """See ``LentConnection.flush``."""
        await self._session.flush()
        if self._is_asyncpg and not self._driver.is_in_transaction():  # Nothing was asked of it yet, so it begins now.
            await self._connection.exec_driver_sql(self._first)

    async def commit(self) -> None:
        """See ``LentConnection.commit``."""
        await self._connection.commit()

    async def undo(self) -> None:
        """See ``LentConnection.undo``."""
        try:
            await self._session.close()
        finally:
            await self._connection.close()

    async def close(self) -> None:
        """See ``LentConnection.close``."""
        await self.undo()
