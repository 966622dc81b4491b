"""What a new file holds: what all migrations together leave, without the tables that they make and drop on the way."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import cache
from typing import Any, Final, TypeAlias

import apsw

from twophp.stores.sqlite.hashes import teach
from twophp.stores.sqlite.sql import sql

TABLE: Final = "a_table"
"""What the statements on any table call it."""

_Rows: TypeAlias = tuple[str, Sequence[tuple[Any, ...]]]


def make_tables(connection: apsw.Connection, steps: tuple[tuple[int, str], ...]) -> None:
    """Bring an empty file to where all these migrations bring it, in the transaction that is open."""
    schema, filled = left_by(steps)
    connection.execute(schema)
    for put, rows in filled:
        connection.executemany(put, rows)


@cache
def left_by(steps: tuple[tuple[int, str], ...]) -> tuple[str, tuple[_Rows, ...]]:
    """The schema, and the rows that stand in it from the start: taken from a database in memory that was migrated."""
    with closing(apsw.Connection(":memory:")) as model:
        teach(model)
        for _number, script in steps:
            model.execute(script)
        objects = list(model.execute(sql("objects_of_schema")))
        filled = [_rows_of(model, name) for kind, name, _made_by in objects if kind == "table"]
    return "".join(f"{made_by};\n" for _kind, _name, made_by in objects), tuple(rows for rows in filled if rows[1])


def _rows_of(model: apsw.Connection, table: str) -> _Rows:
    rows = model.execute(sql("rows_of_table").replace(TABLE, table)).fetchall()
    marks = ", ".join("?" * len(rows[0])) if rows else ""
    return sql("put_row").replace(TABLE, table).replace("(?)", f"({marks})"), rows
