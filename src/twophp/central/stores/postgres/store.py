"""The central ledger on PostgreSQL: rows arrive by COPY, and are looked for first only where that must be."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Final, Self

import msgspec

from twophp.central.ingest.intake import Taken, Values, ids_of, key_of, repeated, take
from twophp.central.ports import (
    MOST_IN_A_TREE,
    MOST_PER_PAGE,
    Access,
    Ack,
    Activity,
    Alarm,
    Page,
    Row,
    RowFilter,
    Service,
    Sla,
    Token,
    TreeHead,
)
from twophp.central.proof import merkle
from twophp.central.proof.subtrees import checked_consistency, checked_inclusion
from twophp.central.stores.postgres.database import SQL, Database, is_taken
from twophp.central.stores.records import row_of, sequence_of, service_of, shape, token_of, token_values
from twophp.central.stores.statements import cleaned, conditions, is_text, numbered, place_of, refuse_unfit, within
from twophp.core.entry import LedgerEntry
from twophp.core.errors import StoreError
from twophp.core.records import Instant
from twophp.ports import MintId
from twophp.stores.clock import mint_uuid

EXPORT_ROWS: Final = 1_000
PROBES: Final = 8
"""This many rows of a batch are looked for before the batch is taken for new."""

_COLUMNS: Final = ("sequence", *LedgerEntry.__struct_fields__)
_astuple: Final = msgspec.structs.astuple


class PostgresCentral:
    """A ``CentralStore`` over a PostgreSQL database, which any number of processes may share."""

    def __init__(self, database: Database, *, mint: MintId = mint_uuid) -> None:
        self._database = database
        self._mint = mint

    @classmethod
    async def open(cls, url: str, *, mint: MintId = mint_uuid) -> Self:
        """Connect to the database that ``url`` names, check that it is durable, and migrate it."""
        return cls(await Database.open(url), mint=mint)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self.close()

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
            if taken.alarms:
                await connection.executemany(SQL["raise_alarm"], [_astuple(alarm)[1:] for alarm in taken.alarms])
            await connection.execute(SQL["conclude"], *columns, size, at, taken.fresh, writer.service_ledger_id)
        return taken.acks

    # Questions about rows. --------------------------------------------------------------------------------------------

    async def entries(self, wanted: RowFilter, *, cursor: str | None = None, limit: int = 100) -> Page:
        """See ``CentralStore.entries``."""
        place, most = place_of(cursor), min(limit, MOST_PER_PAGE)
        where, values = _conditions(wanted, place)
        rows = await self._survey(numbered(SQL["entries"].format(conditions=where)), (*values, most + 1), row_of)
        more = len(rows) > most
        return Page(rows[:most], str(rows[most - 1].sequence) if more else None)

    async def tree(self, correlation_id: str, *, limit: int = MOST_IN_A_TREE) -> Sequence[Row]:
        """See ``CentralStore.tree``."""
        if not is_text(correlation_id):
            return []
        return sorted(await self._all(SQL["tree"], (correlation_id, limit), row_of), key=sequence_of)

    async def of_pairs(self, pairs: Sequence[tuple[str, str]]) -> Sequence[Row]:
        """See ``CentralStore.of_pairs``."""
        pairs = [pair for pair in pairs if is_text(*pair)]
        ids = ([client for client, _server in pairs], [server for _client, server in pairs])
        return sorted(await self._all(SQL["of_pairs"], ids, row_of), key=sequence_of)

    async def after(self, sequence: int, limit: int) -> Sequence[Row]:
        """See ``CentralStore.after``."""
        return await self._all(SQL["after"], (within(sequence), limit), row_of)

    async def export(self, wanted: RowFilter) -> AsyncGenerator[Sequence[Row]]:
        """See ``CentralStore.export``."""
        where, values = _conditions(wanted, None)
        statement = numbered(SQL["exported"].format(conditions=where))
        async with self._database.surveying() as connection:
            cursor = await connection.cursor(statement, *values)
            while rows := await cursor.fetch(EXPORT_ROWS):
                yield [row_of(row) for row in rows]

    async def sla(self, since: Instant, until: Instant) -> Sequence[Sla]:
        """See ``CentralStore.sla``."""
        return await self._survey(SQL["sla"], (within(since), within(until)), shape(Sla))

    async def activity(self, since: Instant, until: Instant, step_ms: int) -> Sequence[Activity]:
        """See ``CentralStore.activity``."""
        return await self._survey(SQL["activity"], (within(since), within(until), step_ms), shape(Activity))

    # Services, tokens, logs. ------------------------------------------------------------------------------------------

    async def register(
        self, name: str, claimed_id: str | None, token_id: str, at: Instant, *, pull_url: str | None = None
    ) -> Service:
        """See ``CentralStore.register``."""
        refuse_unfit(name, claimed_id, pull_url)
        async with self._database.writing() as connection:
            await connection.execute(SQL["lock_services"])
            known = await connection.fetchrow(SQL["its_service"], token_id, claimed_id, name)
            if known is None:
                taken = claimed_id is None or await connection.fetchrow(SQL["service"], claimed_id)
                id_ = self._mint() if taken or claimed_id is None else claimed_id
                await connection.execute(SQL["add_service"], id_, name, at, pull_url)
            else:
                id_ = known[0]
                await connection.execute(SQL["update_service"], name, pull_url, id_)
            await connection.execute(SQL["add_credential"], token_id, id_)
            service: Service = service_of(await connection.fetchrow(SQL["service"], id_))
            return service

    async def services(self) -> Sequence[Service]:
        """See ``CentralStore.services``."""
        return await self._all(SQL["services"], (), service_of)

    async def add_token(self, token: Token, secret_hash: bytes) -> None:
        """See ``CentralStore.add_token``."""
        async with self._database.writing() as connection:
            await connection.execute(SQL["add_token"], *token_values(token, secret_hash))
            if token.service_ledger_id is not None:
                await connection.execute(SQL["add_credential"], token.token_id, token.service_ledger_id)

    async def token(self, secret_hash: bytes) -> Token | None:
        """See ``CentralStore.token``."""
        found = await self._all(SQL["token_by_hash"], (secret_hash,), token_of)
        return found[0] if found else None

    async def tokens(self) -> Sequence[Token]:
        """See ``CentralStore.tokens``."""
        return await self._all(SQL["tokens"], (), token_of)

    async def token_used(self, token_id: str, at: Instant) -> None:
        """See ``CentralStore.token_used``."""
        await self._all(SQL["token_used"], (at, token_id), tuple)

    async def revoke_token(self, token_id: str, at: Instant) -> bool:
        """See ``CentralStore.revoke_token``."""
        return bool(await self._all(SQL["revoke_token"], (at, token_id), tuple))

    async def log_access(self, lines: Sequence[Access]) -> None:
        """See ``CentralStore.log_access``."""
        async with self._database.writing() as connection:
            await connection.executemany(
                SQL["log_access"],
                [
                    (line.at, cleaned(line.who), line.role, line.method, cleaned(line.path), line.status)
                    for line in lines
                ],
            )

    async def accesses(self, *, limit: int = 100) -> Sequence[Access]:
        """See ``CentralStore.accesses``."""
        return await self._all(SQL["accesses"], (limit,), shape(Access))

    async def alarms(self, *, limit: int = 100) -> Sequence[Alarm]:
        """See ``CentralStore.alarms``."""
        return await self._all(SQL["alarms"], (limit,), shape(Alarm))

    # The Merkle tree. -------------------------------------------------------------------------------------------------

    async def head(self) -> TreeHead:
        """See ``CentralStore.head``."""
        async with self._database.reading() as connection:
            size, at = await connection.fetchrow(SQL["read_head"])
            tiles = await _tiles(connection, merkle.tiles_of([(0, size)]))
        return TreeHead(size=size, root=merkle.root_of(size, tiles), at=at)

    async def leaf(self, sequence: int) -> bytes | None:
        """See ``CentralStore.leaf``."""
        hashes = await self._hashes(lambda there: [(sequence - 1, sequence)] if 0 < sequence <= there else [])
        return hashes[0] if hashes else None

    async def inclusion(self, sequence: int, size: int) -> Sequence[bytes]:
        """See ``CentralStore.inclusion``."""
        return await self._hashes(lambda there: checked_inclusion(sequence, size, there))

    async def consistency(self, old_size: int, new_size: int) -> Sequence[bytes]:
        """See ``CentralStore.consistency``."""
        return await self._hashes(lambda there: checked_consistency(old_size, new_size, there))

    async def ready(self) -> None:
        """See ``CentralStore.ready``."""
        await self._all(SQL["ready"], (), tuple)

    async def close(self) -> None:
        """See ``CentralStore.close``."""
        await self._database.close()

    async def _hashes(self, ranges_in: Callable[[int], list[merkle.Range]]) -> list[bytes]:
        async with self._database.reading() as connection:
            size, _at = await connection.fetchrow(SQL["read_head"])
            ranges = ranges_in(size)
            return merkle.hashes_of(ranges, await _tiles(connection, merkle.tiles_of(ranges)))

    async def _all(self, statement: str, values: Sequence[Any], shaped: Callable[[Any], Any]) -> list[Any]:
        async with self._database.connection() as connection:
            return [shaped(row) for row in await connection.fetch(statement, *values)]

    async def _survey(self, statement: str, values: Sequence[Any], shaped: Callable[[Any], Any]) -> list[Any]:
        async with self._database.surveying() as connection:
            return [shaped(row) for row in await connection.fetch(statement, *values)]


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


async def _tiles(connection: Any, keys: Iterable[merkle.TileKey]) -> dict[merkle.TileKey, bytes]:
    wanted = list(keys)
    levels, numbers = [level for level, _number in wanted], [number for _level, number in wanted]
    found = await connection.fetch(SQL["tiles"], levels, numbers) if wanted else []
    return {(level, number): hashes for level, number, hashes in found}


def _columns(rows: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _conditions(wanted: RowFilter, place: int | None) -> tuple[str, tuple[Any, ...]]:
    found = conditions(wanted, by_id=lambda id_: (id_, id_), phases=list)
    if place is not None:
        found.append(("before", (place,)))
    return " AND ".join(SQL[name] for name, _values in found), tuple(value for _name, some in found for value in some)
