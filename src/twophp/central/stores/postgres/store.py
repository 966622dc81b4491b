"""The central ledger on PostgreSQL: rows arrive by COPY, and are looked for first only where that must be."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final, Self, TypeVar

import msgspec

from twophp.central.ingest.intake import Taken, ids_of, key_of, repeated, take
from twophp.central.ports import Ack, Service
from twophp.central.proof import merkle
from twophp.central.stores.postgres.database import SQL, Database, is_taken
from twophp.central.stores.statements import is_text, numbered
from twophp.central.stores.store import CentralStore, Steps, Values
from twophp.core.entry import LedgerEntry
from twophp.core.errors import StoreError
from twophp.core.records import Instant
from twophp.ports import MintId
from twophp.stores.clock import mint_uuid

PROBES: Final = 8
"""This many rows of a batch are looked for before the batch is taken for new."""

_COLUMNS: Final = ("sequence", *LedgerEntry.__struct_fields__)
_astuple: Final = msgspec.structs.astuple

T = TypeVar("T")


class PostgresCentral(CentralStore):
    """A ``CentralStore`` over a PostgreSQL database, which any number of processes may share."""

    def __init__(self, database: Database, *, mint: MintId = mint_uuid) -> None:
        super().__init__(SQL, mint)
        self._database = database

    @classmethod
    async def open(cls, url: str, *, mint: MintId = mint_uuid, read_only: bool = False) -> Self:
        """Connect to the database that ``url`` names, check that it is durable, and migrate it; or only look at it."""
        return cls(await Database.open(url, read_only=read_only), mint=mint)

    async def close(self) -> None:
        """See ``CentralStore.close``."""
        await self._database.close()

    # Taking rows up. --------------------------------------------------------------------------------------------------

    async def ingest(self, writer: Service, entries: Sequence[LedgerEntry], at: Instant) -> Sequence[Ack]:
        """See ``CentralStore.ingest``."""
        try:
            return await self._ingest(writer, entries, at, taken_for_new=True)
        except StoreError as error:
            if not is_taken(error):
                raise
        return await self._ingest(writer, entries, at, taken_for_new=False)

    async def _ingest(
        self, writer: Service, entries: Sequence[LedgerEntry], at: Instant, *, taken_for_new: bool
    ) -> Sequence[Ack]:
        """A batch of which a first look finds nothing known is taken for new, until a key says that it is not."""
        async with self._database.writing() as connection:
            size = await connection.fetchval(SQL["lock_head"])
            is_known, edge = await _look_ahead(connection, writer, entries, size)
            write = _copied if taken_for_new and not is_known else _compared
            taken = await write(connection, writer, entries, at, size)
            tiles = merkle.appended(size, edge, taken.leaves)
            columns = _columns((*key, tile) for key, tile in tiles.items()) or [[], [], []]
            size += len(taken.leaves)
            if taken.past:
                await connection.execute(SQL["keep_past"], *_columns(taken.past))
            if taken.alarms:
                await connection.executemany(SQL["raise_alarm"], [_astuple(alarm)[1:] for alarm in taken.alarms])
            await connection.execute(SQL["conclude"], *columns, size, at, taken.fresh, writer.service_ledger_id)
        return taken.acks

    # The driver. ------------------------------------------------------------------------------------------------------

    async def _fetch(
        self, statement: str, values: Values, shaped: Callable[[Any], Any], *, is_survey: bool = False
    ) -> list[Any]:
        async with self._database.surveying() if is_survey else self._database.connection() as connection:
            return [shaped(row) for row in await connection.fetch(numbered(statement), *values)]

    async def _chunks(self, statement: str, values: Values, size: int) -> AsyncGenerator[Sequence[Values]]:
        async with self._database.surveying() as connection:
            cursor = await connection.cursor(numbered(statement), *values)
            while rows := await cursor.fetch(size):
                yield rows

    async def _write(self, steps: Callable[[], Steps[T]]) -> T:
        async with self._database.writing() as connection:
            return await _run(connection, steps())

    async def _read(self, steps: Callable[[], Steps[T]]) -> T:
        async with self._database.reading() as connection:
            return await _run(connection, steps())

    def _array(self, texts: Sequence[str]) -> Sequence[str]:
        return texts

    def _columns(self, pairs: Sequence[tuple[Any, Any]]) -> Values:
        return _columns(pairs) or ([], [])


async def _run(connection: Any, steps: Steps[T]) -> T:
    rows = None
    try:
        while True:
            name, values = steps.send(rows)  # type: ignore[arg-type]  # None begins it.
            rows = await connection.fetch(SQL[name], *values)
    except StopIteration as end:
        made: T = end.value
        return made


async def _look_ahead(
    connection: Any, writer: Service, entries: Sequence[LedgerEntry], size: int
) -> tuple[bool, merkle.Tiles]:
    """Whether a row at either end is known, and the edge of the Merkle tree.

    What was sent before is so from its beginning or to its end.
    """
    probes = [*entries[: PROBES // 2], *entries[-PROBES // 2 :]]
    keys = merkle.edge_of(size)
    places = [level for level, _number in keys], [number for _level, number in keys]
    found = await connection.fetch(SQL["look_ahead"], writer.service_ledger_id, *_keys(probes), *places)
    return found[0][0], {(level, number): hashes for _known, level, number, hashes in found if level is not None}


async def _copied(connection: Any, writer: Service, entries: Sequence[LedgerEntry], at: Instant, size: int) -> Taken:
    """Write a batch of new rows; its keys are refused if they are not."""
    taken = Taken()
    await _copy(connection, take(taken, writer, entries, at, size, {}, repeated(entries)))
    return taken


async def _compared(connection: Any, writer: Service, entries: Sequence[LedgerEntry], at: Instant, size: int) -> Taken:
    """Write what is new of a batch, or newer than what is known."""
    found = map(tuple, await connection.fetch(SQL["known_entries"], writer.service_ledger_id, *_keys(entries)))
    known, taken = {key_of(row): row for row in found}, Taken()
    unsure = repeated(entries) | {key[0] for key in known}
    pieces = list(take(taken, writer, entries, at, size, known, unsure))
    if taken.replaced:
        await connection.execute(SQL["delete_entries"], [row[0] for row in taken.replaced])
    if taken.leaves:
        await _copy(connection, pieces)
    return taken


async def _copy(connection: Any, pieces: Iterable[Sequence[Values]]) -> None:
    """Rows are decided while the server takes the ones before."""
    rows = chain.from_iterable(pieces)
    await connection.copy_records_to_table("entry", records=rows, columns=_COLUMNS)


def _keys(entries: Sequence[LedgerEntry]) -> list[list[str]]:
    """In columns. What no database could hold is not there."""
    keys = [ids_of(entry) for entry in entries if is_text(entry.client_correlation_id, entry.server_correlation_id)]
    return _columns(keys) or [[], [], []]


def _columns(rows: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]
