"""A whole ledger copied into an empty schema of PostgreSQL: resumable, and compared row by row at its end.

Records keep their ids. The journal is written anew, as one chain of a writer that makes nothing else: what its lines
say and their numbers are the same, their hashes are not. How far a copy has come is written with every page of it, and
until it was compared no service opens the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import astuple, replace

from twophp.core.errors import ConfigError, StoreError
from twophp.kernel.journal import Writer, new_link
from twophp.stores.chains import LINE_BITS, Chain
from twophp.stores.postgres import driver, opening
from twophp.stores.postgres.copy_sources import (
    LAST_LINE,
    META,
    SEAL,
    Column,
    Line,
    Page,
    Source,
    reading_database,
    reading_file,
)
from twophp.stores.postgres.kinds import of_several
from twophp.stores.postgres.script import Script
from twophp.stores.postgres.verify import verify
from twophp.stores.sqlite.table import Row
from twophp.stores.urls import parse_store_url

Progress: TypeAlias = Callable[[int, int], None]

ROWS_AT_ONCE: Final = 1_000
JOURNAL: Final = "journal"
REGISTRAR: Final = "registrar_"
TABLES: Final = (
    *("intent", "obligation", "job", "call", "client_entry", "quota", "budget", "fence", SEAL),
    # What names another row comes after it.
    *("registrar_nonce", "registrar_consumed", "registrar_registration", "registrar_nonce_use"),
    *("registrar_verification", "registrar_compensation", "registrar_audit", "registrar_gate", "registrar_fence"),
)
_APPEND_LINK: Final = of_several("append_link", *("bigint",) * 6, "bytea", "bytea")
_MOVE_WRITER: Final = of_several("move_writer", *("bigint",) * 5, "bytea", "bigint")


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy has brought over."""

    rows: int
    lines: int
    head: str  # Of the new journal.
    resumed: bool


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """How far a copy has come: written with each page of it."""

    head: str  # The source's.
    writer: int
    table: str = JOURNAL
    after: int = 0  # The last id, or line, that is there.
    next_id: int = 1


class Target:
    """An empty ledger that is being filled."""

    def __init__(self, connection: Any, script: Script, mark: Mark, chain: Chain) -> None:
        self._connection = connection
        self._script = script
        self.mark = mark
        self.resumed = False
        self._chain = chain

    @classmethod
    async def open(cls, connection: Any, script: Script, head: str) -> Target:
        """Begin a copy of a ledger with this head, or go on with one."""
        async with connection.transaction():
            await opening.insist_on_durability(connection, script)
            await opening.migrate(connection, script)
        said = await connection.fetchval(script.named("unfinished_copy"))
        if said is not None:
            mark = msgspec.json.decode(said, type=Mark)
            if mark.head != head:
                message = (
                    "the source has changed since this copy was begun; drop the schema, stop the service, copy anew"
                )
                raise ConfigError(message, code="source_changed")
            row = await connection.fetchrow(script.named("writer_so_far"), mark.writer)
            target = cls(connection, script, mark, Chain(*row))
            target.resumed = True
            return target
        if await connection.fetchval(script.named("holds_anything")):
            raise ConfigError("the ledger that is to be filled is not empty", code="store_not_empty")
        chain, _at = await opening.begin_writer(connection, script, "copy")
        target = cls(connection, script, Mark(head=head, writer=chain.id), chain)
        async with connection.transaction():
            await target._note(target.mark)
        return target

    async def _note(self, mark: Mark) -> None:
        await self._connection.execute(self._script.named("mark_copy"), msgspec.json.encode(mark).decode())
        self.mark = mark

    async def columns(self, table: str) -> list[Column]:
        """Those of a table."""
        found = await self._connection.fetch(self._script.named("copied_columns"), f"{self._script.schema}.{table}")
        return [Column(row["name"], row["is_boolean"]) for row in found]

    async def add_lines(self, page: Page) -> None:
        """One link for them, chained to the one before."""
        chain = self._chain
        lines = [(self._here(line.previous), line.record, line.event) for line in page.lines]
        link = new_link(chain.hash, chain.last_line + 1, Writer(chain.id, chain.seq), lines, page.at, page.next_id)
        now = Chain(chain.id, link.seq, link.id, chain.lines + len(lines), link.hash)
        moved = (now.id, chain.seq, now.seq, now.link, now.lines, now.hash, page.at)
        next_id = max(self.mark.next_id, page.next_id)
        async with self._connection.transaction():
            for statement, row in ((_APPEND_LINK, astuple(link)), (_MOVE_WRITER, moved)):
                await self._connection.execute(self._script.spelled(statement.text), *statement.bound([row]))
            await self._note(replace(self.mark, after=page.lines[-1].number, next_id=next_id))
        self._chain = now

    async def add_rows(self, table: str, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        """Together with the note that they are there."""
        names = [one.name for one in columns]
        if LAST_LINE in names:
            place = names.index(LAST_LINE)
            rows = [(*row[:place], self._here(row[place]), *row[place + 1 :]) for row in rows]
        async with self._connection.transaction():
            await self._connection.execute(self._script.named("as_registrar"))
            await self._connection.copy_records_to_table(
                table, records=rows, columns=names, schema_name=self._script.schema
            )
            last = rows[-1][0]
            await self._note(replace(self.mark, table=table, after=last, next_id=max(self.mark.next_id, last + 1)))

    def _here(self, number: int) -> int:
        """The number of a line among this writer's."""
        return (self._chain.id << LINE_BITS) + number if number else 0

    async def reached(self, table: str) -> None:
        """What comes before this table is there."""
        if table != self.mark.table:
            async with self._connection.transaction():
                await self._note(replace(self.mark, table=table, after=0))

    async def add_settings(self, settings: Sequence[tuple[str, str]]) -> None:
        """Those that are not there yet."""
        if settings:
            names, values = (list(column) for column in zip(*settings, strict=True))
            await self._connection.execute(self._script.named("keep_meta"), names, values)

    async def finish(self) -> None:
        """From here on a service may open it. Ids go on from where they were."""
        async with self._connection.transaction():
            await self._connection.execute(self._script.named("move_on_ids"), self.mark.next_id)
            await self._connection.execute(self._script.named("close_writer"), self._chain.id)
            await self._connection.execute(self._script.named("end_copy"))


def source_at(url: str) -> AbstractAsyncContextManager[Source]:
    """The ledger that a copy is made of."""
    where = parse_store_url(url)
    if where.kind == "sqlite":
        return reading_file(where.path)
    if where.kind == "postgresql":
        return reading_database(url)
    raise ConfigError(f"nothing can be copied from {where.kind}", code="unknown_store")


async def copy(source_url: str, target_url: str, *, progress: Progress) -> Copied:
    """Copy all of a ledger that nobody writes, and prove that the copy says the same."""
    if parse_store_url(target_url).kind != "postgresql":
        message = "a copy goes into PostgreSQL; a SQLite file is copied by SQLite itself: VACUUM INTO 'copy.db'"
        raise ConfigError(message, code="unknown_store")
    place = driver.place_of(target_url)
    async with driver.in_our_words(), source_at(source_url) as source:
        head = await source.head()
        pool, _is_pooled = await driver.open_pool(place, most=1)
        try:
            async with pool.acquire() as connection:
                target = await Target.open(connection, Script(place.schema), head)
                rows, lines = await _Copy(source, target, head, progress).run()
                report = await verify(target_url)
                report.require()
                async with reading_database(target_url) as made:
                    await _compare(source, made, {table: await target.columns(table) for table in TABLES})
                async with source_at(source_url) as again:
                    _insist(await again.head() == head, "the source has changed while it was copied", "source_changed")
                await target.finish()
        finally:
            await driver.close_pool(pool)
    return Copied(rows=rows, lines=lines, head=str(report.head), resumed=target.resumed)


class _Copy:
    """The pages of one copy, from where the target has come to."""

    def __init__(self, source: Source, target: Target, head: str, progress: Progress) -> None:
        self._source = source
        self._target = target
        self._lines = int(head.partition(":")[0])
        self._progress = progress
        self._done = 0

    async def run(self) -> tuple[int, int]:
        """So many rows and lines are there."""
        counts = {table: await self._source.count(table) for table in TABLES}
        self._total = self._lines + sum(counts.values())
        order = (JOURNAL, *TABLES)
        for table in order:
            if order.index(table) < order.index(self._target.mark.table):
                self._look(self._lines if table == JOURNAL else counts[table])
            elif table == JOURNAL:
                await self._copy_lines()
            else:
                await self._target.reached(table)
                await self._copy_rows(table)
        await self._target.add_settings(await self._source.settings())
        return sum(counts.values()), self._lines

    def _look(self, count: int) -> None:
        self._done += count
        self._progress(min(self._done, self._total), self._total)

    async def _copy_lines(self) -> None:
        self._look(self._target.mark.after)
        while (page := await self._source.lines(self._target.mark.after)).lines:
            await self._target.add_lines(page)
            self._look(len(page.lines))

    async def _copy_rows(self, table: str) -> None:
        columns = await self._target.columns(table)
        while rows := await self._source.rows(table, columns, self._target.mark.after, ROWS_AT_ONCE):
            await self._target.add_rows(table, columns, rows)
            self._look(len(rows))


async def _compare(source: Source, made: Source, columns: dict[str, list[Column]]) -> None:
    """Every row and every line of one against the other's."""
    for table in TABLES:
        after = 0
        while True:
            pages = [await one.rows(table, columns[table], after, ROWS_AT_ONCE) for one in (source, made)]
            _insist(list(pages[0]) == list(pages[1]), f"a row of {table} after id {after} is not what it was")
            if not pages[0]:
                break
            after = pages[0][-1][0]
    theirs, ours = await source.settings(), await made.settings()
    _insist(list(theirs) == list(ours), f"what is kept in {META} is not what it was")
    number = 0
    waiting: list[list[Line]] = [[], []]
    while True:
        for place, one in enumerate((source, made)):
            if not waiting[place]:
                waiting[place] = list((await one.lines(number)).lines)
        both = min(map(len, waiting))
        _insist(waiting[0][:both] == waiting[1][:both], f"a line after {number} is not what it was")
        _insist(bool(both) or not any(waiting), f"the lines after {number} are on one side only")
        if not both:
            return
        number += both
        waiting = [lines[both:] for lines in waiting]


def _insist(holds: bool, what: str, code: str = "copy_differs") -> None:  # noqa: FBT001 - a condition.
    if not holds:
        raise StoreError(f"{what}; the copy is not to be used", code=code)
