"""What is stuck: registered and never confirmed, expired, or running and silent (draft §10.4, A-54)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec
from starlette.responses import Response

from twophp.central.ingest.told import key_of, leases_of
from twophp.central.pages.frame import Routes, Visit, reading
from twophp.central.ports import Row, RowFilter
from twophp.core.entry import LedgerEntry
from twophp.core.intent import Phase
from twophp.core.pairing import PairKey
from twophp.core.records import Instant

PER_PAGE: Final = 100
MOST_SILENT: Final = 100


class Stuck(StrEnum):
    """How badly a call hangs."""

    IN_TIME = "in_time"  # It may still be confirmed: nothing is wrong yet.
    OVERDUE = "overdue"  # Its time is up, and no row says so yet.
    EXPIRED = "expired"
    CLEANED = "cleaned"  # Only the client's row still says that it expired; clients never learn of the rest.
    UNHEARD = "unheard"  # The server went on; the client's row does not know yet.
    SILENT = "silent"

    __hash__ = str.__hash__


LABELS: Final[Mapping[Stuck, str]] = {
    Stuck.IN_TIME: "may still be confirmed",
    Stuck.OVERDUE: "past its deadline",
    Stuck.EXPIRED: "not confirmed in time",
    Stuck.CLEANED: "expired and cleaned up",
    Stuck.UNHEARD: "its client has not heard",
    Stuck.SILENT: "running, and silent",
}
_WENT_ON: Final = frozenset({Phase.PROCESSING, Phase.COMMITTED, Phase.FAILED})


class Hang(msgspec.Struct, frozen=True, kw_only=True):
    """A call that is stuck: the row that knows best, how badly, and every row that says so."""

    entry: LedgerEntry
    kind: Stuck
    tellers: tuple[LedgerEntry, ...]

    @property
    def words(self) -> str:
        """How it is stuck."""
        return LABELS[self.kind]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that are stuck, and where to go on."""

    calls: Sequence[Hang]
    cursor: str | None


def kind_of(entry: LedgerEntry, now: Instant) -> Stuck:
    """Which way a call is stuck, by the row that knows best."""
    if entry.phase in _WENT_ON:
        return Stuck.UNHEARD
    if entry.phase is Phase.ABANDONED:
        return Stuck.CLEANED
    if entry.phase is Phase.TTL_EXPIRED:
        return Stuck.EXPIRED
    return Stuck.OVERDUE if entry.phase_1_timestamp + entry.ttl_ms <= now else Stuck.IN_TIME


def hanging(rows: Iterable[Row], others: Iterable[Row], now: Instant) -> list[Hang]:
    """The calls of these rows, in their order; ``others`` are all their rows. The server's knows best (A-49)."""
    tellers: dict[PairKey, list[LedgerEntry]] = {}
    for row in rows:
        tellers.setdefault(_key(row), []).append(row.entry)
    servers = {_key(row): row.entry for row in others if row.entry.actor == "server"}
    found = []
    for key, told in tellers.items():
        best = servers.get(key, told[0])
        found.append(Hang(entry=best, kind=kind_of(best, now), tellers=tuple(told)))
    return found


def _key(row: Row) -> PairKey:
    return row.entry.client_correlation_id, row.entry.server_correlation_id


async def stuck(visit: Visit, wanted: RowFilter, cursor: str | None, limit: int) -> Found:
    """The draft's query, newest first."""
    page = await visit.central.questions.stalled(wanted, cursor=cursor, limit=limit)
    others = await visit.central.store.of_pairs(list({_key(row) for row in page.rows})) if page.rows else ()
    return Found(calls=hanging(page.rows, others, visit.now), cursor=page.cursor)


async def stalled(visit: Visit) -> Response:
    """The page."""
    wanted = RowFilter(source=visit.asked("source") or None)
    cursor = visit.asked("cursor") or None
    found = await stuck(visit, wanted, cursor, PER_PAGE)
    services = await visit.central.store.services()
    silent = () if cursor else await visit.central.questions.silent(source=wanted.source, limit=MOST_SILENT)
    asked = bool(visit.asked("ask")) and visit.is_operator
    return visit.page(
        "stalled.html",
        found=found,
        silent=[Hang(entry=row.entry, kind=Stuck.SILENT, tellers=(row.entry,)) for row in silent],
        source=wanted.source or "",
        services=sorted({service.name for service in services}),
        silent_ms=visit.central.questions.silent_ms,
        leases=await leases_of(visit.central.puller, services, silent) if asked else None,
        key_of=key_of,
    )


ROUTES: Final[Routes] = (("/stalled", reading(stalled), ("GET",)),)
