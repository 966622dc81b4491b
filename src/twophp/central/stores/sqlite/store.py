"""The central ledger on SQLite: rows, Merkle tree, services, tokens and logs in one file."""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar
from zlib import crc32

import apsw
import msgspec

from twophp.central.ingest.intake import Key, Taken, key_of, repeated, take
from twophp.central.ports import Ack, Service
from twophp.central.proof import merkle
from twophp.central.stores.sqlite.database import SQL, Database, spot_of
from twophp.central.stores.store import CentralStore, Steps, Values
from twophp.core.entry import LedgerEntry
from twophp.core.records import Instant
from twophp.ports import MintId
from twophp.stores.clock import mint_uuid

MOVED_AT: Final = 4_096
"""Whenever the tree passes a multiple of this (of more, once it is large), the spots of what came since are moved."""
LARGE: Final = 2_048
"""A batch of so many rows is not recent before it is moved."""

_astuple: Final = msgspec.structs.astuple

T = TypeVar("T")


class SqliteCentral(CentralStore):
    """A ``CentralStore`` over one file, or in memory without one. Use it from one event loop."""

    def __init__(self, path: str | None, *, mint: MintId = mint_uuid, read_only: bool = False) -> None:
        """Open or create the database, migrate it, and prove that a write reaches the disk; or only look at it."""
        super().__init__(SQL, mint)
        self._database = Database(path, read_only=read_only)

    async def close(self) -> None:
        """See ``CentralStore.close``."""
        await self._database.close()

    # Taking rows up. --------------------------------------------------------------------------------------------------

    async def ingest(self, writer: Service, entries: Sequence[LedgerEntry], at: Instant) -> Sequence[Ack]:
        """See ``CentralStore.ingest``."""

        def change(connection: apsw.Connection) -> Sequence[Ack]:
            return _ingest(connection, writer, entries, at)

        return await self._database.write(change)

    # The driver. ------------------------------------------------------------------------------------------------------

    async def _fetch(
        self, statement: str, values: Values, shaped: Callable[[Any], Any], *, is_survey: bool = False
    ) -> list[Any]:
        del is_survey  # What reads many rows is read as anything else.
        return await self._database.read(
            lambda connection: [shaped(row) for row in connection.execute(statement, values)]
        )

    def _chunks(self, statement: str, values: Values, size: int) -> AsyncGenerator[Sequence[Values]]:
        return self._database.chunks(statement, values, size)

    async def _write(self, steps: Callable[[], Steps[T]]) -> T:
        return await self._database.write(lambda connection: _run(connection, steps()))

    async def _read(self, steps: Callable[[], Steps[T]]) -> T:
        return await self._database.read(lambda connection: _run(connection, steps()))

    def _array(self, texts: Sequence[str]) -> str:
        return _json(texts)

    def _columns(self, pairs: Sequence[tuple[Any, Any]]) -> Values:
        return (_json(pairs),)


def _run(connection: apsw.Connection, steps: Steps[T]) -> T:
    rows = None
    try:
        while True:
            name, values = steps.send(rows)  # type: ignore[arg-type]  # None begins it.
            rows = connection.execute(SQL[name], values).fetchall()
    except StopIteration as end:
        made: T = end.value
        return made


def _ingest(connection: apsw.Connection, writer: Service, entries: Sequence[LedgerEntry], at: Instant) -> Sequence[Ack]:
    size, _at = _head(connection)
    taken, spots = Taken(), list[int]()
    known = _known(connection, writer, entries)
    for rows in take(taken, writer, entries, at, size, known, repeated(entries) | {key[0] for key in known}):
        connection.executemany(SQL["insert_entry"], rows)
        spots += _spots_of(rows)
    if taken.replaced:
        _forget(connection, taken.replaced)
    if taken.past:
        connection.executemany(SQL["keep_past"], taken.past)
    if taken.leaves:
        _keep_spots(connection, size, size + len(taken.leaves), spots)
        tiles = merkle.appended(size, _tiles(connection, merkle.edge_of(size)), taken.leaves)
        connection.executemany(SQL["keep_tile"], [(*key, hashes) for key, hashes in tiles.items()])
        connection.execute(SQL["write_head"], (size + len(taken.leaves), at))
    if taken.alarms:
        connection.executemany(SQL["raise_alarm"], [_astuple(alarm)[1:] for alarm in taken.alarms])
    connection.execute(SQL["note_sync"], (at, taken.fresh, writer.service_ledger_id))
    return taken.acks


def _known(connection: apsw.Connection, writer: Service, entries: Sequence[LedgerEntry]) -> dict[Key, Values]:
    """The rows of this writer that the batch names, and some others: a spot says what may be there."""
    wanted = sorted([spot_of(entry.client_correlation_id) for entry in entries])
    found = connection.execute(SQL["known_spots"], (_array(wanted),)) if wanted else ()
    numbers = [number for (number,) in found]
    rows = connection.execute(SQL["known_entries"], (writer.service_ledger_id, _array(numbers))) if numbers else ()
    return {key_of(row): row for row in rows}


def _spots_of(rows: Iterable[Values]) -> list[int]:
    """Where rows are found: by both ids, and as children. A spot is there twice if two ids of a row are alike."""
    spots = []
    for row in rows:  # ``spot_of``, spelled out: a call would take as long as what it does.
        number, client_id, server_id, parent = row[0], row[1], row[2], row[8]
        spots.append(crc32(client_id.encode()) >> 4 << 35 | number)
        spots.append(crc32(server_id.encode()) >> 4 << 35 | number)
        if parent != client_id:
            spots.append(crc32(parent.encode()) >> 4 << 35 | number)
    return spots


def _keep_spots(connection: apsw.Connection, size: int, new_size: int, spots: Iterable[int]) -> None:
    """In order, so that neighbours share a page. A large batch has enough of them by itself."""
    is_large = new_size - size >= LARGE
    connection.execute(SQL["insert_spots" if is_large else "insert_recent_spots"], (_array(sorted(spots)),))
    step = _step(new_size)
    if size // step != new_size // step:
        connection.execute(SQL["move_spots"])
        connection.execute(SQL["forget_recent_spots"])


def _step(size: int) -> int:
    """The more pages there are to move spots to, the more of them are moved at a time, and meet in a page."""
    return MOVED_AT << max(0, size.bit_length() - 17) // 2


def _forget(connection: apsw.Connection, rows: Sequence[Values]) -> None:
    """Rows of which a newer version stands at the end now."""
    spots = _array(_spots_of(rows))
    connection.execute(SQL["delete_entries"], (_array([row[0] for row in rows]),))
    connection.execute(SQL["delete_recent_spots"], (spots,))
    connection.execute(SQL["delete_spots"], (spots,))


def _head(connection: apsw.Connection) -> tuple[int, Instant]:
    size, at = next(connection.execute(SQL["read_head"]))
    return size, at


def _tiles(connection: apsw.Connection, keys: Iterable[merkle.TileKey]) -> dict[merkle.TileKey, bytes]:
    found = connection.execute(SQL["tiles"], (_json(list(keys)),))
    return {(level, number): hashes for level, number, hashes in found}


def _array(numbers: Iterable[int]) -> apsw.CArrayBinding:
    return apsw.carray(array("q", numbers))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
