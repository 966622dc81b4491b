"""Where a registrar keeps its rows, looked at and edited without it: a file, or a schema of PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final, Protocol

import apsw
import asyncpg  # type: ignore[import-untyped]
import pytest

from twophp.stores.portal import Portal
from twophp.stores.postgres.driver import place_of
from twophp.stores.postgres.verify import verify as verify_database
from twophp.stores.sqlite.registrar import as_registrar
from twophp.stores.sqlite.verify import Report
from twophp.stores.sqlite.verify import verify as verify_file

REGISTRAR: Final = "registrar_"
CONSUMED: Final = "registrar_consumed"


REGISTRARS_TABLES: Final = """
SELECT relname FROM pg_class WHERE relnamespace = ?::text::regnamespace AND relkind = 'r' AND relname LIKE ?
"""
REGISTRARS_CHECKS: Final = """
SELECT relname, conname FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid
WHERE connamespace = ?::text::regnamespace AND relname LIKE ? AND contype = 'c'
"""
COLUMNS: Final = "SELECT attname FROM pg_attribute WHERE attrelid = ?::text::regclass AND attnum > 1 ORDER BY attnum"


class Place(Protocol):
    """What the tests ask of it. Statements name tables alone, and their values by ``?``."""

    def query(self, sql: str, *bindings: Any) -> Any:
        """The first row; its value, if it has but one."""
        ...

    def tamper(self, *statements: str) -> None:
        """What an attacker can do: as the registrar, without triggers and without constraints."""
        ...

    def insert_again(self, changes: Mapping[str, Any]) -> None:
        """Insert the consume row once more, changed, as a registrar without any rules would."""
        ...

    def refusing_twice(self) -> Any:
        """A block in which the database refuses a second row."""
        ...

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Nobody consumes a key meanwhile."""
        ...

    def verify(self) -> Report:
        """What ``ledger verify`` says."""
        ...


class File:
    """A SQLite file."""

    def __init__(self, url: str) -> None:
        self.path = url.removeprefix("sqlite:///")

    def query(self, sql: str, *bindings: Any) -> Any:
        with closing(apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            return connection.execute(sql, bindings).get

    def tamper(self, *statements: str) -> None:
        with closing(apsw.Connection(self.path)) as connection:
            as_registrar(connection)
            connection.execute("PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON")
            for name, kind in list(connection.execute("SELECT name, tbl_name FROM sqlite_schema WHERE type='trigger'")):
                if kind.startswith(REGISTRAR):
                    connection.execute(f"DROP TRIGGER {name}")
            for statement in statements:
                connection.execute(statement)

    def insert_again(self, changes: Mapping[str, Any]) -> None:
        with closing(apsw.Connection(self.path)) as connection:
            as_registrar(connection)
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({CONSUMED})")]
            row = dict(zip(names, next(connection.execute(f"SELECT * FROM {CONSUMED}")), strict=True))  # noqa: S608
            values = {**row, "id": None, **changes}
            connection.execute(f"INSERT INTO {CONSUMED} VALUES ({', '.join('?' * len(names))})", [*values.values()])  # noqa: S608

    def refusing_twice(self) -> Any:
        return pytest.raises(apsw.ConstraintError, match="UNIQUE")

    @contextmanager
    def hold(self) -> Iterator[None]:
        with closing(apsw.Connection(self.path)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield

    def verify(self) -> Report:
        return verify_file(self.path)


class Database:
    """A schema of PostgreSQL."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._place = place_of(url)

    async def _connect(self) -> Any:
        connection = await asyncpg.connect(self._place.dsn)
        await connection.execute(f"SET search_path = {self._place.schema}")
        return connection

    def _run(self, *statements: str, bindings: tuple[Any, ...] = ()) -> Any:
        async def run() -> Any:
            connection = await self._connect()
            try:
                async with connection.transaction():
                    await connection.execute("SET LOCAL twophp_ledger.registrar = 'on'")
                    for statement in statements:
                        found = await connection.fetch(_numbered(statement), *bindings)
            finally:
                await connection.close()
            return found

        with Portal("twophp-test") as portal:
            return portal.run(run())

    def query(self, sql: str, *bindings: Any) -> Any:
        if sql.endswith("FROM journal"):  # Its lines lie in links.
            sql = "SELECT coalesce(sum(count), 0)::bigint FROM link"
        rows = self._run(sql, bindings=bindings)
        row = tuple(rows[0]) if rows else (None,)
        return row if len(row) > 1 else row[0]

    def tamper(self, *statements: str) -> None:
        of_schema = (self._place.schema, f"{REGISTRAR}%")
        opens = [
            f"ALTER TABLE {name} DISABLE TRIGGER ALL" for (name,) in self._run(REGISTRARS_TABLES, bindings=of_schema)
        ]
        drops = [
            f"ALTER TABLE {table} DROP CONSTRAINT {name}"
            for table, name in self._run(REGISTRARS_CHECKS, bindings=of_schema)
        ]
        self._run(*opens, *drops, *statements)

    def insert_again(self, changes: Mapping[str, Any]) -> None:
        columns = [name for (name,) in self._run(COLUMNS, bindings=(CONSUMED,))]
        values = ", ".join("?" if name in changes else name for name in columns)
        given = tuple(changes[name] for name in columns if name in changes)
        insert = f"INSERT INTO {CONSUMED} ({', '.join(columns)}) SELECT {values} FROM {CONSUMED} ORDER BY id LIMIT 1"  # noqa: S608
        self._run(f"ALTER TABLE {CONSUMED} DISABLE TRIGGER ALL")
        try:
            self._run(insert, bindings=given)
        finally:
            self._run(f"ALTER TABLE {CONSUMED} ENABLE TRIGGER ALL")

    def refusing_twice(self) -> Any:
        return pytest.raises(asyncpg.UniqueViolationError)

    @contextmanager
    def hold(self) -> Iterator[None]:
        with Portal("twophp-test") as portal:
            connection = portal.run(self._connect())
            portal.run(connection.execute(f"BEGIN; LOCK TABLE {CONSUMED} IN SHARE MODE"))
            yield
            portal.run(connection.close())

    def verify(self) -> Report:
        return asyncio.run(verify_database(self._url))


def place_at(url: str) -> Place | None:
    """Where a URL leads to; nowhere, if it is memory."""
    if url == "memory:":
        return None
    return File(url) if url.startswith("sqlite:") else Database(url)


def _numbered(statement: str) -> str:
    """With the places for values as PostgreSQL has them."""
    parts = statement.split("?")
    return "".join(f"{part}${number}" for number, part in enumerate(parts[:-1], 1)) + parts[-1]
