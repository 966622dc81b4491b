"""What the central ledger needs from its database, and the values that pass between its parts.

A row arrives with a version (A-57). What the database keeps per (pair, actor, writer) is the newest; every version that
was ever accepted is a leaf of the Merkle tree, in order of arrival, so a row that was rewritten or deleted later is
found by anyone who kept an old tree head.

``sequence`` is the number of a row's newest leaf. It orders everything: cursors, live updates and proofs speak of it.
Leaves count from 1, so a tree head's size is the sequence of its last leaf; RFC 9162's index is one less.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from enum import StrEnum
from typing import Final, Literal, Protocol

import msgspec

from twophp.core.entry import Actor, LedgerEntry
from twophp.core.intent import Phase
from twophp.core.records import Instant

MOST_PER_PAGE: Final = 500
MOST_IN_A_TREE: Final = 10_000
MOST_IN_A_BATCH: Final = 5_000


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


class CentralStore(Protocol):
    """The database of tier 3: SQLite or PostgreSQL. One contract suite runs over both."""

    async def ingest(self, writer: Service, entries: Sequence[LedgerEntry], at: Instant) -> Sequence[Ack]:
        """Take a batch up, one ack per row in its order. Idempotent and order-tolerant; nothing half (A-57)."""
        ...

    async def entries(self, wanted: RowFilter, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Rows that were asked for, newest sequence first."""
        ...

    async def tree(self, correlation_id: str, *, limit: int = MOST_IN_A_TREE) -> Sequence[Row]:
        """Every row of the call tree that this id (either of a pair) is in: up to the root, then down (A-53)."""
        ...

    async def of_pairs(self, pairs: Sequence[tuple[str, str]]) -> Sequence[Row]:
        """All rows of these pairs of ids."""
        ...

    async def after(self, sequence: int, limit: int) -> Sequence[Row]:
        """What has arrived since, oldest first: the live feed."""
        ...

    def export(self, wanted: RowFilter) -> AsyncGenerator[Sequence[Row]]:
        """Everything that was asked for, in chunks, from one consistent view, with bounded memory."""
        ...

    async def sla(self, since: Instant, until: Instant) -> Sequence[Sla]:
        """The report, by day and endpoint."""
        ...

    async def activity(self, since: Instant, until: Instant, step_ms: int) -> Sequence[Activity]:
        """All endpoints together in steps that begin at multiples of ``step_ms``; steps without a call are left out."""
        ...

    async def register(
        self, name: str, claimed_id: str | None, token_id: str, at: Instant, *, pull_url: str | None = None
    ) -> Service:
        """Idempotent per credential (A-59). A claimed GUID is confirmed unless a writer of another name has it.

        So a service whose token is replaced goes on under its GUID: names are the credentials', and not claimed.
        ``token_id`` names the credential; where it is a token of ours, the token knows its service from now on. An
        identity provider's subject is no token, and is kept all the same. A ``pull_url`` that is given replaces the
        one that was; None leaves it.
        """
        ...

    async def services(self) -> Sequence[Service]:
        """Every writer, by name."""
        ...

    async def add_token(self, token: Token, secret_hash: bytes) -> None:
        """Keep a new token."""
        ...

    async def token(self, secret_hash: bytes) -> Token | None:
        """The token with this secret, in any state; the caller judges expiry and revocation."""
        ...

    async def tokens(self) -> Sequence[Token]:
        """All of them, newest first."""
        ...

    async def revoke_token(self, token_id: str, at: Instant) -> bool:
        """False if there is none."""
        ...

    async def token_used(self, token_id: str, at: Instant) -> None:
        """Note when a token was last used."""
        ...

    async def log_access(self, lines: Sequence[Access]) -> None:
        """Append to the access log."""
        ...

    async def accesses(self, *, limit: int = 100) -> Sequence[Access]:
        """The newest lines of the access log."""
        ...

    async def alarms(self, *, limit: int = 100) -> Sequence[Alarm]:
        """The newest alarms."""
        ...

    async def head(self) -> TreeHead:
        """The tree head now."""
        ...

    async def leaf(self, sequence: int) -> bytes | None:
        """The leaf hash under this number."""
        ...

    async def inclusion(self, sequence: int, size: int) -> Sequence[bytes]:
        """The audit path of a leaf in the tree of ``size`` leaves (RFC 9162 §2.1.3)."""
        ...

    async def consistency(self, old_size: int, new_size: int) -> Sequence[bytes]:
        """The proof that one tree extends the other (RFC 9162 §2.1.4)."""
        ...

    async def ready(self) -> None:
        """Return if the database answers, else raise StoreUnavailable."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...
