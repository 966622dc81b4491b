"""Verification of a ledger in PostgreSQL: every chain holds, joined they are one, and records are what lines say.

It gives the report that a file's verification gives. All of it is read in one snapshot. What was written since the
journal was joined last is joined first, so the head that is printed covers everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from twophp.ports import Vault
from twophp.stores.inspection import REPEATED, Inspection
from twophp.stores.postgres import driver, opening
from twophp.stores.postgres.journal import join
from twophp.stores.postgres.kinds import KIND_OF_TABLE, Kind
from twophp.stores.postgres.script import Script
from twophp.stores.postgres.text import kept_column, plain
from twophp.stores.sqlite import verify_registrar
from twophp.stores.sqlite.seals import SealRow
from twophp.stores.sqlite.verify import FINDINGS_NAMED, Progress, ProvenHead, Report

PAGE: Final = 500


class DatabaseInspection(Inspection):
    """One verification, inside a transaction that sees one moment."""

    def __init__(
        self,
        connection: Any,
        script: Script,
        expect: ProvenHead | None = None,
        progress: Progress | None = None,
        vault: Vault | None = None,
    ) -> None:
        """With ``vault`` every sealed part is opened."""
        super().__init__(expect, progress)
        self._connection = connection
        self._script = script
        self._vault = vault

    async def run(self) -> Report:
        """Check everything."""
        named = self._script.named
        await join(self._connection, self._script)
        self._total = await self._connection.fetchval(named("count_to_verify"))
        if self._vault is not None:
            self._total += await self._connection.fetchval(named("count_seals"))
        await self._connection.execute(named("make_told"))
        self._begin({row["id"]: row for row in await self._connection.fetch(named("writers"))})
        await self._check_links()
        await self._connection.execute(named("index_told"))
        self._check_writers()
        for row in await self._connection.fetch(named("not_joined"), FINDINGS_NAMED):
            message = f"the lines of writer {row['writer']} from its line {row['id']} on were slipped in"
            self._find("edited_line", message, seq=self._head.seq)
        self._check_joined(*await self._connection.fetchrow(named("lock_joined")))
        for name in REPEATED:
            await self._check_records(KIND_OF_TABLE[name])
        for row in await self._connection.fetch(named("gone"), FINDINGS_NAMED):
            number, kind, subject = plain(row)
            message = f"{kind} {subject} is gone, and no line says that it was forgotten"
            self._find("record_missing", message, seq=number, subject=subject)
        await self._check_registrar()
        if self._vault is not None:
            await self._check_seals(self._vault)
        return self._report()

    # The chains.

    async def _check_links(self) -> None:
        after, statement = 0, self._script.named("joined_after")
        while rows := [row for row in await self._connection.fetch(statement, after, PAGE) if row["first"] > after]:
            told: list[Sequence[Any]] = []
            for row in rows:
                told += self._check_link(row)
                after = row["first"]
            columns = [kept_column(one) if type(one[0]) is str else one for one in zip(*told, strict=True)]
            if told:
                await self._connection.execute(self._script.named("add_told"), *columns)
            self._look(len(told))
        self._check_expected()

    # Records.

    async def _check_records(self, kind: Kind) -> None:
        fields = kind.table.line_column
        columns = ", ".join(f"t.{column}" for column in ("id", *kind.fields, "last_line"))
        statement = self._script.named("records_with_last_line").format(columns=columns, table=kind.name)
        after = 0
        while rows := await self._connection.fetch(statement, after, PAGE):
            records: dict[int, Any] = {}
            for row in rows:
                values = plain(row)
                records[row["id"]] = record = self._record(kind, values)
                if record is not None:
                    self._check_record(kind.name, record, values[fields + 1 :])
                after = row["id"]
            if kind.name == "intent":
                for bound in await self._connection.fetch(self._script.named("bound"), list(records)):
                    self._check_bound(records[bound["id"]], bound)
            self._records += len(rows)
            self._look(len(rows))

    async def _check_registrar(self) -> None:
        problems = [
            verify_registrar.of_gone(*plain(row))
            for row in await self._connection.fetch(self._script.named("registrar_rows_gone"))
        ]
        for name in verify_registrar.STATEMENTS:
            async for row in self._connection.cursor(self._script.named(name), prefetch=PAGE):
                self._records += 1
                self._look(1)
                problems += verify_registrar.of_row(name, plain(row))
        for problem in problems:
            self._find(problem.what, problem.message, seq=problem.seq, subject=problem.subject)

    async def _check_seals(self, vault: Vault) -> None:
        found = await self._connection.fetchval(self._script.named("read_meta"), "service")
        service = "" if found is None else plain((found,))[0]
        async for columns in self._connection.cursor(self._script.named("all_seals"), prefetch=PAGE):
            self._look(1)
            if problem := (row := SealRow(*plain(columns))).problem(vault, service):
                self._find("seal_unopened", problem, subject=row.name)

    def _record(self, kind: Kind, values: Sequence[Any]) -> Any:
        try:
            return kind.table.record(tuple(values))
        except (KeyError, TypeError):
            self._find("record_differs", f"{kind.name} {values[0]} cannot be read")
            return None


async def verify(
    url: str, *, expect: ProvenHead | None = None, progress: Progress | None = None, vault: Vault | None = None
) -> Report:
    """Check a whole ledger. It takes up the links that nobody has joined yet, and writes nothing else."""
    place = driver.place_of(url)
    script = Script(place.schema)
    async with driver.in_our_words():
        pool, _is_pooled = await driver.open_pool(place)
        try:
            async with pool.acquire() as connection, connection.transaction(isolation="repeatable_read"):
                await opening.insist_on_schema(connection, script)
                return await DatabaseInspection(connection, script, expect, progress, vault).run()
        finally:
            await pool.close()
