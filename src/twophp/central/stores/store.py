"""The central ledger's store: what it promises, and all of it that is the same on every database.

A database says how statements are run (``_fetch``, ``_chunks``, ``_write``), how it reads the Merkle tree, how it is
bound to several values at once, and how it takes a batch up. Its SQL has the same names as the other's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Self, TypeAlias, TypeVar

from twophp.central.ports import (
    MOST_IN_A_TREE,
    MOST_PER_PAGE,
    Access,
    Ack,
    Activity,
    Alarm,
    Leaves,
    Page,
    Row,
    RowFilter,
    Service,
    SignedHead,
    Sla,
    Token,
    TreeHead,
)
from twophp.central.proof import merkle
from twophp.central.stores.records import (
    COLUMNS,
    past_row_of,
    row_of,
    sequence_of,
    service_of,
    shape,
    token_of,
    token_values,
)
from twophp.central.stores.statements import MOST_INTEGER, cleaned, conditions, is_text, place_of, refuse_unfit, within
from twophp.core.entry import LedgerEntry
from twophp.core.errors import Refused
from twophp.core.records import Instant
from twophp.identity.notes import Head, Signer
from twophp.ports import MintId

EXPORT_ROWS: Final = 1_000

T = TypeVar("T")
Values: TypeAlias = Sequence[Any]
Steps: TypeAlias = Generator[tuple[str, Values], Sequence[Values], T]
"""The statements of one transaction, each by its name with its values; each is answered with its rows."""


class CentralStore(ABC):
    """The database of tier 3: SQLite or PostgreSQL. One contract suite runs over both."""

    def __init__(self, sql: Mapping[str, str], mint: MintId) -> None:
        self._sql = sql
        self._mint = mint

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self.close()

    @abstractmethod
    async def ingest(self, writer: Service, entries: Sequence[LedgerEntry], at: Instant) -> Sequence[Ack]:
        """Take a batch up, one ack per row in its order. Idempotent and order-tolerant; nothing half (A-57)."""

    async def take_up(self, writer: Service, rows: Sequence[LedgerEntry], at: Instant) -> Sequence[Ack]:
        """Ingest a service's own rows, pushed or pulled: a row in another service's name is refused unseen."""
        own = [row for row in rows if row.source == writer.name]
        if len(own) == len(rows):
            return await self.ingest(writer, rows, at)
        acks = iter(await self.ingest(writer, own, at))
        return [next(acks) if row.source == writer.name else _other_source(row) for row in rows]

    # Questions about rows. --------------------------------------------------------------------------------------------

    async def entries(self, wanted: RowFilter, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Rows that were asked for, newest sequence first."""
        statement, values = self._filtered("entries", wanted, place_of(cursor))
        most = min(limit, MOST_PER_PAGE)
        rows = await self._fetch(statement, (*values, most + 1), row_of, is_survey=True)
        more = len(rows) > most
        return Page(rows[:most], str(rows[most - 1].sequence) if more else None)

    async def tree(self, correlation_id: str, *, limit: int = MOST_IN_A_TREE) -> Sequence[Row]:
        """Every row of the call tree that this id (either of a pair) is in: up to the root, then down (A-53)."""
        if not is_text(correlation_id):
            return []
        return sorted(await self._all("tree", (correlation_id, limit), row_of), key=sequence_of)

    async def of_pairs(self, pairs: Sequence[tuple[str, str]]) -> Sequence[Row]:
        """All rows of these pairs of ids."""
        wanted = self._columns([pair for pair in pairs if is_text(*pair)])
        return sorted(await self._all("of_pairs", wanted, row_of), key=sequence_of)

    async def after(self, sequence: int, limit: int) -> Sequence[Row]:
        """What has arrived since, oldest first: the live feed."""
        return await self._all("after", (within(sequence), limit), row_of)

    async def version(self, sequence: int) -> Row | None:
        """The row that leaf ``sequence`` is about, superseded or not; None where it is not kept."""
        asked = within(sequence), within(sequence + 1), 1
        found = await self._all("newest_leaves", asked, row_of) or await self._all("past_leaves", asked, past_row_of)
        return found[0] if found else None

    async def rows_in(self, correlation_id: str, size: int) -> Sequence[Row]:
        """The rows with this id, each in the version that a tree of ``size`` leaves has; none that is younger."""
        newest = (await self.entries(RowFilter(correlation_id=correlation_id), limit=MOST_PER_PAGE)).rows
        found = [
            row
            for one in newest
            for row in (
                [one] if one.sequence <= size else await self._all("version_in", (one.sequence, size), past_row_of)
            )
        ]
        return sorted((row for row in found if row is not None), key=sequence_of)

    async def export(self, wanted: RowFilter) -> AsyncGenerator[Sequence[Row]]:
        """Everything that was asked for, in chunks, from one consistent view, with bounded memory."""
        async with aclosing(self._chunks(*self._filtered("exported", wanted, None), EXPORT_ROWS)) as chunks:
            async for rows in chunks:
                yield [row_of(row) for row in rows]

    async def sla(self, since: Instant, until: Instant) -> Sequence[Sla]:
        """The report, by day and endpoint."""
        return await self._all("sla", (within(since), within(until)), shape(Sla), is_survey=True)

    async def activity(self, since: Instant, until: Instant, step_ms: int) -> Sequence[Activity]:
        """All endpoints together in steps that begin at multiples of ``step_ms``; steps without a call are left out."""
        return await self._all("activity", (within(since), within(until), step_ms), shape(Activity), is_survey=True)

    # Services, tokens, logs. ------------------------------------------------------------------------------------------

    async def register(
        self, name: str, claimed_id: str | None, token_id: str, at: Instant, *, pull_url: str | None = None
    ) -> Service:
        """Idempotent per credential (A-59). A claimed GUID is confirmed unless a writer of another name has it.

        So a service whose token is replaced goes on under its GUID: names are the credentials', and not claimed.
        ``token_id`` names the credential; where it is a token of ours, the token knows its service from now on. An
        identity provider's subject is no token, and is kept all the same. A ``pull_url`` that is given replaces the
        one that was; None leaves it.
        """
        refuse_unfit(name, claimed_id, pull_url)

        def steps() -> Steps[Service]:
            yield "lock_services", ()
            known = yield "its_service", (token_id, claimed_id, name)
            if known:
                id_ = known[0][0]
                yield "update_service", (name, pull_url, id_)
            else:
                is_free = claimed_id is not None and not (yield "service", (claimed_id,))
                id_ = claimed_id if is_free else self._mint()
                yield "add_service", (id_, name, at, pull_url)
            yield "add_credential", (token_id, id_)
            found = yield "service", (id_,)
            service: Service = service_of(found[0])
            return service

        return await self._write(steps)

    async def services(self) -> Sequence[Service]:
        """Every writer, by name."""
        return await self._all("services", (), service_of)

    async def add_token(self, token: Token, secret_hash: bytes) -> None:
        """Keep a new token."""

        def steps() -> Steps[None]:
            yield "add_token", token_values(token, secret_hash)
            if token.service_ledger_id is not None:
                yield "add_credential", (token.token_id, token.service_ledger_id)

        await self._write(steps)

    async def token(self, secret_hash: bytes) -> Token | None:
        """The token with this secret, in any state; the caller judges expiry and revocation."""
        found = await self._all("token_by_hash", (secret_hash,), token_of)
        return found[0] if found else None

    async def tokens(self) -> Sequence[Token]:
        """All of them, newest first."""
        return await self._all("tokens", (), token_of)

    async def token_used(self, token_id: str, at: Instant) -> None:
        """Note when a token was last used."""
        await self._write_each("token_used", [(at, token_id)])

    async def revoke_token(self, token_id: str, at: Instant) -> bool:
        """False if there is none."""
        return bool(await self._write_each("revoke_token", [(at, token_id)]))

    async def log_access(self, lines: Sequence[Access]) -> None:
        """Append to the access log."""
        rows = [(line.at, cleaned(line.who), line.role, line.method, cleaned(line.path), line.status) for line in lines]
        await self._write_each("log_access", rows)

    async def accesses(self, *, limit: int = 100) -> Sequence[Access]:
        """The newest lines of the access log."""
        return await self._all("accesses", (limit,), shape(Access))

    async def alarms(self, *, limit: int = 100) -> Sequence[Alarm]:
        """The newest alarms."""
        return await self._all("alarms", (limit,), shape(Alarm))

    # The Merkle tree. -------------------------------------------------------------------------------------------------

    async def head(self) -> TreeHead:
        """The tree head now."""
        size, at, _ranges, tiles = await self._tiles(lambda there: [(0, there)])
        return TreeHead(size=size, root=merkle.root_of(size, tiles), at=at)

    async def sign_head(self, at: Instant, signer: Signer) -> SignedHead:
        """The head now, signed and kept; the latest that was, if nothing has arrived since.

        Raises Refused if the tree does not continue that one: a history that was rewritten is not signed.
        """
        latest = await self.latest_head()
        size, _at, ranges, tiles = await self._tiles(
            lambda there: [(0, there), (0, min(there, latest.size if latest else 0))]
        )
        roots = [merkle.root_if_whole(end, tiles) for _start, end in ranges]
        if latest is not None and (size < latest.size or roots[1] != latest.root):
            message = f"the tree of {size} leaves does not continue head {latest.number}, of {latest.size}"
            raise Refused(message, code="other_tree")
        if latest is not None and size == latest.size:
            return latest
        number, when = (1, at) if latest is None else (latest.number + 1, max(at, latest.at))
        head = Head(origin=signer.public.name, size=size, root=roots[0], number=number, at=when)
        await self._write_each("keep_head", [(number, size, roots[0], when, signer.sign(head.text()))])
        kept = await self.latest_head()  # Another process may have been quicker.
        assert kept is not None, "one was kept just now"
        return kept

    async def latest_head(self) -> SignedHead | None:
        """The head that was signed last."""
        found = await self._all("latest_head", (), shape(SignedHead))
        return found[0] if found else None

    async def head_at(self, at: Instant) -> SignedHead | None:
        """The last head that was signed at this time or before."""
        found = await self._all("head_at", (within(at),), shape(SignedHead))
        return found[0] if found else None

    async def heads(self, *, before: int | None = None, limit: int = 100) -> Sequence[SignedHead]:
        """Those that were signed, newest first."""
        place = MOST_INTEGER if before is None else within(before)
        return await self._all("heads_before", (place, min(limit, MOST_PER_PAGE)), shape(SignedHead))

    async def leaves(self, first: int, count: int) -> Leaves:
        """``count`` leaves from number ``first``, one more than a multiple of 256, and the rows that stand for them.

        The first page has what is numbered below 1 as well, the last what is numbered beyond the tree.
        """
        assert first % merkle.TILE_WIDTH == 1, "a page begins with a tile"

        def steps() -> Steps[Leaves]:
            ((size, at),) = yield "read_head", ()
            ((kept_from,),) = yield "read_kept_from", ()
            until = first + count
            low = -MOST_INTEGER if first == 1 else first
            high = MOST_INTEGER if until > size else until
            newest = yield "newest_leaves", (low, high, 2 * count)
            past = yield "past_leaves", (low, high, 2 * count)
            keys = {
                (0, number)
                for number in range(first // merkle.TILE_WIDTH, -(-min(until - 1, size) // merkle.TILE_WIDTH))
            }
            found = yield "tiles", self._columns(sorted(keys | merkle.tiles_of([(0, size)])))
            tiles = {(level, number): hashes for level, number, hashes in found}
            return Leaves(
                first=first,
                until=until,
                size=size,
                root=merkle.root_if_whole(size, tiles),
                at=at,
                kept_from=kept_from,
                hashes=merkle.leaf_hashes(sorted(keys), tiles),
                newest=[(row[0], merkle.row_bytes(row[1:COLUMNS])) for row in newest],
                past=[tuple(row) for row in past],
            )

        return await self._read(steps)

    async def leaf(self, sequence: int) -> bytes | None:
        """The leaf hash under this number."""
        hashes = await self._hashes(lambda there: [(sequence - 1, sequence)] if 0 < sequence <= there else [])
        return hashes[0] if hashes else None

    async def inclusion(self, sequence: int, size: int) -> Sequence[bytes]:
        """The audit path of a leaf in the tree of ``size`` leaves (RFC 9162 §2.1.3)."""
        return await self._hashes(lambda there: merkle.checked_inclusion(sequence, size, there))

    async def consistency(self, old_size: int, new_size: int) -> Sequence[bytes]:
        """The proof that one tree extends the other (RFC 9162 §2.1.4)."""
        return await self._hashes(lambda there: merkle.checked_consistency(old_size, new_size, there))

    async def ready(self) -> None:
        """Return if the database answers, else raise StoreUnavailable."""
        await self._all("ready", (), tuple)

    @abstractmethod
    async def close(self) -> None:
        """Close every connection."""

    # What a database brings. ------------------------------------------------------------------------------------------

    @abstractmethod
    async def _fetch(
        self, statement: str, values: Values, shaped: Callable[[Any], Any], *, is_survey: bool = False
    ) -> list[Any]:
        """The rows of a statement, each as ``shaped`` makes it. ``is_survey``: it may read many rows."""

    @abstractmethod
    def _chunks(self, statement: str, values: Values, size: int) -> AsyncGenerator[Sequence[Values]]:
        """The rows of a statement as of one moment, ``size`` at a time."""

    @abstractmethod
    async def _write(self, steps: Callable[[], Steps[T]]) -> T:
        """Run all steps in one transaction; what they return is durable. They may be run again from the beginning."""

    @abstractmethod
    async def _read(self, steps: Callable[[], Steps[T]]) -> T:
        """Run all steps in one transaction that sees one moment and changes nothing."""

    @abstractmethod
    def _array(self, texts: Sequence[str]) -> Any:
        """Several texts as one value."""

    @abstractmethod
    def _columns(self, pairs: Sequence[tuple[Any, Any]]) -> Values:
        """Several pairs as the values of a statement."""

    async def _all(
        self, name: str, values: Values, shaped: Callable[[Any], Any], *, is_survey: bool = False
    ) -> list[Any]:
        return await self._fetch(self._sql[name], values, shaped, is_survey=is_survey)

    async def _write_each(self, name: str, rows: Sequence[Values]) -> Sequence[Values]:
        """The rows that the last of these statements returns."""

        def steps() -> Steps[Sequence[Values]]:
            found: Sequence[Values] = ()
            for row in rows:
                found = yield name, row
            return found

        return await self._write(steps)

    def _filtered(self, name: str, wanted: RowFilter, place: int | None) -> tuple[str, Values]:
        """A statement about the rows of a filter, below a place if there is one, and its values."""
        where, values = list[str](), list[Any]()
        for condition, value in conditions(wanted, place, self._array):
            where.append(self._sql[condition])
            values += [value] * where[-1].count("?")
        return self._sql[name].format(conditions=" AND ".join(where)), values

    async def _tiles(
        self, ranges_in: Callable[[int], list[merkle.Range]]
    ) -> tuple[int, Instant, list[merkle.Range], merkle.Tiles]:
        """The size of the tree and its time, the ranges that are asked of one of that size, and their tiles."""

        def steps() -> Steps[tuple[int, Instant, list[merkle.Range], merkle.Tiles]]:
            ((size, at),) = yield "read_head", ()
            ranges = ranges_in(size)
            found = yield "tiles", self._columns(list(merkle.tiles_of(ranges)))
            return size, at, ranges, {(level, number): hashes for level, number, hashes in found}

        return await self._read(steps)

    async def _hashes(self, ranges_in: Callable[[int], list[merkle.Range]]) -> list[bytes]:
        _size, _at, ranges, tiles = await self._tiles(ranges_in)
        return merkle.hashes_of(ranges, tiles)


def _other_source(row: LedgerEntry) -> Ack:
    return Ack(
        client_correlation_id=row.client_correlation_id,
        server_correlation_id=row.server_correlation_id,
        actor=row.actor,
        version=row.version,
        outcome="refused",
        code="other_source",
        detail="the row was written in another service's name",
    )
