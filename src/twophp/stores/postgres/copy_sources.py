"""Where a copy of a ledger comes from: a SQLite file, or another schema of PostgreSQL.

Both give rows as PostgreSQL keeps them, in the order of their ids, and lines numbered from 1. What is given is as it
was at one moment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import apsw
import msgspec

from twophp.core.errors import ConfigError
from twophp.core.records import JournalEvent
from twophp.kernel.journal import FIRST_FACT, PREVIOUS, RECORD, decode_lines
from twophp.stores.postgres import driver, opening
from twophp.stores.postgres.journal import join
from twophp.stores.postgres.script import Script
from twophp.stores.postgres.text import kept
from twophp.stores.sqlite.reading import snapshot
from twophp.stores.sqlite.sql import sql
from twophp.stores.sqlite.table import Row

LINKS_AT_ONCE: Final = 64
LAST_LINE: Final = "last_line"
SEAL: Final = "seal"
META: Final = "meta"


class Column(msgspec.Struct, frozen=True):
    """One column of a table that is copied."""

    name: str
    is_boolean: bool = False


class Line(msgspec.Struct, frozen=True):
    """A line of the journal: its number, that of the line before it about the same record, and the record."""

    number: int
    previous: int
    record: int
    event: JournalEvent


class Page(msgspec.Struct, frozen=True):
    """Some lines, and what the store's time and its next id were by then."""

    lines: Sequence[Line]
    at: int = 0
    next_id: int = 0


class Source(Protocol):
    """A ledger that is copied."""

    async def head(self) -> str:
        """The number and the hash of its last line: while they are the same nothing has changed."""
        ...

    async def count(self, table: str) -> int:
        """How many rows it has."""
        ...

    async def rows(self, table: str, columns: Sequence[Column], after: int, limit: int) -> Sequence[Row]:
        """The next rows, the id first."""
        ...

    async def settings(self) -> Sequence[tuple[str, str]]:
        """What it keeps about itself."""
        ...

    async def lines(self, after: int) -> Page:
        """The next lines."""
        ...


class FileSource:
    """A SQLite file of this version's schema."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        if connection.execute(sql("has_old_journal")).get:
            message = "its journal began under an older format, whose lines cannot be carried over; keep the file"
            raise ConfigError(message, code="old_journal")

    async def head(self) -> str:
        """See ``Source.head``."""
        found = self._connection.execute(sql("newest_head")).get
        return "0" if found is None else f"{found[0]}:{found[1].hex()}"

    async def count(self, table: str) -> int:
        """See ``Source.count``. Parts of intents that are too large for their rows lie in theirs where they go to."""
        name = "count_seals_to_copy" if table == SEAL else "count_rows_to_copy"
        return int(self._connection.execute(sql(name).format(table=table)).get)

    async def rows(self, table: str, columns: Sequence[Column], after: int, limit: int) -> Sequence[Row]:
        """See ``Source.rows``."""
        if table == SEAL:
            found = self._connection.execute(sql("seals_to_copy"), (after, limit))
        else:
            parts = [_part_of_intent(one.name) if table == "intent" else one.name for one in columns]
            found = self._connection.execute(
                sql("rows_to_copy").format(columns=", ".join(parts), table=table), (after, limit)
            )
        return [tuple(_as_kept(value, one) for value, one in zip(row, columns, strict=True)) for row in found]

    async def settings(self) -> Sequence[tuple[str, str]]:
        """See ``Source.settings``."""
        return [(kept(name), kept(value)) for name, value in self._connection.execute(sql("settings_to_copy"))]

    async def lines(self, after: int) -> Page:
        """See ``Source.lines``."""
        links = list(self._connection.execute(sql("links_to_copy"), (after, LINKS_AT_ONCE)))
        if not links:
            return Page(())
        lines = [
            Line(line[0], line[PREVIOUS], line[RECORD], JournalEvent(*line[FIRST_FACT:-1]))
            for _id, _at, _next, text in links
            for line in decode_lines(text)
        ]
        _id, at, next_id, _text = links[-1]
        return Page(lines, at, next_id)


def _part_of_intent(name: str) -> str:
    return sql("part_of_intent").rstrip(";").format(part=name) if name in ("payload", "response") else name


def _as_kept(value: Any, column: Column) -> Any:
    if column.is_boolean:
        return bool(value)
    return kept(value) if isinstance(value, str) else value


class DatabaseSource:
    """A schema of PostgreSQL, inside a transaction that sees one moment."""

    def __init__(self, connection: Any, script: Script) -> None:
        self._connection = connection
        self._script = script

    async def head(self) -> str:
        """See ``Source.head``."""
        lines, digest = await self._connection.fetchrow(self._script.named("joined_so_far"))
        return f"{lines}:{digest.hex()}" if lines else "0"

    async def count(self, table: str) -> int:
        """See ``Source.count``."""
        return int(await self._connection.fetchval(self._script.named("count_rows").format(table=table)))

    async def rows(self, table: str, columns: Sequence[Column], after: int, limit: int) -> Sequence[Row]:
        """See ``Source.rows``."""
        if table == SEAL:
            statement = self._script.named("copied_seals")
        else:
            line = self._script.named("joined_line")
            names = ", ".join(line if one.name == LAST_LINE else f"t.{one.name}" for one in columns)
            statement = self._script.named("copied_rows").format(columns=names, table=table, key="id")
        return [tuple(row) for row in await self._connection.fetch(statement, after, limit)]

    async def settings(self) -> Sequence[tuple[str, str]]:
        """See ``Source.settings``."""
        return [(row["name"], row["value"]) for row in await self._connection.fetch(self._script.named("all_meta"))]

    async def lines(self, after: int) -> Page:
        """See ``Source.lines``."""
        found = await self._connection.fetch(self._script.named("joined_after"), after, LINKS_AT_ONCE)
        links = [row for row in found if row["first"] > after]
        if not links:
            return Page(())
        told = [(row["first"] + place, line) for row in links for place, line in enumerate(decode_lines(row["lines"]))]
        before = list({line[PREVIOUS] for _number, line in told if line[PREVIOUS]})
        pairs = await self._connection.fetch(self._script.named("joined_lines"), before)
        numbers = {0: 0, **{row["line"]: row["number"] for row in pairs}}
        lines = [
            Line(number, numbers[line[PREVIOUS]], line[RECORD], JournalEvent(*line[FIRST_FACT:-1]))
            for number, line in told
        ]
        return Page(lines, max(row["at"] for row in links), max(row["next_id"] for row in links))


@asynccontextmanager
async def reading_file(path: str) -> AsyncIterator[Source]:
    """A file, as it is at one moment."""
    with snapshot(path) as connection:
        yield FileSource(connection)


@asynccontextmanager
async def reading_database(url: str) -> AsyncIterator[Source]:
    """A schema of PostgreSQL, as it is at one moment, after all of its journal was joined."""
    place = driver.place_of(url)
    script = Script(place.schema)
    async with driver.in_our_words():
        pool, _is_pooled = await driver.open_pool(place, most=1)
        try:
            async with pool.acquire() as connection:
                await opening.insist_on_schema(connection, script)
                async with connection.transaction():
                    await join(connection, script)
                async with connection.transaction(isolation="repeatable_read"):
                    await connection.execute(script.named("take_your_time"))
                    yield DatabaseSource(connection, script)
        finally:
            await driver.close_pool(pool)
