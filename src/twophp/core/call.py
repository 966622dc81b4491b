"""The call: one mutation that a client makes, from the moment it knows both ids to its end."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from twophp.core.identity import digest, payload_digest
from twophp.core.intent import FACTS_CHARS, Mode, Phase
from twophp.core.records import Instant, Key

CALL: Final = "call"
BY_CLIENT_ID: Final = "call.client_correlation_id"
CALL_TAG: Final = b"twophp:call-facts:1"
MEANT_TAG: Final = b"twophp:call-meant:1"
UNPROVEN: Final = "unproven"
"""The ``last_error`` of a call that expired after a confirm may have reached the server."""
DIGEST_CHARS: Final = 64

_encode: Final = msgspec.json.Encoder().encode


class Stage(StrEnum):
    """How far a call has come, as its client knows it. All but the first two and GIVEN_UP are the draft's phases."""

    ABSENT = "ABSENT"
    SENT = "SENT"  # On its way to a server that will not wait for a confirm; not in the ledger.
    WAITING_CONFIRM = "WAITING_CONFIRM"
    GIVEN_UP = "GIVEN_UP"  # This side could still confirm it, but never will: its row keeps the last phase.
    PROCESSING = "PROCESSING"
    COMMITTED = "COMMITTED"
    FAILED = "FAILED"
    TTL_EXPIRED = "TTL_EXPIRED"

    __hash__ = str.__hash__


OPEN: Final = frozenset({Stage.SENT, Stage.WAITING_CONFIRM, Stage.PROCESSING})
"""A driver has it, or will take it over."""
ASKABLE: Final = OPEN - {Stage.SENT}
"""Open, with both ids in a durable row: any process can ask the server about it."""
PHASES: Final[Mapping[Stage, Phase]] = {
    Stage.WAITING_CONFIRM: Phase.WAITING_CONFIRM,
    Stage.GIVEN_UP: Phase.WAITING_CONFIRM,
    Stage.PROCESSING: Phase.PROCESSING,
    Stage.COMMITTED: Phase.COMMITTED,
    Stage.FAILED: Phase.FAILED,
    Stage.TTL_EXPIRED: Phase.TTL_EXPIRED,
}
"""The phase in the ledger row, for each stage that has one."""
IN_LEDGER: Final = frozenset(PHASES)


class Call(msgspec.Struct, frozen=True, gc=False):
    """The client's record. Fields stand in the order of the store's columns."""

    client_correlation_id: str
    parent_reference_id: str  # Its own id if it is a root (draft §5.2.3), else the inbound call's.
    method: str
    url: str  # Without query: the confirm and the status read need no more, and a query may hold anything.
    meant: str  # Digest of the request, to detect an id that is used for two requests.
    target: str
    service_endpoint: str
    mode: Mode
    sent_at: Instant
    # The fields below change; those above never do.
    stage: Stage = Stage.ABSENT
    version: int = 0
    row_version: int = 0  # Of its ledger row; 0 while it has none.
    server_correlation_id: str = ""
    ttl_ms: int = 0
    registered_at: Instant | None = None  # Receipt of the answer that told the server id.
    confirm_by: Instant | None = None  # No confirm may begin from then on.
    confirmed_at: Instant | None = None  # Receipt of the answer to Phase 2.
    settled_at: Instant | None = None
    status: int | None = None
    resource_id: str | None = None
    status_url: str = ""  # Where the server wants to be asked; empty: at the call's own URL.
    acknowledged_at: Instant | None = None  # Receipt of the callback ...
    answered_at: Instant | None = None  # ... and of the final answer: the two columns of draft §5.5.5.
    owner: str = ""
    fence: int = 0
    attempts: int = 0  # How often a driver has taken it over.
    last_error: str = ""  # A code, never a text.
    due_at: Instant | None = None
    indeterminate: bool = False  # FAILED, and the server does not know whether the effects happened.

    def keys(self) -> tuple[Key, ...]:
        """Found by the id the client made: one call per id."""
        return (by_client_id(self.client_correlation_id),)

    @property
    def phase(self) -> Phase | None:
        """The phase in its ledger row; None while it has no row."""
        return PHASES.get(self.stage)

    @property
    def never_ran(self) -> bool:
        """Whether it is certain that nothing ran and nothing will, so that the call may be made anew."""
        return self.stage in UNCONFIRMED and self.last_error != UNPROVEN


UNCONFIRMED: Final = frozenset({Stage.GIVEN_UP, Stage.TTL_EXPIRED})
"""It will not be confirmed any more, by this client or by any."""
FIXED_FIELDS: Final = Call.__struct_fields__.index("stage")


def by_client_id(client_correlation_id: str) -> Key:
    """The key of a call."""
    return Key(BY_CLIENT_ID, (client_correlation_id,))


def meant_by(method: str, url: str, content_type: str, body: bytes) -> str:
    """The digest by which two calls are compared (A-32): first of the content, then of method and URL."""
    return payload_digest(content_type, body) + digest(MEANT_TAG, method.encode(), url.encode())


def request_digest(call: Call) -> str:
    """The digest of the sent content, made as the server digests the received content: the two must be equal."""
    return call.meant[:DIGEST_CHARS]


def call_facts(call: Call) -> str:
    """The digest that every line about a call has of the call at that time, so that an edit shows."""
    facts = msgspec.structs.astuple(call)[:FIXED_FIELDS]
    outcome: tuple[object, ...] = (call.status, call.resource_id, call.confirmed_at, call.settled_at)
    if call.indeterminate:  # Lines that are older than the field were written without it.
        outcome = (*outcome, call.indeterminate)
    told = (call.server_correlation_id, call.ttl_ms, call.registered_at, call.confirm_by)
    return digest(CALL_TAG, _encode((*facts, *told, *outcome)))[:FACTS_CHARS]


class Evidence(StrEnum):
    """The four rows of draft §5.5.5: the meaning of callback and answer, each received or missing."""

    NORMAL = "NORMAL"  # Both came.
    RESPONSE_LOST = "RESPONSE_LOST"  # The point of no return was crossed; the status read tells the rest.
    CALLBACK_LOST = "CALLBACK_LOST"  # The row is written from the answer.
    UNKNOWN = "UNKNOWN"  # Nothing came, which proves nothing: ask with the same id.


def classify(*, callback: bool, response: bool) -> Evidence:
    """The row of draft §5.5.5 for what has arrived of an auto-confirmed call."""
    if callback:
        return Evidence.NORMAL if response else Evidence.RESPONSE_LOST
    return Evidence.CALLBACK_LOST if response else Evidence.UNKNOWN


def evidence_of(call: Call) -> Evidence:
    """The row of draft §5.5.5 for this call."""
    return classify(callback=call.acknowledged_at is not None, response=call.answered_at is not None)
