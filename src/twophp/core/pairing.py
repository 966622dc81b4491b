"""Pair verdicts: whether both sides registered a call, and whether their rows agree (draft §10.4).

Theory. A call has two rows, one per actor, joined by the pair of correlation ids (draft §10.2). The server writes
first, when Phase 1 arrives; the client writes second, when it has the answer, and sends Phase 2 only once its row is
durable. Four things follow.

* A server's row without the client's is legal: the answer was lost (the intent will expire), or is under way (A-48). If
  the intent was confirmed all the same, the client's row is in a ledger that was not read, or the client keeps none,
  such as a script with the two header fields. Transparent calls never have a client's row, by design (A-46).
* A client's row without the server's is never legal. Unless the ledger of the service it called was not read, a row
  that was durable is gone, and that is an alarm.
* Whether a call is indeterminate (A-34) is no verdict: both sides may have registered it properly although it is
  unknown whether its effects happened. The server's row says so, and the client's if the client has received it. A
  client's row that does not say it, because no answer has come yet or because it is older than the field, contradicts
  nothing.
* A client knows only the server's answers (A-49), so its row may lag behind the server's, and never runs ahead of it:
  ``KNOWN_TO_SERVER`` lists for each phase of the client's row the phases that the server's row may have. A reader of
  two ledgers must read the server's row last, or a call that moves on between the two reads looks like a conflict.

The rules, the first that fits:

    two_writers           CONFLICT   two ledgers claim the same side of one pair
    altered_copy          CONFLICT   one ledger's row in one version with two contents (A-57)
    endpoint_differs      CONFLICT   the rows name different endpoints (A-55)
    callee_differs        CONFLICT   the client called another service than the one that answered
    request_differs       CONFLICT   what the client sent is not what the server received
    phase_contradicts     CONFLICT   the client's row has a phase that the server's row excludes (A-49)
    (none)                PAIRED
    transparent           SERVER_ONLY_BY_DESIGN
    answer_lost           SERVER_ONLY   never confirmed: the client may never have had the ids (A-48)
    answer_under_way      SERVER_ONLY   not confirmed yet
    callback_lost         SERVER_ONLY   auto-confirm: neither callback nor answer has arrived (P-5.5.5-c)
    client_unread         SERVER_ONLY   confirmed: the client's row is in a ledger that was not read, or it keeps none
    server_unread         CLIENT_ONLY   the ledger of the service it called was not read
    server_row_missing    CLIENT_ONLY   that ledger was read, and the row is missing
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from twophp.core.entry import LedgerEntry
from twophp.core.intent import CONFIRMED_BY_SERVER, UNCONFIRMED, Mode, Phase
from twophp.core.records import Instant


class Verdict(StrEnum):
    """The verdict about one call."""

    PAIRED = "PAIRED"
    CLIENT_ONLY = "CLIENT_ONLY"
    SERVER_ONLY = "SERVER_ONLY"
    SERVER_ONLY_BY_DESIGN = "SERVER_ONLY_BY_DESIGN"
    CONFLICT = "CONFLICT"

    __hash__ = str.__hash__


class Reason(StrEnum):
    """The rule that gave the verdict."""

    NONE = ""
    TWO_WRITERS = "two_writers"
    ALTERED_COPY = "altered_copy"
    ENDPOINT_DIFFERS = "endpoint_differs"
    CALLEE_DIFFERS = "callee_differs"
    REQUEST_DIFFERS = "request_differs"
    PHASE_CONTRADICTS = "phase_contradicts"
    TRANSPARENT = "transparent"
    ANSWER_LOST = "answer_lost"
    ANSWER_UNDER_WAY = "answer_under_way"
    CALLBACK_LOST = "callback_lost"
    CLIENT_UNREAD = "client_unread"
    SERVER_UNREAD = "server_unread"
    SERVER_ROW_MISSING = "server_row_missing"

    __hash__ = str.__hash__


WORDS: Final[Mapping[Reason, str]] = {
    Reason.NONE: "both sides registered it",
    Reason.TWO_WRITERS: "two ledgers claim the same side of it",
    Reason.ALTERED_COPY: "its row has two contents in one version: a copy was changed",
    Reason.ENDPOINT_DIFFERS: "the two rows name different endpoints; tell the client its services' names (targets=)",
    Reason.CALLEE_DIFFERS: "the client called another service than the one that answered (targets=)",
    Reason.REQUEST_DIFFERS: "what the client sent is not what the server received",
    Reason.PHASE_CONTRADICTS: "the client was told what the server's row does not know of",
    Reason.TRANSPARENT: "a transparent call: its client keeps no ledger",
    Reason.ANSWER_LOST: "never confirmed: its client may not have had the answer to Phase 1",
    Reason.ANSWER_UNDER_WAY: "not confirmed yet: its client may not have the answer to Phase 1",
    Reason.CALLBACK_LOST: "neither callback nor answer has reached a client whose ledger was read",
    Reason.CLIENT_UNREAD: "confirmed: its client's row is in a ledger that was not read, or its client keeps none",
    Reason.SERVER_UNREAD: "the ledger of the service it called was not read",
    Reason.SERVER_ROW_MISSING: "the service it called has no row of it, though it must have written first",
}

_OUTRUN: Final = frozenset({Phase.PROCESSING, Phase.COMMITTED, Phase.FAILED})

KNOWN_TO_SERVER: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.WAITING_CONFIRM: frozenset(Phase),  # The client has received no answer since.
    Phase.PROCESSING: _OUTRUN,
    Phase.COMMITTED: frozenset({Phase.COMMITTED}),
    Phase.FAILED: frozenset({Phase.FAILED}),
    # The client decided by its own clock not to confirm: the server may still wait, but can never have run the call.
    Phase.TTL_EXPIRED: frozenset({Phase.WAITING_CONFIRM, Phase.TTL_EXPIRED, Phase.ABANDONED}),
}

_ALARMS: Final = frozenset({Reason.SERVER_ROW_MISSING})

PairKey: TypeAlias = tuple[str, str]


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One call: its two rows as far as they were found, and the verdict about them."""

    client_correlation_id: str
    server_correlation_id: str
    client: LedgerEntry | None
    server: LedgerEntry | None
    rivals: tuple[LedgerEntry, ...] = ()  # Further rows for a side that has one already.
    verdict: Verdict
    reason: Reason

    @property
    def key(self) -> PairKey:
        """The two ids."""
        return self.client_correlation_id, self.server_correlation_id

    @property
    def is_alarm(self) -> bool:
        """Whether an operator should look into it: every other call is legal, or has a ledger that was not read."""
        return self.verdict is Verdict.CONFLICT or self.reason in _ALARMS

    @property
    def indeterminate(self) -> bool:
        """Whether it ended and its effects are unknown: a new call may repeat them."""
        known = self.server or self.client
        return known is not None and known.phase is Phase.FAILED and any(row.indeterminate for row in self.rows)

    @property
    def words(self) -> str:
        """The reason, for people."""
        return WORDS[self.reason]

    @property
    def rows(self) -> tuple[LedgerEntry, ...]:
        """Every row of the call, the client's before the server's as in the draft's table (§10.3)."""
        return tuple(row for row in (self.client, self.server) if row is not None) + self.rivals

    @property
    def started_at(self) -> Instant:
        """By the client's clock where its row is known: the calls that one service made then stand in their order."""
        return self.rows[0].phase_1_timestamp


def pair_up(entries: Iterable[LedgerEntry], *, read: Container[str] = frozenset()) -> list[Pair]:
    """Every call of which there is a row, in the order they began. ``read`` names the services whose ledgers were read.

    Nothing depends on the order of the rows. One ledger's row may come several times: its newest version counts.
    """
    sides: defaultdict[PairKey, list[LedgerEntry]] = defaultdict(list)
    for entry in entries:
        sides[entry.client_correlation_id, entry.server_correlation_id].append(entry)
    return sorted((_pair(key, rows, read) for key, rows in sides.items()), key=_in_time)


def _in_time(pair: Pair) -> tuple[Instant, PairKey]:
    """The order of calls: as they began, then by their ids."""
    return pair.started_at, pair.key


def _pair(key: PairKey, rows: list[LedgerEntry], read: Container[str]) -> Pair:
    clients, servers = (_newest(row for row in rows if row.actor == actor) for actor in ("client", "server"))
    client, server = (side[0] if side else None for side in (clients, servers))
    rivals = (*clients[1:], *servers[1:])
    verdict, reason = _judge(client, server, rivals, read)
    return Pair(
        client_correlation_id=key[0],
        server_correlation_id=key[1],
        client=client,
        server=server,
        rivals=rivals,
        verdict=verdict,
        reason=reason,
    )


def _newest(rows: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """One row of each writer in its newest version, two only where that version has two contents."""
    rows = list(rows)
    if len(rows) <= 1:  # As nearly always.
        return rows
    found: dict[str, dict[tuple[object, ...], LedgerEntry]] = {}
    for row in rows:
        known = found.setdefault(row.service_ledger_id, {})
        version = max((other.version for other in known.values()), default=row.version)
        if row.version > version:
            known.clear()
        if row.version >= version:
            content = _content(row)
            known[content] = row if row.indeterminate else known.get(content, row)
    return [found[writer][content] for writer in sorted(found) for content in sorted(found[writer], key=repr)]


def _content(row: LedgerEntry) -> tuple[object, ...]:
    """All of a row but the two fields in which copies of one version may differ (A-57).

    The central ledger assigns ``sync_timestamp``; a central ledger older than ``indeterminate`` has dropped that field.
    """
    return msgspec.structs.astuple(msgspec.structs.replace(row, sync_timestamp=None, indeterminate=False))


def _judge(
    client: LedgerEntry | None, server: LedgerEntry | None, rivals: tuple[LedgerEntry, ...], read: Container[str]
) -> tuple[Verdict, Reason]:
    if rivals:
        writers = {(row.actor, row.service_ledger_id) for row in (client, server, *rivals) if row is not None}
        sides = {actor for actor, _writer in writers}
        return Verdict.CONFLICT, Reason.ALTERED_COPY if len(writers) == len(sides) else Reason.TWO_WRITERS
    if client is not None and server is not None:
        reason = _disagreement(client, server)
        return (Verdict.CONFLICT if reason else Verdict.PAIRED), reason
    if server is not None:
        return _without_client(server)
    assert client is not None
    return Verdict.CLIENT_ONLY, Reason.SERVER_ROW_MISSING if client.target in read else Reason.SERVER_UNREAD


def _disagreement(client: LedgerEntry, server: LedgerEntry) -> Reason:
    if client.service_endpoint != server.service_endpoint:
        return Reason.ENDPOINT_DIFFERS
    if client.target != server.source:
        return Reason.CALLEE_DIFFERS
    if client.request_digest and server.request_digest and client.request_digest != server.request_digest:
        return Reason.REQUEST_DIFFERS
    if server.phase not in KNOWN_TO_SERVER.get(client.phase, frozenset()):
        return Reason.PHASE_CONTRADICTS
    return Reason.NONE


def _without_client(server: LedgerEntry) -> tuple[Verdict, Reason]:
    if server.mode is Mode.TRANSPARENT or server.client_id_is_proxy:
        return Verdict.SERVER_ONLY_BY_DESIGN, Reason.TRANSPARENT
    if server.mode in CONFIRMED_BY_SERVER:
        return Verdict.SERVER_ONLY, Reason.CALLBACK_LOST
    if server.phase is Phase.WAITING_CONFIRM:
        return Verdict.SERVER_ONLY, Reason.ANSWER_UNDER_WAY
    if server.phase in UNCONFIRMED or server.phase is Phase.ABANDONED:
        return Verdict.SERVER_ONLY, Reason.ANSWER_LOST
    return Verdict.SERVER_ONLY, Reason.CLIENT_UNREAD
