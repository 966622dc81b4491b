"""Rotation: every sealed part is sealed again with the ring's active key, while the replicas go on.

The ring is given, for no machine is the place for it: first every replica gets one with the new key in it, then the new
one is made the active one, then this is run, and then the old one may go. What goes on after a kill, what does not
open, and what is replaced meanwhile is treated as in a file (``stores.sqlite.rotate``).
"""

from __future__ import annotations

from typing import Any, Final

from twophp.core.errors import ConfigError, VaultError
from twophp.stores.postgres import driver, opening
from twophp.stores.postgres.script import Script
from twophp.stores.postgres.text import plain
from twophp.stores.sqlite.rotate import FAILURES_NAMED, PASSES, Progress, Rotation, Unopened
from twophp.stores.sqlite.seals import SealRow
from twophp.stores.vault import AesGcmVault, KeyRing, seal_header

PAGE_ROWS: Final = 64
SEALED: Final = "intent", "obligation", "job", "call"
"""The records that have sealed parts, in the order in which a batch locks them."""


async def rotate(url: str, ring: KeyRing, *, progress: Progress | None = None) -> Rotation:
    """Seal everything with the ring's active key, or go on with what was interrupted."""
    place = driver.place_of(url)
    script = Script(place.schema)
    async with driver.in_our_words():
        pool, _is_pooled = await driver.open_pool(place)
        try:
            async with pool.acquire() as connection:
                async with connection.transaction():
                    await opening.insist_on_schema(connection, script)
                return await _Resealing(connection, script, ring, progress or _ignore).run()
        finally:
            await pool.close()


class _Resealing:
    """One rotation under way."""

    def __init__(self, connection: Any, script: Script, ring: KeyRing, progress: Progress) -> None:
        self._connection = connection
        self._script = script
        self._ring = ring
        self._vault = AesGcmVault(ring)
        self._header = seal_header(ring.active)
        self._progress = progress
        self._service = ""
        self._done = self._total = 0
        self._unopened: list[Unopened] = []
        self._unopened_count = 0

    async def run(self) -> Rotation:
        """Passes until one finds nothing more that opens: a replica may have sealed with the old key meanwhile."""
        self._total = await self._count()
        (found,) = await self._fetch("read_meta", "service") or [None]
        if self._total and found is None:
            raise ConfigError("the ledger does not say which service sealed its payloads", code="no_service")
        self._service = "" if found is None else str(plain(found)[0])
        self._progress(0, self._total)
        left = 0
        for number in range(PASSES):
            before = self._done
            await self._pass()
            if self._done == before:
                break
            left = await self._count() - self._unopened_count if number == PASSES - 1 else 0
        named, count = tuple(self._unopened), self._unopened_count
        active, done = self._ring.active, self._done
        return Rotation(active=active, minted=False, resealed=done, unopened=named, unopened_count=count, left=left)

    async def _fetch(self, name: str, *values: Any) -> list[Any]:
        async with self._connection.transaction():
            found: list[Any] = await self._connection.fetch(self._script.named(name), *values)
        return found

    async def _count(self) -> int:
        ((count,),) = await self._fetch("count_sealed_by_others", self._header)
        return int(count)

    async def _pass(self) -> None:
        self._unopened, self._unopened_count = [], 0  # The last pass meets every one of them again.
        record, part = 0, ""
        while page := [
            SealRow(*plain(row)) for row in await self._fetch("sealed_after", record, part, self._header, PAGE_ROWS)
        ]:
            record, part = page[-1].record, page[-1].part
            rows = [row for one in page if (row := self._row(one)) is not None]
            if rows:
                await self._reseal(rows)
            self._done += len(rows)
            self._progress(self._done, max(self._total, self._done))

    async def _reseal(self, rows: list[tuple[int, str, bytes, bytes]]) -> None:
        columns = [list(column) for column in zip(*rows, strict=True)]
        async with self._connection.transaction():
            for table in SEALED:
                lock = self._script.named("lock_sealed").format(table=table)
                await self._connection.fetch(lock, columns[0])
            await self._connection.fetch(self._script.named("reseal"), *columns)

    def _row(self, old: SealRow) -> tuple[int, str, bytes, bytes] | None:
        try:
            plain_bytes = old.opened(self._vault, self._service)
        except VaultError as error:
            self._unopened_count += 1
            if len(self._unopened) < FAILURES_NAMED:
                said = Unopened(subject=old.name, part=old.part, code=error.code, message=str(error))
                self._unopened.append(said)
            return None
        return old.record, old.part, old.sealed, self._vault.seal(plain_bytes, context=old.contexts(self._service)[0])


def _ignore(_done: int, _total: int) -> None:
    """Nobody watches."""
