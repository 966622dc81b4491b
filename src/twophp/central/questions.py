"""The draft's questions (§10.4), asked of the central ledger: the API and the pages ask them here.

The rules are the local command line's own: ``core.pairing`` and ``core.calltree``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from twophp.central.missing import Heard, KnownServices, Missing
from twophp.central.ports import MOST_IN_A_TREE, Page, Row, RowFilter
from twophp.central.stores.store import CentralStore
from twophp.core.calltree import CallTree, call_tree
from twophp.core.entry import LedgerEntry
from twophp.core.intent import Phase
from twophp.core.pairing import Pair, PairKey, Verdict, pair_up
from twophp.core.records import Instant
from twophp.ports import Clock

T = TypeVar("T")

AT_ONCE: Final = 500
"""Up to this many rows are processed on the event loop: a thread would cost more than it spares."""
STALLED: Final = frozenset({Phase.WAITING_CONFIRM, Phase.TTL_EXPIRED})  # draft §10.4
SILENT_MS: Final = 60_000
"""How long a call may be PROCESSING before it is listed, unless the operator says otherwise: twice the lease that a
policy has by default."""
MOST_PAGES: Final = 20
"""How many pages of rows one page of calls may be gathered from."""


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """A call tree, and why what is missing in it is missing."""

    tree: CallTree
    missing: Mapping[PairKey, Missing]
    rows: int
    cut: bool  # Whether there were more rows than one answer holds.


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """Some calls, newest first, and where to go on."""

    pairs: Sequence[Pair]
    missing: Mapping[PairKey, Missing]
    cursor: str | None = None


class Questions:
    """Asks the store, and judges what it says."""

    def __init__(self, store: CentralStore, clock: Clock, heard: Heard, silent_ms: int = SILENT_MS) -> None:
        self.silent_ms = silent_ms
        self.store = store
        self.clock = clock
        self.heard = heard

    async def known(self) -> KnownServices:
        """The services as they are now."""
        return KnownServices(await self.store.services(), self.heard, self.clock())

    async def tree(self, correlation_id: str) -> Tree:
        """The whole tree that this id is in. Without a row of it, the tree has no roots (P-10.4-a)."""
        rows = await self.store.tree(correlation_id)
        known = await self.known()
        return await aside(len(rows), lambda: _tree(rows, correlation_id, known))

    async def call(self, correlation_id: str) -> Pairs:
        """Every call with this id, whichever of the two it is; two callers may have drawn the same (A-32)."""
        page = await self.store.entries(RowFilter(correlation_id=correlation_id))
        known = await self.known()
        pairs = await self._judged(_keys(page.rows), known)
        return Pairs(pairs=pairs, missing=_missing(pairs, known))

    async def pair(self, key: PairKey) -> Pairs:
        """The one call with both these ids, if a row of it is here."""
        known = await self.known()
        pairs = await self._judged([key], known)
        return Pairs(pairs=pairs, missing=_missing(pairs, known))

    async def pairs(
        self, wanted: RowFilter, *, verdicts: Collection[Verdict] = (), cursor: str | None = None, limit: int = 100
    ) -> Pairs:
        """Calls of which a row was asked for, the one that changed last first, whose verdict is among these.

        A page may hold fewer than ``limit`` though there are more: what counts is the cursor (P-10.4-c).
        """
        known = await self.known()
        found: list[Pair] = []
        for _ in range(MOST_PAGES):
            page = await self.store.entries(wanted, cursor=cursor, limit=limit - len(found))
            found += await self._calls_of(page, wanted, known, verdicts)
            cursor = page.cursor
            if cursor is None or len(found) >= limit:
                break
        return Pairs(pairs=found, missing=_missing(found, known), cursor=cursor)

    async def stalled(self, wanted: RowFilter, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Rows in WAITING_CONFIRM or TTL_EXPIRED, of any writer: the draft's own words (P-10.4-d)."""
        asked = msgspec.structs.replace(wanted, phases=STALLED)
        return await self.store.entries(asked, cursor=cursor, limit=limit)

    async def silent(
        self, *, source: str | None = None, limit: int = 100, older_than_ms: int | None = None
    ) -> Sequence[Row]:
        """Server rows that have been PROCESSING for long, ``silent_ms`` unless said otherwise (A-54).

        A row does not show its lease, which is renewed while its process lives (ADR 20); central sees only that nothing
        came. The service says whether the lease has ended (``told.leases_of``).
        """
        until = self.clock() - (self.silent_ms if older_than_ms is None else older_than_ms)
        asked = RowFilter(phases=frozenset({Phase.PROCESSING}), actor="server", source=source, until=until)
        page = await self.store.entries(asked, limit=limit)
        return [row for row in page.rows if _began(row.entry) <= until]

    async def initiated(self, source: str, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Every call that a service made (P-10.4-b)."""
        return await self.store.entries(RowFilter(source=source, actor="client"), cursor=cursor, limit=limit)

    async def _calls_of(
        self, page: Page, wanted: RowFilter, known: KnownServices, verdicts: Collection[Verdict]
    ) -> Iterable[Pair]:
        """A call is listed where its newest row that was asked for is, and so on one page only."""
        keys = _keys(page.rows)
        rows = await self.store.of_pairs(keys) if keys else ()
        listed_at: dict[PairKey, int] = {}
        for row in rows:
            if _fits(row.entry, wanted):
                key = row.entry.client_correlation_id, row.entry.server_correlation_id
                listed_at[key] = max(row.sequence, listed_at.get(key, 0))
        here = {row.sequence for row in page.rows}
        listed = {key for key, sequence in listed_at.items() if sequence in here}
        entries = [row.entry for row in rows]
        judged = {pair.key: pair for pair in pair_up(entries, read=known.read(entries)) if pair.key in listed}
        return [judged[key] for key in keys if key in judged and (not verdicts or judged[key].verdict in verdicts)]

    async def _judged(self, keys: Sequence[PairKey], known: KnownServices) -> list[Pair]:
        entries = [row.entry for row in (await self.store.of_pairs(keys) if keys else ())]
        return pair_up(entries, read=known.read(entries))


def _tree(rows: Sequence[Row], correlation_id: str, known: KnownServices) -> Tree:
    entries = [row.entry for row in rows]
    tree = call_tree(entries, correlation_id, read=known.read(entries))
    missing = _missing((call.pair for call in tree.calls()), known)
    return Tree(tree=tree, missing=missing, rows=len(rows), cut=len(rows) >= MOST_IN_A_TREE)


def _missing(pairs: Iterable[Pair], known: KnownServices) -> dict[PairKey, Missing]:
    found = ((pair.key, known.why_missing(pair)) for pair in pairs)
    return {key: why for key, why in found if why is not None}


def _keys(rows: Iterable[Row]) -> list[PairKey]:
    return list(dict.fromkeys((row.entry.client_correlation_id, row.entry.server_correlation_id) for row in rows))


def _began(entry: LedgerEntry) -> Instant:
    return entry.phase_2_timestamp or entry.phase_1_timestamp


def _fits(entry: LedgerEntry, wanted: RowFilter) -> bool:
    """Whether a row fits the filter, by the same rules as the store's query."""
    since, until, at = wanted.since, wanted.until, entry.phase_1_timestamp
    ids = (entry.client_correlation_id, entry.server_correlation_id)
    return all(
        (
            wanted.correlation_id is None or wanted.correlation_id in ids,
            wanted.service_ledger_id in (None, entry.service_ledger_id),
            wanted.source in (None, entry.source),
            wanted.target in (None, entry.target),
            wanted.service_endpoint in (None, entry.service_endpoint),
            wanted.actor in (None, entry.actor),
            not wanted.phases or entry.phase in wanted.phases,
            wanted.indeterminate in (None, entry.indeterminate),
            since is None or at >= since,
            until is None or at < until,
        )
    )


async def aside(rows: int, make: Callable[[], T]) -> T:
    """What ``make`` makes of so many rows."""
    return await asyncio.to_thread(make) if rows > AT_ONCE else make()
