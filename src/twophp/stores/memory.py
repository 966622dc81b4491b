"""A store that forgets: for tests and for trying things out (A-52). It keeps every promise but the durable one.

No step waits here, so a transaction is one synchronous stretch that no other task can interrupt, and a lock keeps other
threads out: any thread may use the store, with or without an event loop. Its dict of slots is the kernel's snapshot;
the kernel's changes are then entered into the other dicts, which cannot fail.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from contextvars import Context
from functools import cache, partial
from heapq import heappop, heappush
from itertools import islice
from typing import Any, Final, Self, TypeAlias, TypeVar

from msgspec.structs import replace

from twophp.core.entry import LEDGER_ID, LedgerEntry, broken_rules, restamped_line
from twophp.core.errors import StoreError
from twophp.core.intent import Intent, Phase, by_pair
from twophp.core.obligation import (
    BY_FLOW_AND_KEY,
    BY_ID,
    OBLIGATION,
    Commit,
    Decision,
    Obligation,
    Reserve,
    Rollback,
    State,
    by_id,
    decide,
)
from twophp.core.records import Instant, JournalEvent, Key, Sealed
from twophp.kernel.apply import Failure, Operations, Snapshot, apply
from twophp.kernel.commands import MakeChange
from twophp.kernel.journal import Link
from twophp.kernel.overlay import Slot, Slots
from twophp.ports import (
    MOST_ROWS,
    Change,
    Clock,
    Command,
    JournalLine,
    Load,
    Obligations,
    Part,
    Purge,
    Question,
    Synced,
    Tally,
    Then,
)
from twophp.stores.clock import AnchoredClock, StoreTime, system_clock
from twophp.stores.memory_answers import answer, fits, link_all
from twophp.stores.owners import NobodyKnown

_ROLLED_BACK: Final = State.ROLLED_BACK
_NO_RECORD: Final = 0  # The journal's record id for history that belongs to no single record.
_NOTHING: Final = object()

T = TypeVar("T")


_Due: TypeAlias = tuple[Instant, int, int, Key]
"""An appointment: when, the record's id, the version it holds for, and its key. A later version makes its own."""


class MemoryStore:
    """A ``Store`` in this process's memory. Every method but ``transact`` and ``due`` may look at every record."""

    takes_statements: Final = False
    owners: Final = NobodyKnown()

    def __init__(self, *, clock: Clock = system_clock) -> None:
        # No other process writes here, so an anchored clock is this store's time as it is.
        self._time = StoreTime(clock)
        self._clock = clock if isinstance(clock, AnchoredClock) else self._time.now
        self._lock = threading.Lock()
        self._next_id = 1
        self._found: Slots = {}
        self._seals: dict[int, dict[Part, Sealed]] = {}
        self._snapshot = Snapshot(self._found, check=self._check_entry, takes_statements=False)
        self._due: defaultdict[str, list[_Due]] = defaultdict(list)
        self._fresh: list[Slot] = []  # Obligations that are not in ``_due`` yet: most are settled before a sweep.
        self._entries: dict[int, LedgerEntry] = {}
        self._pairs: dict[tuple[str, str, str], int] = {}
        self._unsynced: dict[int, None] = {}
        self._left: dict[int, None] = {}  # Ledger rows that their records left behind.
        self._lines: list[tuple[int, JournalEvent]] = []
        self._links: list[Link] = []
        self._kept: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self.close()

    @property
    def at_once(self) -> Self:
        """See ``Store.at_once``."""
        return self

    def load(self) -> Load:
        """See ``Store.load``: no change waits here."""
        return Load()

    def now(self) -> Instant:
        """See ``Store.now``."""
        return self._clock()

    def wall_ahead_ms(self) -> int:
        """See ``Store.wall_ahead_ms``."""
        return self._time.wall_ahead_ms()

    async def transact(self, command: Command) -> Any:
        """See ``Store.transact``. No change waits here, so ``admission`` makes no difference."""
        return self.transact_at_once(command)

    def submit(self, command: Command, then: Then) -> None:
        """See ``Store.submit``. The loop calls ``then``, so that it never runs before ``submit`` has returned."""
        call_back(partial(self.transact_at_once, command), then)

    def transact_at_once(self, command: Command) -> Any:
        """As ``transact``, for a caller without an event loop: no step waits."""
        with self._lock:
            applied = apply(self._snapshot, (command,), self._clock())
            if not applied.operations.is_empty:
                self._keep(applied.operations)
        (answer,) = applied.answers
        if isinstance(answer, Failure):
            raise answer.error
        return answer

    async def read(self, keys: Sequence[Key]) -> Sequence[Any]:
        """See ``Store.read``."""
        with self._lock:
            return [None if (slot := self._found.get(key)) is None else slot.record for key in keys]

    # Nearly every call of a tracker changes one obligation and adds its line: no view, put and change are made for it.

    def reserve_at_once(self, command: Reserve, flows: Container[str], sealed: Sealed | None) -> bool:
        """See ``AtOnce.reserve_at_once``."""
        identity = Key(BY_ID, (command.obligation_id,))
        held = Key(BY_FLOW_AND_KEY, (command.flow, command.key))
        found = self._found
        with self._lock:
            if held in found:
                return False
            decision = decide(None, command, self._clock(), flows)
            id_ = self._next_id
            keys = (identity, held) if command.key else (identity,)
            slot = Slot(decision.obligation, keys, id_, 1)  # type: ignore[arg-type]  # The key is free: it is reserved.
            if found.setdefault(identity, slot) is not slot:
                return False
            if command.key:
                found[held] = slot
            if sealed is not None:
                self._seals[id_] = {"payload": sealed}
            self._next_id = id_ + 1
            self._fresh.append(slot)
            self._lines.append((id_, decision.steps[0]))
        return True

    def settle_at_once(self, obligation_id: str, command: Commit | Rollback) -> Decision:
        """Commit or roll back. Then the obligation is found by its id alone; rolled back, it has no payload (A-62)."""
        identity = Key(BY_ID, (obligation_id,))
        with self._lock:
            slot = self._found.get(identity)
            decision = decide(None if slot is None else slot.record, command, self._clock())  # type: ignore[arg-type]
            settled = decision.obligation
            if slot is not None and settled is not None and decision.changed:
                slot.record, slot.stored = settled, settled.version
                if len(slot.keys) > 1:
                    del self._found[slot.keys[1]]
                    slot.keys = slot.keys[:1]
                if settled.state is _ROLLED_BACK:
                    self._seals.pop(slot.id, None)
                self._lines.append((slot.id, decision.steps[0]))
        return decision

    def _keep(self, operations: Operations) -> None:
        """Enter the kernel's changes. They were checked before, so no step can fail here."""
        for slot in operations.dropped:
            self._seals.pop(slot.id, None)
            if slot.id in self._entries:
                self._left[slot.id] = None
        for slot in operations.changed:
            self._keep_slot(slot)
        for line_of, event in operations.lines:
            self._lines.append((_NO_RECORD if line_of is None else line_of.id, event))
        for synced in operations.synced:
            self._mark(synced)
        for purge in operations.purges:
            self._purge(purge)

    def _keep_slot(self, slot: Slot) -> None:
        """A record that was dropped again still leaves its ledger row as it was put last."""
        if not slot.id:
            slot.id, self._next_id = self._next_id, self._next_id + 1
        if slot.entry is not None:
            self._write_entry(slot.id, slot.entry)
            if slot.is_dropped:
                self._left[slot.id] = None
        if not slot.is_dropped:
            self._keep_seals(slot)
            due_at, key = slot.record.due_at, slot.keys[0]
            if due_at is not None:
                heappush(self._due[_kind(key.by)], (due_at, slot.id, slot.record.version, key))
        slot.stored, slot.entry, slot.entry_is_new, slot.seals = slot.record.version, None, False, None

    def _keep_seals(self, slot: Slot) -> None:
        for part, sealed in (slot.seals or {}).items():
            if sealed is not None:
                self._seals.setdefault(slot.id, {})[part] = sealed
            elif slot.id in self._seals:
                self._seals[slot.id].pop(part, None)

    def _check_entry(self, slot: Slot | None, entry: LedgerEntry) -> None:
        """Refuse a ledger row that the schema of a database would refuse."""
        pair = _pair(entry)
        there = slot is not None and (slot.id in self._entries or slot.entry is not None)
        if broken := broken_rules(entry):
            raise StoreError(f"{pair}: {broken[0]}", code="constraint")
        if entry.version == 1 and (there or pair in self._pairs):
            raise StoreError(f"{pair}: there is a row for it", code="constraint")
        if entry.version != 1 and not there:
            raise StoreError(f"{pair}: a ledger row that is not there cannot change", code="bad_change")

    def _write_entry(self, id_: int, entry: LedgerEntry) -> None:
        if entry.version == 1:
            self._pairs[_pair(entry)] = id_
        self._entries[id_] = entry
        self._unsynced[id_] = None

    async def due(self, kind: str, before: Instant, limit: int) -> Sequence[Key]:
        """See ``Store.due``: taken from a heap and put back, for they stay due until a sweep processes them."""
        with self._lock:
            self._note_fresh()
            heap, found = self._due[kind], list[_Due]()
            while heap and heap[0][0] < before and len(found) < limit:
                appointment = heappop(heap)
                _at, id_, version, key = appointment
                slot = self._found.get(key)
                if slot is not None and (slot.id, slot.record.version) == (id_, version):
                    found.append(appointment)
            for appointment in found:
                heappush(heap, appointment)
            return [key for _at, _id, _version, key in found]

    def _note_fresh(self) -> None:
        for slot in self._fresh:
            if slot.record.due_at is not None:
                appointment = (slot.record.due_at, slot.id, slot.record.version, slot.record.keys()[0])
                heappush(self._due[OBLIGATION], appointment)
        self._fresh.clear()

    async def owners_of(self, _kind: str) -> Sequence[str]:
        """See ``Store.owners_of``: nothing is known about any of them."""
        return ()

    async def owned(self, _kind: str, _owner: str, _limit: int) -> Sequence[Key]:
        """See ``Store.owned``."""
        return ()

    async def unseal(self, key: Key, part: Part) -> Sealed | None:
        """See ``Store.unseal``."""
        with self._lock:
            slot = self._found.get(key)
            return None if slot is None else self._seals.get(slot.id, {}).get(part)

    async def changes(self, limit: int) -> Sequence[LedgerEntry]:
        """See ``Store.changes``."""
        with self._lock:
            return [self._entries[id_] for id_ in list(self._unsynced)[:limit]]

    async def synced(self, entries: Sequence[LedgerEntry], at: Instant) -> None:
        """See ``Store.synced``."""
        self.transact_at_once(MakeChange(Change(answer=None, synced=(Synced(entries, at),))))

    def _mark(self, synced: Synced) -> None:
        for entry in synced.entries:
            id_ = self._pairs.get(_pair(entry), _NO_RECORD)
            if id_ in self._entries and self._entries[id_].version == entry.version:
                self._entries[id_] = replace(self._entries[id_], sync_timestamp=synced.at)
                self._unsynced.pop(id_, None)

    async def purgeable(self, before: Instant, limit: int) -> Sequence[LedgerEntry]:
        """See ``Store.purgeable``."""
        with self._lock:
            left = [self._entries[id_] for id_ in self._left]
        found = [(row.sync_timestamp, row) for row in left if row.sync_timestamp is not None]
        found = sorted((one for one in found if one[0] < before), key=lambda one: one[0])
        return [row for _at, row in found[:limit]]

    def _purge(self, purge: Purge) -> None:
        id_ = self._pairs.get(_pair(purge.entry), _NO_RECORD)
        if id_ in self._left and id_ not in self._unsynced and self._entries[id_] == purge.entry:
            del self._left[id_], self._entries[id_], self._pairs[_pair(purge.entry)]
            self._lines.append((id_, purge.line))

    async def entries(self, question: Question) -> Sequence[LedgerEntry]:
        """See ``Store.entries``."""
        with self._lock:
            rows = [self._entries[id_] for id_ in sorted(self._entries)]
            return answer(rows, question, self._has_stopped)

    def _has_stopped(self, row: LedgerEntry, lease_ended_by: Instant | None) -> bool:
        """Whether the intent is still PROCESSING although its lease has ended."""
        slot = self._found.get(by_pair(row.client_correlation_id, row.server_correlation_id))
        if lease_ended_by is None or row.phase is not Phase.PROCESSING or slot is None:
            return False
        assert isinstance(slot.record, Intent)
        return (slot.record.lease_until or 0) <= lease_ended_by

    def of_type(self, type_: type[T]) -> list[T]:
        """Every record of a type, oldest first. For tests: memory has no file that they could read from outside."""
        with self._lock:
            found = {slot.id: slot.record for slot in self._found.values() if isinstance(slot.record, type_)}
            return [found[id_] for id_ in sorted(found)]

    async def prove(self) -> None:
        """See ``Store.prove``. Memory has no disk that could be full."""

    async def reopen(self) -> None:
        """See ``Store.reopen``. No outcome is unknown here."""

    async def history(self, key: Key) -> Sequence[JournalLine]:
        """See ``Store.history``."""
        with self._lock:
            slot = self._found.get(key)
            if slot is None:
                return []
            return [line for line in self._chained(0) if self._lines[line.seq - 1][0] == slot.id]

    async def journal(self, after: int, limit: int) -> Sequence[JournalLine]:
        """See ``LedgerQuestions.journal``."""
        with self._lock:
            return list(islice(self._chained(after), limit))

    def _chained(self, after: int) -> Iterator[JournalLine]:
        link_all(self._links, self._lines)
        for seq in range(after + 1, len(self._lines) + 1):
            yield JournalLine(seq, self._lines[seq - 1][1], self._links[seq - 1].hash)

    async def links(self, after: int, limit: int) -> Sequence[Link]:
        """The links of the journal after this line."""
        with self._lock:
            link_all(self._links, self._lines)
            return self._links[after : after + limit]

    async def obligations(self, wanted: Obligations) -> Sequence[Obligation]:
        """See ``Store.obligations``."""
        with self._lock:
            last = self._found.get(by_id(wanted.before)) if wanted.before else None
            end = self._next_id if last is None else last.id
            found = [(slot.id, one) for slot, one in self._obligations() if slot.id < end and fits(one, wanted)]
        found.sort(reverse=True)
        return [one for _id, one in found[: min(wanted.limit, MOST_ROWS)]]

    async def reserved(self) -> int:
        """See ``Store.reserved``."""
        with self._lock:
            return sum(one.due_at is not None for _slot, one in self._obligations())

    async def settled(self, before: Instant, limit: int) -> Sequence[Key]:
        """See ``Store.settled``."""
        with self._lock:
            found = (
                one for _slot, one in self._obligations() if one.settled_at is not None and one.settled_at < before
            )
            return [by_id(one.obligation_id) for one in islice(found, limit)]

    async def tally(self, since: Instant = 0) -> Sequence[Tally]:
        """See ``Store.tally``."""
        with self._lock:
            found = [one for _slot, one in self._obligations() if one.reserved_at >= since]
        counts = Counter((one.flow, one.state.value, one.resolution) for one in found)
        return [Tally(*what, counts[what]) for what in sorted(counts)]

    def _obligations(self) -> Iterator[tuple[Slot, Obligation]]:
        for key, slot in self._found.items():
            if isinstance(slot.record, Obligation) and key == slot.keys[0]:
                yield slot, slot.record

    async def get_or_set_meta(self, name: str, value: str) -> str:
        """The setting kept under ``name``; ``value`` becomes it if there is none yet."""
        return self._kept.setdefault(name, value)

    async def set_meta(self, name: str, value: str) -> None:
        """See ``Store.set_meta``."""
        self._kept[name] = value

    async def reassign_ledger_id(self, issued: str) -> None:
        """See ``Store.reassign_ledger_id``."""
        with self._lock:
            for id_, entry in self._entries.items():
                self._entries[id_] = replace(entry, service_ledger_id=issued)
            before, self._kept[LEDGER_ID] = self._kept.get(LEDGER_ID, ""), issued
            self._lines.append((_NO_RECORD, restamped_line(before, issued, self.now())))

    async def close(self) -> None:
        """See ``Store.close``. There is nothing to finish."""


@cache
def _kind(by: str) -> str:
    """An index is named after the kind of record it finds."""
    return by.partition(".")[0]


def _pair(entry: LedgerEntry) -> tuple[str, str, str]:
    return entry.client_correlation_id, entry.server_correlation_id, entry.actor


log: Final = logging.getLogger("twophp.store")


def call_back(transact: Callable[[], Any], then: Then) -> None:
    """Transact at once, and let the loop call ``then``, so that it never runs before ``submit`` has returned."""
    answer, failure = None, None
    try:
        answer = transact()
    except Exception as error:  # noqa: BLE001 - passed on to this caller.
        failure = error
    asyncio.get_running_loop().call_soon(_tell, then, answer, failure, context=Context())


def _tell(then: Then, answer: Any, failure: Exception | None) -> None:
    try:
        then(answer, failure)
    except Exception:
        log.exception("a callback of a change failed")
