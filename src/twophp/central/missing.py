"""Why one side of a call is not here, as far as the central ledger can tell (A-48).

The pair's own reason (``core.pairing``) says what the row that is there lets one conclude. What central knows beside it
is who registered, and who has sent everything: a shipper that has nothing left says so (``Heard``). So

    plain_caller       the client speaks plain HTTP and keeps no ledger: by design, never an alarm (A-46)
    expired            never confirmed in time; its client may never have had the ids
    never_registered   the other side's ledger is not known here, or has kept silent far too long
    not_synced_yet     the other side has not sent everything yet: look again, or pull
    lost               the other side has sent everything since, and the row is not among it: an alarm

A callee that speaks plain HTTP leaves no row on either side (A-06), so no tree can show that it was called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from twophp.central.ports import Service
from twophp.core.entry import LedgerEntry
from twophp.core.pairing import Pair, Reason, Verdict
from twophp.core.records import Instant

PATIENCE_MS: Final = 15 * 60_000
"""How long a client that cannot be named may take to send its row before it is taken for one that never will."""

UNDER_WAY_MS: Final = 15_000
"""How long ago a service may have found nothing left when its word arrives: an exchange takes ten seconds at most. A
row that was written during the exchange is late, and not lost."""


class Missing(StrEnum):
    """Why a side is not here."""

    PLAIN_CALLER = "plain_caller"
    EXPIRED = "expired"
    NEVER_REGISTERED = "never_registered"
    NOT_SYNCED_YET = "not_synced_yet"
    LOST = "lost"

    __hash__ = str.__hash__


WORDS: Final[Mapping[Missing, str]] = {
    Missing.PLAIN_CALLER: "the caller speaks plain HTTP and keeps no ledger",
    Missing.EXPIRED: "it was never confirmed: its client may not have had the answer to Phase 1",
    Missing.NEVER_REGISTERED: "the ledger of the other side is not registered here",
    Missing.NOT_SYNCED_YET: "the other side has not sent its row yet",
    Missing.LOST: "the other side has sent everything since, and the row is not there",
}


class Heard:
    """Which services have sent everything, and when. Kept in memory: after a restart each must say so again."""

    def __init__(self) -> None:
        self._drained_at: dict[str, Instant] = {}

    def drained(self, service_ledger_id: str, at: Instant) -> None:
        """Note that this writer had nothing left to send."""
        self._drained_at[service_ledger_id] = at

    def drained_at(self, service_ledger_id: str) -> Instant:
        """When this writer last had nothing left to send; 0 for never."""
        return self._drained_at.get(service_ledger_id, 0)


class KnownServices:
    """The services at one moment, and whose ledgers count as read."""

    def __init__(self, services: Sequence[Service], heard: Heard, now: Instant) -> None:
        self.services = services
        self.now = now
        self._drained_at: dict[str, Instant] = {}
        for service in services:  # A service may have several ledgers: it has sent everything when all of them have.
            at = heard.drained_at(service.service_ledger_id)
            self._drained_at[service.name] = min(at, self._drained_at.get(service.name, at))

    def is_registered(self, name: str) -> bool:
        """Whether a service of this name ever registered."""
        return name in self._drained_at

    def read(self, entries: Iterable[LedgerEntry]) -> frozenset[str]:
        """The services that have sent everything since the newest of these rows that say they were called."""
        called_at: dict[str, Instant] = {}
        for entry in entries:
            if entry.target is not None:
                called_at[entry.target] = max(entry.sync_timestamp or self.now, called_at.get(entry.target, 0))
        return frozenset(name for name, at in called_at.items() if self._drained_at.get(name, 0) > at + UNDER_WAY_MS)

    def why_missing(self, pair: Pair) -> Missing | None:
        """Why a side of this call is not here; None where nothing is missing."""
        match pair.verdict:
            case Verdict.SERVER_ONLY_BY_DESIGN:
                return Missing.PLAIN_CALLER
            case Verdict.SERVER_ONLY:
                return self._without_client(pair)
            case Verdict.CLIENT_ONLY:
                return self._without_server(pair)
        return None

    def _without_client(self, pair: Pair) -> Missing:
        """The server's row does not name its caller."""
        if pair.reason is Reason.ANSWER_LOST:
            return Missing.EXPIRED
        assert pair.server is not None
        waited_ms = self.now - (pair.server.sync_timestamp or self.now)
        return Missing.NOT_SYNCED_YET if waited_ms < PATIENCE_MS else Missing.NEVER_REGISTERED

    def _without_server(self, pair: Pair) -> Missing:
        assert pair.client is not None
        if not self.is_registered(pair.client.target or ""):
            return Missing.NEVER_REGISTERED
        return Missing.LOST if pair.reason is Reason.SERVER_ROW_MISSING else Missing.NOT_SYNCED_YET
