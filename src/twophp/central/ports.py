"""The values that pass between the parts of the central ledger.

A row arrives with a version (A-57). What is served per (pair, actor, writer) is the newest; every version that was ever
accepted is a leaf of the Merkle tree, in order of arrival, and its bytes are kept, so a row that was rewritten or
deleted later is found, together with the tree by anyone who kept an old tree head.

``sequence`` is the number of a row's newest leaf. It orders everything: cursors, live updates and proofs speak of it.
Leaves count from 1, so a tree head's size is the sequence of its last leaf; RFC 9162's index is one less.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Literal

import msgspec

from twophp.core.entry import Actor, LedgerEntry
from twophp.core.intent import Phase
from twophp.core.records import Instant

MOST_PER_PAGE: Final = 500
MOST_IN_A_TREE: Final = 10_000
MOST_IN_A_BATCH: Final = 5_000
LEAVES_PER_PAGE: Final = 4_096
"""Of a verification. So many take their reader some tens of milliseconds."""


class Role(StrEnum):
    """Who may do what (A-63). Default deny: a token has exactly the roles it was given."""

    AUDIT = "audit"
    OPERATIONS = "operations"
    COMPLIANCE = "compliance"
    SERVICE = "service"

    __hash__ = str.__hash__


READERS: Final = frozenset({Role.AUDIT, Role.OPERATIONS, Role.COMPLIANCE})


class Row(msgspec.Struct, frozen=True, gc=False):
    """A ledger row as central keeps it. ``entry.sync_timestamp`` is when this version arrived."""

    sequence: int
    entry: LedgerEntry


class Page(msgspec.Struct, frozen=True):
    """Some rows, and where to go on; ``cursor`` None at the end."""

    rows: Sequence[Row]
    cursor: str | None = None


class RowFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows; everything that is set must hold. ``since`` and ``until`` are about ``phase_1_timestamp``."""

    correlation_id: str | None = None  # Either of the two.
    service_ledger_id: str | None = None
    source: str | None = None
    target: str | None = None
    service_endpoint: str | None = None
    actor: Actor | None = None
    phases: frozenset[Phase] = frozenset()
    indeterminate: bool | None = None
    since: Instant | None = None
    until: Instant | None = None


class Ack(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became of one row of a batch. Everything but ``refused`` is durable here in this version or a newer one."""

    client_correlation_id: str
    server_correlation_id: str
    actor: str
    version: int
    outcome: Literal["stored", "known", "older", "refused"]
    sync_timestamp: Instant | None = None
    code: str | None = None  # Why it was refused: ``version_conflict`` is alarmed as well.
    detail: str | None = None


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A registered writer."""

    service_ledger_id: str
    name: str
    registered_at: Instant
    last_sync_at: Instant | None = None
    rows: int = 0
    pull_url: str | None = None  # Where its local ledger can be pulled from, if it offers that (draft §9.6).


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """An API token, without its secret: only a hash of that is kept."""

    token_id: str
    name: str
    roles: frozenset[Role]
    created_at: Instant
    service_ledger_id: str | None = None  # Set on a service's token once it has registered.
    expires_at: Instant | None = None
    revoked_at: Instant | None = None
    last_used_at: Instant | None = None


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an operator must look at: a rewritten version, a stranger's row."""

    alarm_id: int
    at: Instant
    code: str
    service_ledger_id: str
    client_correlation_id: str
    server_correlation_id: str
    detail: str


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the access log (draft §13.5): who read what."""

    at: Instant
    who: str
    role: str
    method: str
    path: str
    status: int


class Sla(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint on one day (UTC), from server rows. Times in milliseconds; None: nothing to measure."""

    day: str
    service_endpoint: str
    calls: int
    committed: int
    failed: int  # Without what is indeterminate.
    indeterminate: int
    ttl_expired: int
    abandoned: int
    open: int
    confirmation_rate: float | None
    confirm_p50_ms: float | None  # Phase 1 to Phase 2
    confirm_p95_ms: float | None
    confirm_p99_ms: float | None
    settle_p50_ms: float | None  # Phase 2 to settled
    settle_p95_ms: float | None
    settle_p99_ms: float | None


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What server rows say of one stretch of time that begins ``at``, by ``phase_1_timestamp``. Times as in ``Sla``."""

    at: Instant
    committed: int = 0
    failed: int = 0  # Without what is indeterminate.
    indeterminate: int = 0
    ttl_expired: int = 0
    abandoned: int = 0
    open: int = 0
    confirm_p50_ms: float | None = None
    confirm_p95_ms: float | None = None
    confirm_p99_ms: float | None = None
    settle_p50_ms: float | None = None
    settle_p95_ms: float | None = None
    settle_p99_ms: float | None = None


class TreeHead(msgspec.Struct, frozen=True, kw_only=True):
    """How many leaves there are and what they hash to (RFC 9162 §2.1)."""

    size: int
    root: bytes
    at: Instant


class SignedHead(msgspec.Struct, frozen=True, kw_only=True):
    """A tree head as it was signed: ``note`` is a checkpoint with its signature (``identity.notes``)."""

    number: int
    size: int
    root: bytes
    at: Instant
    note: str


class Leaves(msgspec.Struct, frozen=True, kw_only=True):
    """Some neighbouring leaves as of one moment, with the rows that are served under their numbers (ADR 47).

    Nothing is promised about them: what somebody did to the database shows here.
    """

    first: int
    until: int  # The first number that is not asked about.
    size: int
    root: bytes  # Empty where tiles are missing from which it would follow.
    at: Instant
    kept_from: int  # Up to here a version that was replaced may have no bytes.
    hashes: bytes  # Of the leaves from ``first`` on, as the tree has them.
    newest: Sequence[
        tuple[int, bytes]
    ]  # Number and row of what is served; at either end also what is outside the tree.
    past: Sequence[tuple[int, int | None, bytes | None]]  # Number, what superseded it, and the row.
