"""What the engine needs from the outside, as protocols: a store, a vault, a clock, ids.

The store has one verb that writes. ``transact`` reads the records that a command names, lets it decide about them, and
makes everything the decision says durable in one atomic step, or nothing. There is no other way to change a record,
so there is no check-then-set race to get wrong. A refusal is simply a change that writes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Coroutine, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from twophp.core.call import Call
from twophp.core.entry import LedgerEntry
from twophp.core.intent import Intent
from twophp.core.job import Job
from twophp.core.obligation import Commit, Decision, Obligation, Reserve, Rollback
from twophp.core.records import Instant, JournalEvent, Key, Record, Sealed

Part: TypeAlias = Literal["payload", "response"]
"""What a record may keep in sealed form beside itself."""

Admission: TypeAlias = Literal["accepted", "new", "background"]
"""How a change is let into a store's queue (A-108).

``accepted``: work that was let in depends on it, so it goes first and has room of its own. ``new``: refused with
StoreOverloaded while the queue is full. ``background``: no request waits for it, so it takes a tenth of the store at
most while requests do. A store without a queue makes no difference between them.
"""

T = TypeVar("T")


class Put(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One record's next version, with everything that becomes durable together with it."""

    record: Record
    entry: LedgerEntry | None = None  # The ledger row that mirrors the record, if it has one.
    journal: tuple[JournalEvent, ...] = ()
    seals: Mapping[Part, Sealed | None] = {}  # Sealed bytes to keep; None destroys what was kept.
    replaces: Key | None = None  # A record to drop first, because this one takes a key that it holds.
    held: Key | None = None  # Named by the command; its record keeps the keys that it has, so they are not compared.


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """SQL for the store's own database, run for each row inside the same transaction. Only SQL stores take it."""

    sql: str
    rows: Sequence[tuple[Any, ...]]


class Synced(msgspec.Struct, frozen=True):
    """The central ledger has these very versions since ``at``; newer ones stay unsynced (A-57)."""

    entries: Sequence[LedgerEntry]
    at: Instant


class Purge(msgspec.Struct, frozen=True):
    """A ledger row to forget, and the line that says so. Its history stays."""

    entry: LedgerEntry
    line: JournalEvent


class Change(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What ``decide`` wants done. ``answer`` is handed to the caller once all of it is durable."""

    answer: Any
    puts: tuple[Put, ...] = ()
    drops: tuple[Key, ...] = ()  # Records to forget, with their sealed parts; their ledger rows and journal stay.
    journal: tuple[JournalEvent, ...] = ()  # History that belongs to no single record, such as a finished scan.
    statements: tuple[Statement, ...] = ()
    trial: tuple[Statement, ...] = ()  # Run and undone at once: an error that they meet is raised to the caller.
    synced: tuple[Synced, ...] = ()  # Ledger rows to mark; one that has changed since then is left as it is.
    purges: tuple[Purge, ...] = ()  # Rows to forget; one that is unsynced, changed or has its record yet is left.


class Records(Protocol):
    """The records a decision may look at, as they are at this very moment inside the transaction."""

    @property
    def now(self) -> Instant:
        """The store's time; it never runs backwards, not even over a restart (A-29)."""
        ...

    def get(self, key: Key) -> Any | None:
        """The record under ``key``, which must be one of the keys the transaction named."""
        ...


Decide: TypeAlias = Callable[[Records], Change]
Then: TypeAlias = Callable[[Any, Exception | None], None]
"""Called with the answer and None once the change is durable, or with None and the error."""


class Command(Protocol):
    """What a caller asks a store for, as a value: the records it reads, and what it decides about them."""

    @property
    def keys(self) -> Sequence[Key]:
        """The records it reads."""
        ...

    @property
    def admission(self) -> Admission:
        """How it is let into the store's queue."""
        ...

    @property
    def decide(self) -> Decide:
        """What changes, and what to answer. Pure: a store may ask again when a batch has to be redone."""
        ...


class JournalLine(msgspec.Struct, frozen=True):
    """A journal event, its number, and the hash of the link that it is in."""

    seq: int
    event: JournalEvent
    digest: bytes


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one ledger holds about one call beside its rows."""

    intent: Intent | None = None  # The server's record ...
    call: Call | None = None  # ... and the client's.
    lines: tuple[JournalLine, ...] = ()
    jobs: tuple[Job, ...] = ()
    obligations: tuple[Obligation, ...] = ()


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a store is, for metrics and operators: cheap to ask for, and stored nowhere."""

    waiting: int = 0  # Changes in the queue.
    latest_batch: int = 0  # Changes that were written together last.
    batches: int = 0
    changes: int = 0  # In all batches since the store was opened.


OwnerState: TypeAlias = Literal["alive", "dead", "unknown"]


class Owners(Protocol):
    """Whether the holder of a lease is alive. A store that cannot find out says ``unknown``: then leases decide."""

    def register(self, name: str) -> str:
        """The name to hold leases under. It is known to live until it is released, or its process ends."""
        ...

    def release(self, owner: str) -> None:
        """Give the name back: nothing runs under it any more, and nothing will."""
        ...

    def state(self, owner: str, /) -> OwnerState:
        """What is known about the owner now. A dead owner stays dead."""
        ...


class AtOnce(Protocol):
    """Obligations without an event loop, in a store that never waits. For changes that write nothing else."""

    def reserve_at_once(self, command: Reserve, flows: Container[str], sealed: Sealed | None) -> bool:
        """Reserve, if no obligation holds the id or the key. False: nothing was done; ``transact`` has to decide."""
        ...

    def settle_at_once(self, obligation_id: str, command: Commit | Rollback) -> Decision:
        """Commit or roll back."""
        ...


class Store(Protocol):
    """A durable home for records: what a handshake needs of it, and no more."""

    @property
    def owners(self) -> Owners:
        """The owners of its leases."""
        ...

    @property
    def at_once(self) -> AtOnce | None:
        """The short way for obligations, if the store has one."""
        ...

    @property
    def takes_statements(self) -> bool:
        """Whether a change may carry SQL of its own."""
        ...

    def load(self) -> Load:
        """How busy it is right now. All zero for a store that queues nothing."""
        ...

    def now(self) -> Instant:
        """The store's time, for stamping what arrives: never before what was written last, and never still (A-29)."""
        ...

    def wall_ahead_ms(self) -> int:
        """How far the machine's clock is ahead of ``now``: 0 until that clock is set. For times that others judge."""
        ...

    def transact(self, command: Command) -> Awaitable[Any]:
        """Read the command's keys, decide, write, flush; return the change's ``answer``. All or nothing.

        Changes of one admission are made in the order in which they came.
        Raises StoreUnavailable when nothing was written, and CommitUnknown when it is unknown whether the change is
        durable. An error that ``decide`` raises is raised to this caller alone.
        """
        ...

    def submit(self, command: Command, then: Then) -> None:
        """As ``transact``, for a caller that wants a callback and no future: it spares a wake-up of the loop.

        ``then(answer, error)`` is called once: by the flush itself, on the event loop, right after the change is
        durable (or has failed), in the order of the changes, and in no request's context. It must not block, and may
        submit more. An error that it raises is logged and affects no other change. A change that is refused at once
        (StoreOverloaded, StorePoisoned, a closed store) is raised here, and ``then`` is never called.
        """
        ...

    async def read(self, keys: Sequence[Key]) -> Sequence[Any]:
        """The records under these keys, or None, as they are durable at one moment. Waits for no change.

        Raises StorePoisoned while it is unknown what is durable.
        """
        ...

    async def due(self, kind: str, before: Instant, limit: int) -> Sequence[Key]:
        """Keys of records of ``kind`` that want attention before this instant, most overdue first. O(due)."""
        ...

    async def owners_of(self, kind: str, /) -> Sequence[str]:
        """The owners of unfinished records of ``kind``, each once; empty if the store knows the state of none."""
        ...

    async def owned(self, kind: str, owner: str, limit: int, /) -> Sequence[Key]:
        """Keys of unfinished records of ``kind`` that ``owner`` owns."""
        ...

    async def unseal(self, key: Key, part: Part) -> Sealed | None:
        """The sealed part of a record, or None."""
        ...

    async def prove(self) -> None:
        """Make a change of no consequence durable. Raises the error that keeps changes from being written now."""
        ...

    async def reopen(self) -> None:
        """Open the database anew after StorePoisoned. Reading a key then gives the final outcome of a CommitUnknown."""
        ...

    async def close(self) -> None:
        """Finish every accepted change and release all resources; later changes are refused."""
        ...


@runtime_checkable
class Heralds(Protocol):
    """A store that hears when another process has ended an intent. Of any other one it is found out by looking."""

    async def news_of(self, correlation_id: str, longest_s: float) -> None:
        """Wait until the intent with this server id may have ended, and no longer than ``longest_s``."""
        ...


class OwnTransaction(Protocol):
    """A transaction of the application's own in this store's database, in which one intent may be settled (ADR 44).

    ``begin``, ``flush`` and ``undo`` run where the handler runs. Of a blocking connection none of them ever waits, and
    ``run`` runs them without an event loop. ``settle`` and ``roll_back`` run on the store's loop, whatever it is.
    """

    @property
    def is_blocking(self) -> bool:
        """Whether its connection blocks the thread that uses it."""
        ...

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run ``begin``, ``flush`` or ``undo`` of a blocking connection."""
        ...

    async def begin(self) -> Any:
        """Begin, and return what the handler works with. Raises ConfigError if it cannot settle in this store."""
        ...

    async def flush(self) -> None:
        """The handler's block has ended: send what its library has kept back. Nothing is committed."""
        ...

    async def undo(self) -> None:
        """The handler's block has ended badly: roll back."""
        ...

    async def settle(self, command: Command) -> Any:
        """Decide the command inside, and commit; return its answer. If it changes nothing, everything is rolled back.

        Raises StoreUnavailable if the store cannot be used now, and CommitUnknown if it is unknown what is durable: the
        same call may be made again, and finds out. Any other error says that everything was rolled back, but for
        ``NOT_IN_TRANSACTION``: somebody else has ended the transaction, and it is unknown how.
        """
        ...

    async def roll_back(self) -> None:
        """Roll back, unless it is over already. Never raises."""
        ...


NOT_IN_TRANSACTION: Final = "not_in_transaction"


@runtime_checkable
class JoinsTransactions(Protocol):
    """A store that can settle an intent in a transaction of the application's."""

    def own_transaction(self, source: object) -> OwnTransaction:
        """A transaction that is yet to begin. Raises ConfigError if nobody knows how to get one from ``source``."""
        ...


class LedgerQuestions(Protocol):
    """Ledger rows and history: for readers, for shipping to the central ledger and for purging."""

    async def changes(self, limit: int) -> Sequence[LedgerEntry]:
        """Ledger rows whose newest version the central ledger has not seen, oldest first."""
        ...

    async def purgeable(self, before: Instant, limit: int) -> Sequence[LedgerEntry]:
        """Rows that the central ledger has had since before this instant and whose records are gone, oldest first."""
        ...

    async def entries(self, question: Question) -> Sequence[LedgerEntry]:
        """The local ledger, asked one of the draft's questions (§10.4)."""
        ...

    async def history(self, key: Key) -> Sequence[JournalLine]:
        """The journal of one record, oldest first."""
        ...

    async def journal(self, after: int, limit: int) -> Sequence[JournalLine]:
        """One page of the whole journal: the lines after this one."""
        ...


class ObligationQuestions(Protocol):
    """Obligations by what they have in common."""

    async def obligations(self, wanted: Obligations) -> Sequence[Obligation]:
        """The obligations that fit, newest first, and no more than ``MOST_ROWS``."""
        ...

    async def reserved(self) -> int:
        """How many obligations are Reserved. The cost grows with that number, not with all that are stored."""
        ...

    async def settled(self, before: Instant, limit: int) -> Sequence[Key]:
        """Keys of the first ``limit`` obligations that were settled before this instant, oldest first."""
        ...

    async def tally(self, since: Instant = 0) -> Sequence[Tally]:
        """The number of obligations reserved since ``since``, by flow, state and resolution."""
        ...


class Maintenance(Protocol):
    """What a store keeps about itself."""

    async def synced(self, entries: Sequence[LedgerEntry], at: Instant) -> None:
        """A change that marks these rows and nothing else; see ``Synced``."""
        ...

    async def get_or_set_meta(self, name: str, value: str) -> str:
        """The setting kept under ``name``; ``value`` becomes it if there is none yet."""
        ...

    async def set_meta(self, name: str, value: str) -> None:
        """The setting under ``name`` is ``value`` from now on. Not for those that rows repeat."""
        ...

    async def reassign_ledger_id(self, issued: str) -> None:
        """The ledger's GUID is ``issued`` from now on: in every row, and under ``service_ledger_id`` for good.

        If it is interrupted the GUID is still the old one, and the next call finishes the change.
        """
        ...


class LedgerStore(Store, LedgerQuestions, Protocol):
    """For callers that change records and ask the ledger."""


class ObligationStore(Store, ObligationQuestions, Protocol):
    """For callers that change obligations and ask about them."""


class WholeStore(LedgerStore, ObligationQuestions, Maintenance, Protocol):
    """The whole port: a service, a client or a tracker opens it and hands on parts of it."""


class Tree(msgspec.Struct, frozen=True):
    """Every row of the call tree below one client correlation id, the root's own rows included."""

    client_correlation_id: str


class Initiated(msgspec.Struct, frozen=True):
    """Every call a service made."""

    source: str


class Stalled(msgspec.Struct, frozen=True):
    """Rows in WAITING_CONFIRM or TTL_EXPIRED; with an instant, also PROCESSING whose lease had ended by then (A-54)."""

    lease_ended_by: Instant | None = None


class Find(msgspec.Struct, frozen=True):
    """Every row with this id as its client's or its server's correlation id."""

    correlation_id: str


class Calls(msgspec.Struct, frozen=True):
    """Every row with one of these client correlation ids, oldest first: one look-up for each id."""

    client_correlation_ids: tuple[str, ...]


class Tail(msgspec.Struct, frozen=True):
    """The newest rows, newest first."""

    limit: int = 50


MOST_ROWS: Final = 10_000
"""No answer has more rows (A-53): a reader that needs all of a large ledger asks the central one."""

Question: TypeAlias = Tree | Initiated | Stalled | Find | Calls | Tail


class Obligations(msgspec.Struct, frozen=True, kw_only=True):
    """Which obligations are asked for; an empty field matches any. ``before`` goes on after an earlier page."""

    flow: str = ""
    state: str = ""
    key: str = ""
    intent: str = ""
    trace_id: str = ""
    before: str = ""
    limit: int = 100


class Tally(msgspec.Struct, frozen=True):
    """How many obligations share this flow, state and resolution."""

    flow: str
    state: str
    resolution: str
    count: int


class Vault(Protocol):
    """Seals bytes so that they can be opened only in the context of their own row."""

    def seal(self, plain: bytes, *, context: bytes) -> Sealed:
        """Encrypt and authenticate; ``context`` names the row and must be the same when opening."""
        ...

    def open(self, sealed: Sealed, *, context: bytes) -> bytes:
        """Decrypt, or raise Tampered or KeyMissing. Returns only bytes that were sealed here."""
        ...

    def derived(self, purpose: bytes) -> tuple[bytes, ...]:
        """A secret for this purpose from each key of the ring, the active one's first. Nothing of it is stored."""
        ...


Clock: TypeAlias = Callable[[], Instant]
MintId: TypeAlias = Callable[[], str]
