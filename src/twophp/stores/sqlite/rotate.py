"""Rotation: a new active key, then every sealed part opened and sealed again, while the service goes on.

No step can lose a row. Old keys stay in the ring, so bytes sealed with either key open at any moment. Pages are small
changes of the background, which gives way to requests (ADR 30), and a part is replaced only if it still has the bytes
that were opened. After a kill the same call goes on: the ring says that it is rotating, and parts with the new key are
skipped. A part that does not open is left as it is and reported: it is evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import apsw
import msgspec

from twophp.core.errors import ConfigError, VaultError
from twophp.core.records import Instant
from twophp.kernel.commands import MakeChange
from twophp.ports import Change, Statement
from twophp.stores.keys import StoredRing, begin_rotation, finish_rotation, retire
from twophp.stores.ring_file import RingFile
from twophp.stores.sqlite.reading import kept, reading, rows_by_key
from twophp.stores.sqlite.seals import SealRow
from twophp.stores.sqlite.sql import sql
from twophp.stores.sqlite.store import SQLiteStore
from twophp.stores.vault import AesGcmVault, KeyRing, seal_header

PAGE_ROWS: Final = 64
PAGE_BYTES: Final = 1024 * 1024  # A page is in memory and in one transaction, however large the payloads are.
PASSES: Final = 8
FAILURES_NAMED: Final = 100

Progress: TypeAlias = Callable[[int, int], None]
"""Told how many parts are done and how many there were to do, at the start and after each page is durable."""


class Unopened(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed part that rotation left as it was."""

    subject: str
    part: str
    code: str
    message: str


class Rotation(msgspec.Struct, frozen=True, kw_only=True):
    """What a rotation did."""

    active: str
    minted: bool  # False: an unfinished rotation was continued, or the ring is not ours to change.
    resealed: int
    unopened: tuple[Unopened, ...]  # The first of them ...
    unopened_count: int  # ... and how many there are.
    left: int  # Parts that a service keeps sealing with an older key; run it again.
    retired: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every part is sealed with the active key."""
        return not self.unopened_count and not self.left


async def rotate(store: SQLiteStore, keys: RingFile | KeyRing, *, progress: Progress | None = None) -> Rotation:
    """Seal everything with a new key, or go on with what a killed rotation left. A given ring gets no new key."""
    if isinstance(keys, KeyRing):
        return await _reseal(store, keys, minted=False, progress=progress)
    before = keys.load()
    stored = keys.edit(begin_rotation)
    done = await _reseal(store, stored.ring(), minted=stored.active != before.active, progress=progress)
    if not done.left:
        keys.edit(lambda latest, _now: finish_rotation(latest) if latest.active == stored.active else latest)
    return done


def retire_keys(path: str, keys: RingFile) -> tuple[str, ...]:
    """Take the keys that no row of the database uses any more out of its ring; their names."""
    in_use = rows_by_key(path)

    def change(stored: StoredRing, now: Instant) -> StoredRing:
        return retire(stored, in_use, now)

    before = {key.name for key in keys.load().keys}
    after = {key.name for key in keys.edit(change).keys}
    return tuple(sorted(before - after))


async def _reseal(store: SQLiteStore, ring: KeyRing, *, minted: bool, progress: Progress | None) -> Rotation:
    with reading(store.path) as connection:
        work = _Resealing(store, connection, ring, progress or _ignore)
        left = await work.run()
    return Rotation(
        active=ring.active,
        minted=minted,
        resealed=work.done,
        unopened=tuple(work.unopened),
        unopened_count=work.unopened_count,
        left=left,
    )


class _Resealing:
    """One rotation under way. Its own connection reads; the store's queue writes."""

    def __init__(self, store: SQLiteStore, connection: apsw.Connection, ring: KeyRing, progress: Progress) -> None:
        self._store = store
        self._execute = connection.execute
        self._vault = AesGcmVault(ring)
        self._header = seal_header(ring.active)
        self._service = kept(connection, "service")
        self._progress = progress
        self.done = 0
        self.unopened: list[Unopened] = []
        self.unopened_count = 0

    async def run(self) -> int:
        """Passes until one finds nothing more that opens; how many parts are left after the last allowed one.

        One pass is enough unless a service settles calls with the old key behind the pass's back.
        """
        self._total = self._count()
        if self._total and self._service is None:
            message = f"{self._store.path} does not say which service sealed its payloads"
            raise ConfigError(message, code="no_service")
        self._progress(0, self._total)
        for _ in range(PASSES):
            before = self.done
            await self._pass()
            if self.done == before:
                return 0
        return self._count() - self.unopened_count

    def _count(self) -> int:
        return int(self._execute(sql("count_seals_of_others"), (self._header,)).get)

    async def _pass(self) -> None:
        self.unopened, self.unopened_count = [], 0  # The last pass meets every one of them again.
        record, part = 0, ""
        # Up to here and no further: a pass that followed a busy service's new rows might never end.
        last = int(self._execute(sql("last_sealed_record")).get)
        while page := list(self._page(record, part, last)):
            record, part = page[-1].record, page[-1].part
            rows = [row for found in page if (row := self._row(found)) is not None]
            if rows:
                await self._store.transact(MakeChange(_replacing(rows), "background"))
            self.done += len(rows)
            self._progress(self.done, max(self._total, self.done))

    def _page(self, record: int, part: str, last: int) -> Iterator[SealRow]:
        size = 0
        for columns in self._execute(sql("seals_of_others"), (record, part, last, self._header, PAGE_ROWS)):
            yield (row := SealRow(*columns))
            size += len(row.sealed)
            if size >= PAGE_BYTES:
                return

    def _row(self, old: SealRow) -> tuple[bytes, int, str, bytes] | None:
        service = self._service or ""
        try:
            plain = old.opened(self._vault, service)
        except VaultError as error:
            self._note(old.name, old.part, error)
            return None
        return self._vault.seal(plain, context=old.contexts(service)[0]), old.record, old.part, old.sealed

    def _note(self, subject: str, part: str, error: VaultError) -> None:
        self.unopened_count += 1
        if len(self.unopened) < FAILURES_NAMED:
            self.unopened.append(Unopened(subject=subject, part=part, code=error.code, message=error.message))


def _replacing(rows: list[tuple[bytes, int, str, bytes]]) -> Change:
    # Wherever the part lies: the others find nothing.
    places = tuple(Statement(sql=sql(name), rows=rows) for name in ("reseal", "reseal_payload", "reseal_response"))
    return Change(answer=None, statements=places)


def _ignore(_done: int, _total: int) -> None:
    """Show no progress."""
