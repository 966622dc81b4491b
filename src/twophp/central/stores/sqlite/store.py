"""The central ledger on SQLite: rows, Merkle tree, services, tokens and logs in one file."""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from operator import itemgetter
from typing import Any, Final, Self
from zlib import crc32

import apsw
import msgspec

from twophp.central.ingest.intake import Key, Taken, Values, key_of, repeated, take
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
from twophp.central.stores.records import row_of, sequence_of, service_of, shape, token_of, token_values
from twophp.central.stores.sqlite.database import SQL, Database, spot_of
from twophp.central.stores.statements import cleaned, conditions, is_text, place_of, refuse_unfit, within
from twophp.core.entry import LedgerEntry
from twophp.core.records import Instant
from twophp.ports import MintId
from twophp.stores.clock import mint_uuid

EXPORT_ROWS: Final = 1_000
MOVED_AT: Final = 4_096
"""Whenever the tree passes a multiple of this (of more, once it is large), the spots of what came since are moved."""
LARGE: Final = 2_048
"""A batch of so many rows is not recent before it is moved."""

_astuple: Final = msgspec.structs.astuple


class SqliteCentral:
    """A ``CentralStore`` over one file, or in memory without one. Use it from one event loop."""

    def __init__(self, path: str | None, *, mint: MintId = mint_uuid) -> None:
        """Open or create the database, migrate it, and prove that a write reaches the disk."""
        self._database = Database(path)
        self._mint = mint

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self.close()

    # Taking rows up. --------------------------------------------------------------------------------------------------

    async def ingest(self, writer: Service, entries: Sequence[LedgerEntry], at: Instant) -> Sequence[Ack]:
        """See ``CentralStore.ingest``."""

        def change(connection: apsw.Connection) -> Sequence[Ack]:
            return _ingest(connection, writer, entries, at)

        return await self._database.write(change)

    # Questions about rows. --------------------------------------------------------------------------------------------

    async def entries(self, wanted: RowFilter, *, cursor: str | None = None, limit: int = 100) -> Page:
        """See ``CentralStore.entries``."""
        place, most = place_of(cursor), min(limit, MOST_PER_PAGE)
        where, values = _conditions(wanted, place)
        rows = await self._rows(SQL["entries"].format(conditions=where), (*values, most + 1))
        more = len(rows) > most
        return Page(rows[:most], str(rows[most - 1].sequence) if more else None)

    async def tree(self, correlation_id: str, *, limit: int = MOST_IN_A_TREE) -> Sequence[Row]:
        """See ``CentralStore.tree``."""
        if not is_text(correlation_id):
            return []
        rows = await self._rows(SQL["tree"], (correlation_id, spot_of(correlation_id), limit))
        return sorted(rows, key=sequence_of)

    async def of_pairs(self, pairs: Sequence[tuple[str, str]]) -> Sequence[Row]:
        """See ``CentralStore.of_pairs``."""
        pairs = [pair for pair in pairs if is_text(*pair)]
        return sorted(
            await self._rows(
                SQL["of_pairs"], (_json([(spot_of(client), client, server) for client, server in pairs]),)
            ),
            key=sequence_of,
        )

    async def after(self, sequence: int, limit: int) -> Sequence[Row]:
        """See ``CentralStore.after``."""
        return await self._rows(SQL["after"], (within(sequence), limit))

    async def export(self, wanted: RowFilter) -> AsyncGenerator[Sequence[Row]]:
        """See ``CentralStore.export``."""
        where, values = _conditions(wanted, None)
        statement = SQL["exported"].format(conditions=where)
        async with aclosing(self._database.chunks(statement, values, EXPORT_ROWS)) as chunks:
            async for rows in chunks:
                yield [row_of(row) for row in rows]

    async def sla(self, since: Instant, until: Instant) -> Sequence[Sla]:
        """See ``CentralStore.sla``."""
        return await self._all("sla", (within(since), within(until)), shape(Sla))

    async def activity(self, since: Instant, until: Instant, step_ms: int) -> Sequence[Activity]:
        """See ``CentralStore.activity``."""
        return await self._all("activity", (within(since), within(until), step_ms), shape(Activity))

    # Services, tokens, logs. ------------------------------------------------------------------------------------------

    async def register(
        self, name: str, claimed_id: str | None, token_id: str, at: Instant, *, pull_url: str | None = None
    ) -> Service:
        """See ``CentralStore.register``."""
        refuse_unfit(name, claimed_id, pull_url)

        def change(connection: apsw.Connection) -> Service:
            known = connection.execute(SQL["its_service"], (token_id, claimed_id, name)).fetchone()
            if known is None:
                taken = claimed_id is None or connection.execute(SQL["service"], (claimed_id,)).fetchone()
                id_ = self._mint() if taken or claimed_id is None else claimed_id
                connection.execute(SQL["add_service"], (id_, name, at, pull_url))
            else:
                id_ = known[0]
                connection.execute(SQL["update_service"], (name, pull_url, id_))
            connection.execute(SQL["add_credential"], (token_id, id_))
            service: Service = service_of(next(connection.execute(SQL["service"], (id_,))))
            return service

        return await self._database.write(change)

    async def services(self) -> Sequence[Service]:
        """See ``CentralStore.services``."""
        return await self._all("services", (), service_of)

    async def add_token(self, token: Token, secret_hash: bytes) -> None:
        """See ``CentralStore.add_token``."""

        def change(connection: apsw.Connection) -> None:
            connection.execute(SQL["add_token"], token_values(token, secret_hash))
            if token.service_ledger_id is not None:
                connection.execute(SQL["add_credential"], (token.token_id, token.service_ledger_id))

        await self._database.write(change)

    async def token(self, secret_hash: bytes) -> Token | None:
        """See ``CentralStore.token``."""
        found = await self._all("token_by_hash", (secret_hash,), token_of)
        return found[0] if found else None

    async def tokens(self) -> Sequence[Token]:
        """See ``CentralStore.tokens``."""
        return await self._all("tokens", (), token_of)

    async def token_used(self, token_id: str, at: Instant) -> None:
        """See ``CentralStore.token_used``."""
        await self._database.write(lambda connection: connection.execute(SQL["token_used"], (at, token_id)).fetchall())

    async def revoke_token(self, token_id: str, at: Instant) -> bool:
        """See ``CentralStore.revoke_token``."""

        def change(connection: apsw.Connection) -> bool:
            connection.execute(SQL["revoke_token"], (at, token_id))
            return connection.changes() > 0

        return await self._database.write(change)

    async def log_access(self, lines: Sequence[Access]) -> None:
        """See ``CentralStore.log_access``."""
        rows = [(line.at, cleaned(line.who), line.role, line.method, cleaned(line.path), line.status) for line in lines]
        await self._database.write(lambda connection: connection.executemany(SQL["log_access"], rows).fetchall())

    async def accesses(self, *, limit: int = 100) -> Sequence[Access]:
        """See ``CentralStore.accesses``."""
        return await self._all("accesses", (limit,), shape(Access))

    async def alarms(self, *, limit: int = 100) -> Sequence[Alarm]:
        """See ``CentralStore.alarms``."""
        return await self._all("alarms", (limit,), shape(Alarm))

    # The Merkle tree. -------------------------------------------------------------------------------------------------

    async def head(self) -> TreeHead:
        """See ``CentralStore.head``."""

        def question(connection: apsw.Connection) -> TreeHead:
            size, at = _head(connection)
            tiles = _tiles(connection, merkle.tiles_of([(0, size)]))
            return TreeHead(size=size, root=merkle.root_of(size, tiles), at=at)

        return await self._database.read(question)

    async def leaf(self, sequence: int) -> bytes | None:
        """See ``CentralStore.leaf``."""

        def question(connection: apsw.Connection) -> bytes | None:
            if not 0 < sequence <= _head(connection)[0]:
                return None
            ranges = [(sequence - 1, sequence)]
            return merkle.hashes_of(ranges, _tiles(connection, merkle.tiles_of(ranges)))[0]

        return await self._database.read(question)

    async def inclusion(self, sequence: int, size: int) -> Sequence[bytes]:
        """See ``CentralStore.inclusion``."""
        return await self._prove(lambda there: checked_inclusion(sequence, size, there))

    async def consistency(self, old_size: int, new_size: int) -> Sequence[bytes]:
        """See ``CentralStore.consistency``."""
        return await self._prove(lambda there: checked_consistency(old_size, new_size, there))

    async def ready(self) -> None:
        """See ``CentralStore.ready``."""
        await self._all("ready", (), itemgetter(0))

    async def close(self) -> None:
        """See ``CentralStore.close``."""
        await self._database.close()

    async def _prove(self, path_in: Callable[[int], list[merkle.Range]]) -> list[bytes]:
        def question(connection: apsw.Connection) -> list[bytes]:
            path = path_in(_head(connection)[0])
            return merkle.hashes_of(path, _tiles(connection, merkle.tiles_of(path)))

        return await self._database.read(question)

    async def _rows(self, statement: str, values: Values) -> list[Row]:
        return await self._database.read(
            lambda connection: [row_of(row) for row in connection.execute(statement, values)]
        )

    async def _all(self, name: str, values: Values, shape: Callable[[Values], Any]) -> list[Any]:
        return await self._database.read(
            lambda connection: [shape(row) for row in connection.execute(SQL[name], values)]
        )


def _ingest(connection: apsw.Connection, writer: Service, entries: Sequence[LedgerEntry], at: Instant) -> Sequence[Ack]:
    size, _at = _head(connection)
    taken, spots = Taken(), list[int]()
    known = _known(connection, writer, entries)
    for rows in take(taken, writer, entries, at, size, known, repeated(entries) | {key[0] for key in known}):
        connection.executemany(SQL["insert_entry"], rows)
        spots += _spots_of(rows)
    if taken.replaced:
        _forget(connection, taken.replaced)
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


def _conditions(wanted: RowFilter, place: int | None) -> tuple[str, Values]:
    found = conditions(wanted, by_id=lambda id_: (spot_of(id_), spot_of(id_), id_), phases=_json)
    if place is not None:
        found.append(("before", (place,)))
    return " AND ".join(SQL[name] for name, _values in found), tuple(value for _name, some in found for value in some)


def _array(numbers: Iterable[int]) -> apsw.CArrayBinding:
    return apsw.carray(array("q", numbers))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
