"""What a service sends about one call beside its rows, as JSON: on its way to the central ledger, and out of it.

States, counts, times, codes and hashes. What could quote business data is not sent: payloads and responses, but also a
resource's name, an obligation's key, a trace id. Nothing is trusted: lengths, characters and ranges are checked while
reading.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from twophp.core.call import Stage
from twophp.core.errors import WireError
from twophp.core.intent import Intent, Mode, Phase
from twophp.core.job import State as JobState
from twophp.core.job import Work
from twophp.core.misfits import UNREADABLE, WORDS, misfit
from twophp.core.obligation import State as ObligationState
from twophp.core.records import Instant
from twophp.ports import Evidence, JournalLine
from twophp.wire.instant import format_instant, spelled
from twophp.wire.rows import At, Id, instant_of

MOST_LINES: Final = 500
MOST_RECORDS: Final = 150

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53 - 1)]


def _text(pattern: str, most: int, words: str) -> Meta:
    return Meta(max_length=most, pattern=rf"\A{pattern}*\Z", extra={WORDS: f"a text of at most {most} {words}"})


_PRINTED: Final = r"[^\x00-\x1f\x7f]"
_UNCONTROLLED: Final = "characters, none of them a control character"

Word: TypeAlias = Annotated[str, _text(_PRINTED, 256, _UNCONTROLLED)]
LongWord: TypeAlias = Annotated[str, _text(_PRINTED, 1024, _UNCONTROLLED)]
Hash: TypeAlias = Annotated[str, _text("([0-9a-f]{2})", 128, "hexadecimal digits, in pairs")]


class IntentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The server's record. It is executed while it has an ``owner``; ``fence`` counts its owners so far."""

    phase: Phase
    version: Count
    mode: Mode
    received_at: At
    deadline_at: At
    confirmed_at: At | None
    settled_at: At | None
    status: Count | None
    owner: Word | None
    lease_until: At | None
    fence: Count
    has_payload: bool
    indeterminate: bool = False  # Services that are older than the field do not say it.


class CallFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The client's record. ``attempts``: how often a process that took it over could not find out its outcome."""

    stage: Stage
    version: Count
    mode: Mode
    sent_at: At
    registered_at: At | None
    confirm_by: At | None
    confirmed_at: At | None
    acknowledged_at: At | None
    answered_at: At | None
    settled_at: At | None
    status: Count | None
    attempts: Count
    last_error: Word
    indeterminate: bool = False


class LineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the journal. ``digest`` is its link in the service's hash chain (``twophp ledger verify`` there)."""

    seq: Count
    kind: Word
    subject: LongWord
    event: Word
    before: Word
    after: Word
    at: At
    observed_at: At
    fence: Count
    detail: LongWord
    digest: Hash


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is owed to others. ``due_at``: the next attempt, or when the lease of the running one ends."""

    job_id: LongWord
    work: Work
    name: Word
    state: JobState
    attempts: Count
    created_at: At
    due_at: At | None
    last_error: Word


class ObligationFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An effect that the call's handler reserved, or that the service reserved for it."""

    obligation_id: LongWord
    flow: Word
    state: ObligationState
    resolution: Word
    reserved_at: At
    overdue_at: At
    settled_at: At | None


class EvidenceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All about one call, as of ``at`` by the service's clock."""

    at: At
    intent: IntentFacts | None
    call: CallFacts | None
    journal: Annotated[list[LineFacts], Meta(max_length=MOST_LINES)]
    jobs: Annotated[list[JobFacts], Meta(max_length=MOST_RECORDS)]
    obligations: Annotated[list[ObligationFacts], Meta(max_length=MOST_RECORDS)]


class LeaseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The owner that executes a call, and until when its lease lasts. ``at`` is now, by the service's clock."""

    client_correlation_id: Id
    server_correlation_id: Id
    phase: Phase
    owner: Word | None
    lease_until: At | None
    fence: Count
    at: At

    @property
    def has_ended(self) -> bool:
        """Whether no owner executes it that can still settle it (A-34, A-54)."""
        return self.phase is Phase.PROCESSING and (self.lease_until is None or self.lease_until <= self.at)


_evidence: Final = msgspec.json.Decoder(EvidenceFacts).decode
_leases: Final = msgspec.json.Decoder(list[LeaseFacts]).decode
_UNREADABLE: Final = (*UNREADABLE, ValueError)


def evidence_document(evidence: Evidence, at: Instant) -> dict[str, Any]:
    """See EvidenceFacts; for a JSON encoder."""
    return {
        "at": format_instant(at),
        "intent": None if evidence.intent is None else spelled(evidence.intent, IntentFacts.__struct_fields__),
        "call": None if evidence.call is None else spelled(evidence.call, CallFacts.__struct_fields__),
        "journal": [_line(line) for line in evidence.lines[:MOST_LINES]],
        "jobs": [spelled(job, JobFacts.__struct_fields__) for job in evidence.jobs[:MOST_RECORDS]],
        "obligations": [spelled(one, ObligationFacts.__struct_fields__) for one in evidence.obligations[:MOST_RECORDS]],
    }


def lease_document(intent: Intent, at: Instant) -> dict[str, Any]:
    """See LeaseFacts; for a JSON encoder."""
    names = [name for name in LeaseFacts.__struct_fields__ if name != "at"]
    return spelled(intent, names) | {"at": format_instant(at)}


def decode_evidence(body: bytes) -> EvidenceFacts:
    """Read what a service sent; raises WireError."""
    try:
        return _evidence(body)
    except _UNREADABLE as error:
        message = f"not what a service tells about a call: {misfit(error, EvidenceFacts, body)}"
        raise WireError(message, code="bad_evidence") from None


def decode_leases(body: bytes) -> list[LeaseFacts]:
    """Read what a service sent about leases; raises WireError."""
    try:
        return _leases(body)
    except _UNREADABLE as error:
        message = f"not what a service tells about leases: {misfit(error, list[LeaseFacts], body)}"
        raise WireError(message, code="bad_evidence") from None


def _line(line: JournalLine) -> dict[str, Any]:
    names = [name for name in LineFacts.__struct_fields__ if name not in {"seq", "digest"}]
    return {"seq": line.seq, "digest": line.digest.hex()} | spelled(line.event, names)


def facts_document(facts: msgspec.Struct) -> dict[str, Any]:
    """What was read, for a JSON encoder again."""
    found: dict[str, Any] = _respelled(msgspec.to_builtins(facts, builtin_types=(datetime,)))
    return found


def _respelled(value: Any) -> Any:
    match value:
        case dict():
            return {name: _respelled(one) for name, one in value.items()}
        case list():
            return [_respelled(one) for one in value]
        case datetime():
            return format_instant(instant_of(value))
    return value
