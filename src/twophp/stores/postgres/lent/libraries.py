"""Which library an application's object is of. None of them is imported for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twophp.core.errors import ConfigError
from twophp.stores.postgres.lent.connection import LentConnection
from twophp.stores.postgres.lent.of_asyncpg import OfAsyncpg
from twophp.stores.postgres.lent.of_django import OfDjango
from twophp.stores.postgres.lent.of_psycopg import OfAsyncPsycopg, OfPsycopg
from twophp.stores.postgres.lent.of_sqlalchemy import OfAsyncSqlalchemy, OfSqlalchemy

# The package and the class, of the object or of what its class is derived from.
_ADAPTERS: Final[dict[tuple[str, str], Callable[[object], LentConnection]]] = {
    ("sqlalchemy", "AsyncEngine"): OfAsyncSqlalchemy,
    ("sqlalchemy", "async_sessionmaker"): OfAsyncSqlalchemy,
    ("sqlalchemy", "Engine"): OfSqlalchemy,
    ("sqlalchemy", "sessionmaker"): OfSqlalchemy,
    ("asyncpg", "Pool"): OfAsyncpg,
    ("psycopg_pool", "AsyncConnectionPool"): OfAsyncPsycopg,
    ("psycopg_pool", "ConnectionPool"): OfPsycopg,
    ("django", "ConnectionProxy"): OfDjango,
    ("django", "BaseDatabaseWrapper"): OfDjango,
}


def lent_connection(source: object) -> LentConnection:
    """The adapter for a connection that is yet to be taken from ``source``."""
    for kind in type(source).__mro__:
        found = _ADAPTERS.get((kind.__module__.partition(".")[0], kind.__name__))
        if found is not None:
            return found(source)
    kind = type(source)
    message = (
        f"a transaction begins with an engine or sessionmaker of SQLAlchemy 2, a pool of psycopg 3 or asyncpg, or"
        f" Django's connection, and not with {kind.__module__}.{kind.__qualname__}"
    )
    raise ConfigError(message, code="unknown_connection")
