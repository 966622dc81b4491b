"""Probing a table in PostgreSQL, each change inside a transaction that is rolled back.

Every value is handed over as text and cast by the server to its column's type, so any type can be tried.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal

from twophp.core.errors import ConfigError, StoreUnavailable
from twophp.stores.named_sql import named
from twophp.stores.postgres.driver import place_of
from twophp.stores.surfaces import Column, Kind, NoSuchTable, Shape, Tried, Values, allowed_values, done, refused

try:
    import asyncpg  # type: ignore[import-untyped]
except ImportError:  # pragma: no cover - the extra is part of what the tests install.
    asyncpg = None

CONNECT_S: Final = 10
STATEMENT_S: Final = 10

_INTEGERS: Final = frozenset({"smallint", "integer", "bigint"})
_REALS: Final = frozenset({"real", "double precision", "numeric"})


@cache
def _sql() -> dict[str, str]:
    return named(files(__package__).joinpath("postgres_surface.sql").read_text(encoding="utf-8"))


async def connect(url: str) -> Any:
    """A connection, or an error that says what is missing."""
    if asyncpg is None:
        raise ConfigError("PostgreSQL needs twophp[postgres]", code="no_driver")
    try:
        dsn = place_of(url).dsn  # Options that are ours are nothing to the driver.
        return await asyncpg.connect(dsn, timeout=CONNECT_S, command_timeout=STATEMENT_S)
    except ValueError:  # The error is dropped and not quoted: any part of a misread URL may be the password.
        raise ConfigError(
            "the URL is none that PostgreSQL understands; is a sign in it not escaped?", code="bad_url"
        ) from None
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:  # A TimeoutError is an OSError.
        message = f"PostgreSQL cannot be reached: {str(error) or type(error).__name__}"  # A timeout has no words.
        raise StoreUnavailable(message, code="store_cannot_open") from error


async def _close(connection: Any) -> None:
    """Close it. A connection that is lost has closed itself."""
    with suppress(Exception):
        await connection.close(timeout=CONNECT_S)


async def table_names(url: str) -> list[str]:
    """Every table that is not the server's own."""
    connection = await connect(url)
    try:
        return [row["name"] for row in await connection.fetch(_sql()["all_tables"])]
    finally:
        await _close(connection)


class PostgresBench:
    """See ``SQLiteBench``."""

    def __init__(self, connection: Any, rival: Any, table: str) -> None:
        self._connection = connection
        self._rival = rival
        self._table = table
        self._types: dict[str, str] = {}
        self._key = ""
        self._transaction: Any = None

    @classmethod
    async def open(cls, url: str, table: str) -> PostgresBench:
        """Two connections: the registrar's, and one beside it."""
        connection = await connect(url)
        try:
            return cls(connection, await connect(url), table)
        except BaseException:
            await _close(connection)
            raise

    async def describe(self) -> Shape:
        """See ``SQLiteBench.describe``."""
        about = await self._connection.fetchrow(_sql()["find"], self._table)
        if about is None:
            raise NoSuchTable(f"there is no table {self._table}")
        oid = about["oid"]
        rows = [row for row in await self._connection.fetch(_sql()["columns"], oid) if not row["generated"]]
        self._types = {row["name"]: row["type"] for row in rows}
        uniques = tuple(tuple(row["names"]) for row in await self._connection.fetch(_sql()["uniques"], oid))
        self._key = next((unique[0] for unique in uniques if len(unique) == 1), "")
        return Shape(
            columns={row["name"]: _column(row) for row in rows},
            uniques=uniques,
            allowed=allowed_values(await self._connection.fetchval(_sql()["checks"], oid), self._types),
            hazards=tuple(await self._hazards(about)),
            strangers=tuple([row["name"] for row in await self._connection.fetch(_sql()["writers"], oid)]),
        )

    async def _hazards(self, about: Mapping[str, Any]) -> list[str]:
        found = []
        if about["relpersistence"] != "p":
            found.append("it is not logged: a crash empties it")
        if about["relkind"] != "r" or about["relispartition"]:
            found.append("it is no plain table: rows go with a partition or a source")
        weak = await self._connection.fetch(_sql()["durability"])
        return found + [f"the server runs with {row['name']} off: what is committed may be lost" for row in weak]

    async def fresh(self) -> None:
        """See ``SQLiteBench.fresh``."""
        await self._begin()
        await self._connection.execute(_sql()["be_registrar"])

    async def _begin(self) -> None:
        """Probes of one table take turns: two that try the same rows, and to empty it, would wait for each other."""
        await self.undo()
        self._transaction = self._connection.transaction()
        await self._transaction.start()
        await self._connection.fetch(_sql()["take_turns"], self._table)

    async def insert(self, row: Values, *, conflict: Literal["fail", "ignore", "replace"] = "fail") -> Tried:
        """See ``SQLiteBench.insert``."""
        if conflict == "replace" and not self._key:
            conflict = "fail"
        return await self._try(self._connection, *self._insertion(row, conflict))

    async def insert_as_stranger(self, row: Values) -> Tried:
        """See ``SQLiteBench.insert_as_stranger``: a role made for it, if we may; the shape has the grants."""
        await self._begin()
        try:
            for step in ("make_stranger", "become_stranger"):
                if not (tried := await self._try(self._connection, _sql()[step])).done:
                    return tried
            return await self._try(self._connection, *self._insertion(row, "fail"))
        finally:
            await self.undo()

    async def insert_beside(self, row: Values) -> Tried:
        """See ``SQLiteBench.insert_beside``: an insert whose key an open transaction has taken waits for its end."""
        async with _rolled_back(self._rival):
            for step in ("do_not_wait", "be_registrar"):
                await self._rival.execute(_sql()[step])
            return await self._try(self._rival, *self._insertion(row, "fail"))

    async def update(self, where: Values, column: str, value: Any) -> Tried:
        """See ``SQLiteBench.update``."""
        statement = self._filled(
            "update", column=_quoted(column), value=self._cast(column, 1), where=self._conditions(where, 2)
        )
        return await self._try(self._connection, statement, value, *where.values())

    async def delete(self, where: Values) -> Tried:
        """See ``SQLiteBench.delete``."""
        statement = self._filled("delete", where=self._conditions(where, 1))
        return await self._try(self._connection, statement, *where.values())

    async def truncate(self) -> Tried:
        """See ``SQLiteBench.truncate``. While others read the table, as a backup does for hours, its triggers tell."""
        await self._connection.execute(_sql()["do_not_wait"])
        try:
            return await self._try(self._connection, self._filled("truncate"))
        except asyncpg.LockNotAvailableError:
            guard = await self._connection.fetchval(_sql()["guard_against_truncate"], self._table)
            return refused(f"the trigger {guard} is there") if guard else done()

    async def read(self, where: Values) -> Sequence[Mapping[str, Any]]:
        """See ``SQLiteBench.read``; integers come as such, everything else as text."""
        columns = ", ".join(_read_as(name, type_) for name, type_ in self._types.items())
        statement = self._filled("read", columns=columns, where=self._conditions(where, 1))
        rows = await self._connection.fetch(statement, *_texts(where.values()))
        return [dict(row) for row in rows]

    async def close(self) -> None:
        """See ``SQLiteBench.close``. If the rollback fails, closing the connection ends the transaction."""
        with suppress(Exception):
            await self.undo()
        for connection in (self._connection, self._rival):
            await _close(connection)

    async def undo(self) -> None:
        """See ``SQLiteBench.undo``."""
        if self._transaction is not None:
            transaction, self._transaction = self._transaction, None
            await transaction.rollback()

    def _insertion(self, row: Values, conflict: str) -> tuple[Any, ...]:
        name = "insert" if conflict == "fail" else f"insert_{conflict}"
        columns = ", ".join(map(_quoted, row))
        values = ", ".join(self._cast(column, number) for number, column in enumerate(row, 1))
        return self._filled(name, columns=columns, values=values, key=_quoted(self._key)), *row.values()

    def _filled(self, name: str, **parts: str) -> str:
        return _sql()[name].format(table=self._table, **parts)

    def _cast(self, column: str, number: int) -> str:
        return f"${number}::text::{self._types[column]}"

    def _conditions(self, where: Values, first: int) -> str:
        compared = [f"{_quoted(name)} = {self._cast(name, number)}" for number, name in enumerate(where, first)]
        return " AND ".join(compared)

    async def _try(self, connection: Any, statement: str, *values: Any) -> Tried:
        """One statement behind a savepoint, undone by itself if it fails."""
        savepoint = connection.transaction()
        await savepoint.start()
        try:
            tag = await connection.execute(statement, *_texts(values))
        except asyncpg.PostgresError as error:
            await savepoint.rollback()
            if isinstance(error, asyncpg.LockNotAvailableError) and connection is self._connection:
                raise  # It says nothing about the table.
            return refused(str(error))
        await savepoint.commit()
        count = str(tag).rpartition(" ")[2]
        return done(int(count) if count.isdigit() else 0)


@asynccontextmanager
async def _rolled_back(connection: Any) -> AsyncIterator[None]:
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield
    finally:
        await transaction.rollback()


def _texts(values: Any) -> list[str | None]:
    return [None if value is None else value.hex() if isinstance(value, bytes) else str(value) for value in values]


def _read_as(name: str, type_: str) -> str:
    return _quoted(name) if type_ in _INTEGERS else f"{_quoted(name)}::text AS {_quoted(name)}"


def _column(row: Mapping[str, Any]) -> Column:
    base = row["type"].partition("(")[0]
    kind: Kind = "integer" if base in _INTEGERS else "real" if base in _REALS else "text"
    return Column(
        name=row["name"],
        kind=kind,
        nullable=not row["not_null"],
        required=row["not_null"] and not row["gives_itself"],
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
