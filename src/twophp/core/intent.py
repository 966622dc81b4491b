"""The intent: one registered mutation, from Phase 1 to its tombstone."""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest
from typing import Final

import msgspec

from twophp.core.records import Instant, Key

INTENT: Final = "intent"
BY_PAIR: Final = "intent.pair"
BY_LOGICAL_KEY: Final = "intent.logical_request_key"
BY_SERVER_ID: Final = "intent.server_correlation_id"

FACTS_TAG: Final = b"twophp:intent-facts:1"
OUTCOME_TAG: Final = b"twophp:intent-outcome:1"
FACTS_CHARS: Final = 32
"""Half a SHA-256 keeps a line of history short, and a second input for it cannot be found either."""

_encode: Final = msgspec.json.Encoder().encode
# The two digests of every handshake are written out: the same bytes as ``identity.digest`` makes, in half the time.
_FACTS_HEAD: Final = len(FACTS_TAG).to_bytes(4, "big") + FACTS_TAG
_OUTCOME_HEAD: Final = len(OUTCOME_TAG).to_bytes(4, "big") + OUTCOME_TAG


class Phase(StrEnum):
    """The six states of the draft (§7), and ABSENT for an intent that does not exist."""

    ABSENT = "ABSENT"
    WAITING_CONFIRM = "WAITING_CONFIRM"
    PROCESSING = "PROCESSING"
    COMMITTED = "COMMITTED"
    FAILED = "FAILED"
    TTL_EXPIRED = "TTL_EXPIRED"
    ABANDONED = "ABANDONED"

    __hash__ = str.__hash__  # Enum's own is a Python call, and every decision hashes a state twice.


class Mode(StrEnum):
    """How the two phases travel (draft §5.5.8)."""

    STANDARD = "standard"
    ASYNC = "async"
    AUTO_CONFIRM = "auto_confirm"
    TRANSPARENT = "transparent"

    __hash__ = str.__hash__


_ASYNC: Final = Mode.ASYNC  # Bound once: Python 3.11 takes ten times as long to find an enum's member.
CONFIRMED_BY_SERVER: Final = frozenset({Mode.AUTO_CONFIRM, Mode.TRANSPARENT})
SETTLED: Final = frozenset({Phase.COMMITTED, Phase.FAILED})
UNCONFIRMED: Final = frozenset({Phase.WAITING_CONFIRM, Phase.TTL_EXPIRED})


class Intent(msgspec.Struct, frozen=True, gc=False):
    """The server's record. Fields stand in the order of the store's columns, so a row becomes a record at once."""

    client_correlation_id: str
    server_correlation_id: str
    principal: str  # Digest of the identity that registered it; the confirm must come from the same.
    replay_key: str  # Digest of the request; a retry has the same, any other is another request.
    callback: str  # Digest of the callback URL, empty without one. A retry must name the same (T2).
    client_id_is_proxy: bool  # The server made the client id up.
    mode: Mode
    service_endpoint: str
    path: str  # The Phase 1 path without a trailing slash; only its own confirm URL may confirm it.
    method: str
    received_at: Instant
    ttl_ms: int
    delta_ms: int
    counted_bytes: int | None = None  # Its bytes in its principal's quota while it is open; None: not counted.
    # The fields below change; those above never do.
    phase: Phase = Phase.ABSENT
    version: int = 0
    confirmed_at: Instant | None = None  # Arrival of Phase 2; None when the server confirmed by itself.
    settled_at: Instant | None = None  # When its last phase was reached: an outcome, TTL_EXPIRED or ABANDONED.
    status: int | None = None
    resource_id: str | None = None
    owner: str | None = None  # The process that executes it; its lease and fence follow.
    lease_until: Instant | None = None
    fence: int = 0
    has_payload: bool = True
    transaction_reference: str | None = None
    due_at: Instant | None = None
    # The last columns are younger than the others. The first of them never changes.
    request_digest: str | None = None  # ``payload_digest`` of the received content; the client notes the sent one.
    indeterminate: bool = False  # FAILED, and it is unknown whether the handler's effects happened.

    @property
    def deadline_at(self) -> Instant:
        """The PONR deadline that the client was given: expired from this instant on (A-26)."""
        return self.received_at + self.ttl_ms

    @property
    def abandoned_at(self) -> Instant:
        """The end of the grace, which no client learns (draft §5.4): abandoned from this instant on."""
        return self.received_at + self.ttl_ms + self.delta_ms

    def is_addressed_by(self, client_correlation_id: str, path: str) -> bool:
        """Whether a confirm with this client id, at this path, can be meant for it."""
        return compare_digest(client_correlation_id, self.client_correlation_id) and path == self.path

    def keys(self) -> tuple[Key, ...]:
        """Found by the pair of ids both sides know, and by the logical key that may be used once.

        An asynchronous one is polled at an address that names the server's id alone (draft §5.3.3).
        """
        client_id, server_id = self.client_correlation_id, self.server_correlation_id
        both = Key(BY_PAIR, (client_id, server_id)), Key(BY_LOGICAL_KEY, (client_id, self.principal))
        return both if self.mode is not _ASYNC else (*both, by_server_id(server_id))


FIXED_FIELDS: Final = Intent.__struct_fields__.index("phase")
"""So many fields at the beginning never change."""
CHANGING_FIELDS: Final = tuple(name for name in Intent.__struct_fields__[FIXED_FIELDS:] if name != "request_digest")


def by_pair(client_correlation_id: str, server_correlation_id: str) -> Key:
    """The key for a Phase 2, a status read or a worker: all of them know both ids."""
    return Key(BY_PAIR, (client_correlation_id, server_correlation_id))


def by_logical_key(principal: str, client_correlation_id: str) -> Key:
    """The key a Phase 1 uses up (A-32: scoped by identity, so no principal can squat on another's ids)."""
    return Key(BY_LOGICAL_KEY, (client_correlation_id, principal))


def by_server_id(server_correlation_id: str) -> Key:
    """The key of an asynchronous intent for a client that polls it."""
    return Key(BY_SERVER_ID, (server_correlation_id,))


def fixed_facts(intent: Intent) -> str:
    """The digest of an intent's fixed fields in the line that registers it, so that an edit shows."""
    facts = msgspec.structs.astuple(intent)[:FIXED_FIELDS]
    if intent.request_digest is not None:  # Lines that are older than the field were written without it.
        facts = (*facts, intent.request_digest)
    text = _encode(facts)
    return sha256(b"%b%b%b" % (_FACTS_HEAD, len(text).to_bytes(4, "big"), text)).hexdigest()[:FACTS_CHARS]


def outcome_facts(intent: Intent) -> str:
    """The digest of an intent's outcome in the line that settles it."""
    reference, confirmed_at = intent.transaction_reference, intent.confirmed_at
    facts: tuple[object, ...] = (intent.status, intent.resource_id, reference, confirmed_at, intent.settled_at)
    if intent.indeterminate:  # Lines that are older than the field were written without it.
        facts = (*facts, intent.indeterminate)
    text = _encode(facts)
    return sha256(b"%b%b%b" % (_OUTCOME_HEAD, len(text).to_bytes(4, "big"), text)).hexdigest()[:FACTS_CHARS]
