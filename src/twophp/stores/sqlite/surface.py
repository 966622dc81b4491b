"""Probing a table of a SQLite file, each change inside a transaction that is rolled back.

No table is made, no schema migrated and no journal mode changed: the file may belong to another program. Two
connections take part. One calls itself the registrar, as the guards of our own tables ask; the other is a stranger.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import apsw

from twophp.core.errors import ConfigError
from twophp.stores.sqlite.connection import translate
from twophp.stores.sqlite.one_library import connect
from twophp.stores.sqlite.registrar import as_registrar
from twophp.stores.sqlite.sql import sql
from twophp.stores.surfaces import Column, Kind, NoSuchTable, Shape, Tried, Values, allowed_values, done, refused

WAIT_MS: Final = 5_000


def table_names(path: str) -> list[str]:
    """Every table of a file, or an error that says why they cannot be read."""
    if not Path(path).is_file():
        raise ConfigError(f"there is no database {path}", code="no_such_database")
    connection = _open(path)
    try:
        return [str(name) for (name,) in connection.execute(sql("surface_all_tables"))]
    except apsw.Error as error:
        raise translate(error, path) from error
    finally:
        connection.close()


class SQLiteBench:
    """One table under examination. The benches of other databases have the same methods."""

    def __init__(self, path: str, table: str) -> None:
        self._table = table
        self._registrar = _open(path)
        self._stranger = _open(path)
        as_registrar(self._registrar)

    async def describe(self) -> Shape:
        """The schema; raises NoSuchTable."""
        definition = self._registrar.execute(sql("surface_table"), (self._table,)).get
        if definition is None:
            raise NoSuchTable(f"there is no table {self._table}")
        columns = {name: column for name, column in self._columns() if column is not None}
        return Shape(
            columns=columns,
            uniques=self._uniques(),
            allowed=allowed_values(definition, columns),
            hazards=tuple(self._hazards()),
        )

    def _columns(self) -> list[tuple[str, Column | None]]:
        rows = list(self._registrar.execute(sql("surface_columns"), (self._table,)))
        keys = sum(1 for row in rows if row[4])
        return [(row[0], _column(*row, is_rowid=keys == 1)) for row in rows]

    def _uniques(self) -> tuple[tuple[str, ...], ...]:
        found: dict[str, list[str]] = {}
        for index, column in self._registrar.execute(sql("surface_uniques"), (self._table,)):
            found.setdefault(index, []).append(column)
        return tuple(tuple(names) for names in found.values())

    def _hazards(self) -> list[str]:
        deletes = re.compile(rf"\bDELETE\s+FROM\s+[\"`\[]?{re.escape(self._table)}\b", re.IGNORECASE)
        triggers = self._registrar.execute(sql("surface_triggers"))
        return [f"the trigger {name} deletes rows of it" for name, text in triggers if deletes.search(text)]

    async def fresh(self) -> None:
        """Undo every change that was tried, and begin a new transaction."""
        await self.undo()
        self._registrar.execute("BEGIN IMMEDIATE")

    async def undo(self) -> None:
        """Undo every change that was tried, and hold no transaction."""
        self._roll_back(self._registrar)

    async def insert(self, row: Values, *, conflict: Literal["fail", "ignore", "replace"] = "fail") -> Tried:
        """Insert as the registrar would."""
        return self._try(self._registrar, *self._insertion(row, conflict))

    async def insert_as_stranger(self, row: Values) -> Tried:
        """Insert as a role that is not the registrar's, in a transaction of its own."""
        await self.undo()
        self._stranger.execute("BEGIN IMMEDIATE")
        try:
            return self._try(self._stranger, *self._insertion(row, "fail"))
        finally:
            self._roll_back(self._stranger)

    async def insert_beside(self, row: Values) -> Tried:
        """Insert from a second connection while ours is not committed; having to wait, as here, counts as refused."""
        as_registrar(self._stranger)
        self._stranger.set_busy_timeout(0)
        try:
            self._stranger.execute("BEGIN IMMEDIATE")
            return self._try(self._stranger, *self._insertion(row, "fail"))
        except apsw.BusyError as error:
            return refused(str(error))
        finally:
            self._roll_back(self._stranger)
            self._stranger.set_busy_timeout(WAIT_MS)
            self._stranger.create_scalar_function("twophp_registrar", None, 0)

    async def update(self, where: Values, column: str, value: Any) -> Tried:
        """Change one column of the rows that match ``where``."""
        statement = self._filled("surface_update", where=_conditions(where), column=_quoted(column))
        return self._try(self._registrar, statement, (value, *where.values()))

    async def delete(self, where: Values) -> Tried:
        """Delete the rows that match ``where``."""
        statement = self._filled("surface_delete", where=_conditions(where))
        return self._try(self._registrar, statement, tuple(where.values()))

    async def truncate(self) -> Tried:
        """Empty the table by the database's own shortcut, such as TRUNCATE; refused where it has none."""
        return refused("SQLite knows no TRUNCATE")

    async def read(self, where: Values) -> Sequence[Mapping[str, Any]]:
        """The rows that match ``where``."""
        names = [name for name, column in self._columns() if column is not None]
        columns = ", ".join(map(_quoted, names))
        statement = self._filled("surface_read", where=_conditions(where), columns=columns)
        rows = self._registrar.execute(statement, tuple(where.values()))
        return [dict(zip(names, row, strict=True)) for row in rows]

    async def close(self) -> None:
        """Undo every change and close the connections."""
        for connection in (self._registrar, self._stranger):
            self._roll_back(connection)
            connection.close()

    def _insertion(self, row: Values, conflict: str) -> tuple[str, tuple[Any, ...]]:
        name = "surface_insert" if conflict == "fail" else f"surface_insert_{conflict}"
        columns, values = ", ".join(map(_quoted, row)), ", ".join("?" * len(row))
        return self._filled(name, columns=columns, values=values), tuple(row.values())

    def _filled(self, name: str, **parts: str) -> str:
        return sql(name).format(table=_quoted(self._table), **parts)

    def _try(self, connection: apsw.Connection, statement: str, bindings: tuple[Any, ...]) -> Tried:
        """One statement, undone by itself if it fails."""
        before = connection.total_changes()
        try:
            connection.execute(statement, bindings)
        except (apsw.ConstraintError, apsw.SQLError, apsw.MismatchError) as error:
            return refused(str(error))
        return done(connection.total_changes() - before)

    def _roll_back(self, connection: apsw.Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _open(path: str) -> apsw.Connection:
    if not Path(path).is_file():
        raise NoSuchTable(f"there is no database {path}")
    connection = connect(path, apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(WAIT_MS)
    return connection


def _column(
    name: str, type_: str, not_null: int, default: str | None, key: int, hidden: int, *, is_rowid: bool
) -> Column | None:
    if hidden:
        return None
    gives_itself = bool(key) and is_rowid and type_.upper() == "INTEGER"
    nullable = not not_null and not gives_itself
    return Column(
        name=name,
        kind=_kind(type_.upper()),
        nullable=nullable,
        required=bool(not_null or key) and default is None and not gives_itself,
    )


def _kind(type_: str) -> Kind:
    """SQLite's own rules of affinity."""
    if "INT" in type_ or "BOOL" in type_:
        return "integer"
    if any(word in type_ for word in ("CHAR", "CLOB", "TEXT", "DATE", "TIME")):
        return "text"
    if any(word in type_ for word in ("REAL", "FLOA", "DOUB", "NUM", "DEC")):
        return "real"
    return "bytes" if "BLOB" in type_ else "text"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _conditions(where: Values) -> str:
    return " AND ".join(f"{_quoted(name)} IS ?" for name in where)
