"""The ledger row: sixteen fields that say who registered what, on which side, and how it ended (draft §9.8).

A row is a *projection*: it is computed from the record it mirrors and never edited, so the ledger cannot disagree with
the machine. Two rows describe one call, one per actor (draft §10.2), joined by the pair of correlation ids.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from twophp.core.call import Call, request_digest
from twophp.core.intent import Intent, Mode, Phase
from twophp.core.records import Instant, JournalEvent

Actor: TypeAlias = Literal["client", "server"]

# FAILED is an outcome too; the draft's list forgot it, and an audit must not.
OUTCOMES: Final = frozenset({Phase.COMMITTED, Phase.FAILED, Phase.TTL_EXPIRED, Phase.ABANDONED})
# a client never learns that the server cleaned up.
CLIENT_PHASES: Final = frozenset(Phase) - {Phase.ABSENT, Phase.ABANDONED}


class LedgerEntry(msgspec.Struct, frozen=True, gc=False):
    """The draft's sixteen fields in its order, then six of ours. Times are epoch milliseconds until they leave."""

    client_correlation_id: str
    server_correlation_id: str
    service_ledger_id: str  # The GUID of the ledger that wrote the row (draft §12.4).
    service_endpoint: str  # "<service><path>", the same on both rows of a pair.
    actor: Actor
    source: str
    target: str | None
    parent_reference_id: str
    phase: Phase
    phase_1_timestamp: Instant
    phase_2_timestamp: Instant | None
    ttl_ms: int
    outcome: Phase | None
    payload_ref: str | None  # A pointer, never the payload.
    sync_timestamp: Instant | None  # Assigned by the central ledger; any newer version clears it.
    transaction_reference: str | None
    version: int
    mode: Mode
    client_id_is_proxy: bool
    settled_at: Instant | None = None  # When the outcome was reached, as the writer saw it.
    # ``payload_digest`` of the sent content on the client's row, of the received content on the server's; None if it
    # was not noted. Each side binds itself to the content of the request, so neither can claim another content later.
    request_digest: str | None = None
    # FAILED, and it is unknown whether the effects happened: a new call may repeat them.
    indeterminate: bool = False


FIELDS: Final = LedgerEntry.__struct_fields__[:16]
"""The names of the draft's sixteen fields, in its order."""


class Writer(msgspec.Struct, frozen=True, kw_only=True):
    """The writer of rows: the service's name and the GUID its ledger was registered under."""

    source: str
    service_ledger_id: str


def outcome_of(phase: Phase) -> Phase | None:
    """None while the intent is open (A-45)."""
    return phase if phase in OUTCOMES else None


def server_entry(intent: Intent, writer: Writer) -> LedgerEntry:
    """The server's row: its parent is the id its caller supplied, and it has no target (draft §10.2)."""
    return LedgerEntry(
        intent.client_correlation_id,
        intent.server_correlation_id,
        writer.service_ledger_id,
        intent.service_endpoint,
        "server",
        writer.source,
        None,
        intent.client_correlation_id,
        intent.phase,
        intent.received_at,
        intent.confirmed_at,
        intent.ttl_ms,
        outcome_of(intent.phase),
        payload_ref(intent.server_correlation_id) if intent.has_payload else None,
        None,
        intent.transaction_reference,
        intent.version,
        intent.mode,
        intent.client_id_is_proxy,
        intent.settled_at,
        intent.request_digest,
        intent.indeterminate,
    )


def client_entry(call: Call, writer: Writer) -> LedgerEntry:
    """The client's row: its target, its parent, and the server's answers (draft §10.2, A-49)."""
    phase = call.phase
    assert phase is not None, "what is only noted has no row"
    assert call.registered_at is not None, "a call is in the ledger from the moment both ids are known"
    return LedgerEntry(
        call.client_correlation_id,
        call.server_correlation_id,
        writer.service_ledger_id,
        call.service_endpoint,
        "client",
        writer.source,
        call.target,
        call.parent_reference_id,
        phase,
        call.registered_at,
        call.confirmed_at,
        call.ttl_ms,
        outcome_of(phase),
        None,  # The client keeps no payload once its call is in the ledger.
        None,
        None,
        call.row_version,
        call.mode,
        client_id_is_proxy=False,
        settled_at=call.settled_at,
        request_digest=request_digest(call),
        indeterminate=call.indeterminate,
    )


def purged_line(entry: LedgerEntry, now: Instant) -> JournalEvent:
    """The line that a row leaves when it is forgotten: a row that is missing without one was taken away (A-59)."""
    return JournalEvent(
        kind="entry",
        subject=entry.server_correlation_id if entry.actor == "server" else entry.client_correlation_id,
        event="purged",
        before=entry.phase,
        after=Phase.ABSENT,
        at=now,
        observed_at=now,
        detail=f"{entry.actor} row, version {entry.version}, synced {entry.sync_timestamp}",
    )


LEDGER_ID: Final = "service_ledger_id"
"""The setting under which a store keeps the GUID of its rows."""


def restamped_line(before: str, issued: str, now: Instant) -> JournalEvent:
    """The line that records a change of the ledger's GUID (A-59)."""
    event = "restamped"
    return JournalEvent(
        kind="ledger", subject=issued, event=event, before=before, after=issued, at=now, observed_at=now
    )


def payload_ref(server_correlation_id: str) -> str:
    """The place of the payload: in the writer's own vault, under the intent's id."""
    return f"vault:{server_correlation_id}/payload"


def broken_rules(entry: LedgerEntry) -> list[str]:
    """The rules of §9.8 and §10.2 that a foreign row breaks; empty if it keeps all of them."""
    is_client = entry.actor == "client"
    rules = [
        (entry.actor in ("client", "server"), "actor is 'client' or 'server' (draft §9.8)"),
        (is_client == (entry.target is not None), "target is set on client rows and only there (draft §10.2)"),
        (
            is_client or entry.parent_reference_id == entry.client_correlation_id,
            "a server row has the inbound id as parent",
        ),
        (entry.phase is not Phase.ABSENT, "a row has one of the six phases"),
        (not is_client or entry.phase in CLIENT_PHASES, "a client row is never ABANDONED (A-49)"),
        (entry.outcome == outcome_of(entry.phase), "outcome is the final phase, and null before it (A-45)"),
        (not entry.indeterminate or entry.phase is Phase.FAILED, "only what is FAILED is indeterminate (A-34)"),
        (entry.ttl_ms > 0, "ttl_ms is positive"),
        (entry.version > 0, "version is positive"),
        (all((entry.client_correlation_id, entry.server_correlation_id)), "both correlation ids are present"),
        (all((entry.service_ledger_id, entry.service_endpoint, entry.source)), "the writer and the endpoint are named"),
    ]
    return [rule for holds, rule in rules if not holds]
