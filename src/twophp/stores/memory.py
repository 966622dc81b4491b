"""A store that forgets: for tests and for trying things out (A-52). It keeps every promise but the durable one.

Nothing waits here, so a transaction is one synchronous stretch that no other task can interrupt, and a lock keeps other
threads out: any thread may use the store, with or without an event loop. A put is checked before it is made. A change
of several is made one after the other, with a note of what was there before; when one of them breaks a rule, the notes
are played back and nothing has happened.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Sequence
from functools import cache, partial
from heapq import heappop, heappush
from itertools import islice
from typing import Any, Final, Self, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from twophp.core.entry import LEDGER_ID, LedgerEntry, broken_rules, restamped_line
from twophp.core.errors import StoreError
from twophp.core.fence import Fence
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
from twophp.core.records import Instant, JournalEvent, Key, Record, Sealed
from twophp.core.registrar_records import WrittenOnce
from twophp.kernel.commands import Making
from twophp.kernel.journal import GENESIS, link
from twophp.kernel.overlay import View
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
    Put,
    Question,
    Synced,
    Tally,
    Then,
)
from twophp.stores.call_back import call_back
from twophp.stores.clock import AnchoredClock, StoreTime, system_clock
from twophp.stores.memory_answers import answer
from twophp.stores.owners import NobodyKnown

_ROLLED_BACK: Final = State.ROLLED_BACK
_NO_RECORD: Final = 0  # The journal's record id for history that belongs to no single record.
_NOTHING: Final = object()

T = TypeVar("T")


class _Slot(Struct, gc=False, eq=False):
    """Where a record is kept while it exists: under an id, found by its keys."""

    id: int
    record: Any  # A ``Record``.
    keys: tuple[Key, ...]
    seals: dict[Part, Sealed]


_Due: TypeAlias = tuple[Instant, int, int, Key]
"""An appointment: when, the record's id, the version it holds for, and its key. A later version makes its own."""


class MemoryStore:
    """A ``Store`` in this process's memory. Everything but ``transact`` and ``due`` may look at all there is."""

    takes_statements: Final = False
    owners: Final = NobodyKnown()

    def __init__(self, *, clock: Clock = system_clock) -> None:
        # Nobody else writes here, so an anchored clock is this store's time as it is.
        self._time = StoreTime(clock)
        self._clock = clock if isinstance(clock, AnchoredClock) else self._time.now
        self._lock = threading.Lock()
        self._next_id = 1
        self._found: dict[Key, _Slot] = {}
        self._due: defaultdict[str, list[_Due]] = defaultdict(list)
        self._fresh: list[_Slot] = []  # Obligations whose appointment nobody has noted yet: most are settled before.
        self._entries: dict[int, LedgerEntry] = {}
        self._pairs: dict[tuple[str, str, str], int] = {}
        self._unsynced: dict[int, None] = {}
        self._left: dict[int, None] = {}  # Ledger rows that their records left behind.
        self._lines: list[tuple[int, JournalEvent]] = []
        self._digests: list[bytes] = []
        self._kept: dict[str, str] = {}
        self._before: list[tuple[Any, Any, Any]] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self.close()

    def load(self) -> Load:
        """See ``Store.load``: nothing waits here."""
        return Load()

    def now(self) -> Instant:
        """See ``Store.now``."""
        return self._clock()

    def wall_ahead_ms(self) -> int:
        """See ``Store.wall_ahead_ms``."""
        return self._time.wall_ahead_ms()

    async def transact(self, command: Command) -> Any:
        """See ``Store.transact``. Nothing waits here, so nothing goes before anything else."""
        return self.transact_at_once(command)

    def submit(self, command: Command, then: Then) -> None:
        """See ``Store.submit``. Called by the loop, so that nobody is answered before ``submit`` has returned."""
        call_back(partial(self.transact_at_once, command), then)

    def transact_at_once(self, command: Command) -> Any:
        """The same for whoever has no event loop and needs none: nothing is waited for."""
        keys = command.keys
        with self._lock:
            change = command.decide(View(keys, self._found, self._clock()))  # type: ignore[arg-type]
            if change.trial:
                raise StoreError("the memory store runs no SQL", code="no_sql")
            if change.puts or change.drops or change.journal or change.statements or change.synced or change.purges:
                self._apply(change, keys)
            return change.answer

    async def read(self, keys: Sequence[Key]) -> Sequence[Any]:
        """See ``Store.read``."""
        with self._lock:
            return [None if (slot := self._found.get(key)) is None else slot.record for key in keys]

    # What nearly every call of a tracker is: one obligation and its line. No view, put and change are made for it.

    def reserve_at_once(self, command: Reserve, flows: Container[str], sealed: Sealed | None) -> bool:
        """Reserve, if nobody is in the way. False: somebody is, nothing was done, and ``transact`` is the way."""
        identity = Key(BY_ID, (command.obligation_id,))
        held = Key(BY_FLOW_AND_KEY, (command.flow, command.key))
        found = self._found
        with self._lock:
            if held in found:
                return False
            decision = decide(None, command, self._clock(), flows)
            id_ = self._next_id
            keys = (identity, held) if command.key else (identity,)
            slot = _Slot(id_, decision.obligation, keys, {} if sealed is None else {"payload": sealed})
            if found.setdefault(identity, slot) is not slot:
                return False
            if command.key:
                found[held] = slot
            self._next_id = id_ + 1
            self._fresh.append(slot)
            self._lines.append((id_, decision.steps[0]))
        return True

    def settle_at_once(self, obligation_id: str, command: Commit | Rollback) -> Decision:
        """Commit or roll back. From then on it is found by its id alone; rolled back, it keeps no payload (A-62)."""
        identity = Key(BY_ID, (obligation_id,))
        with self._lock:
            slot = self._found.get(identity)
            decision = decide(None if slot is None else slot.record, command, self._clock())
            if slot is not None and decision.changed:
                keys, slot.record = slot.keys, decision.obligation
                if len(keys) > 1:
                    del self._found[keys[1]]
                    slot.keys = keys[:1]
                if slot.record.state is _ROLLED_BACK:
                    slot.seals = {}
                self._lines.append((slot.id, decision.steps[0]))
        return decision

    def _apply(self, change: Change, named: Sequence[Key]) -> None:
        if change.statements:
            raise StoreError("the memory store runs no SQL", code="no_sql")
        if len(change.puts) == 1 and not change.drops and change.puts[0].replaces is None:
            put = [self._put(change.puts[0], named)]
        else:
            put = self._make(change, named)
        for event in change.journal:
            self._lines.append((_NO_RECORD, event))
        for synced in change.synced:
            self._mark(synced)
        for purge in change.purges:
            self._purge(purge)
        for slot in put:
            at = slot.record.due_at
            if at is not None and slot.keys:  # Without keys it was dropped again.
                key = slot.keys[0]
                heappush(self._due[_kind(key.by)], (at, slot.id, slot.record.version, key))

    def _make(self, change: Change, named: Sequence[Key]) -> list[_Slot]:
        line_count = len(self._lines)
        before: list[tuple[Any, Any, Any]] = []
        self._before = before
        try:
            slots = []
            for put in change.puts:
                if put.replaces is not None:
                    self._drop(put.replaces, named)
                slots.append(self._put(put, named))
            for key in change.drops:
                self._drop(key, named)
        except BaseException:
            _play_back(before)
            del self._lines[line_count:]
            raise
        finally:
            self._before = None
        return slots

    def _put(self, put: Put, named: Sequence[Key]) -> _Slot:
        record, found = put.record, self._found
        keys = record.keys()
        slot = found.get(keys[0])
        if slot is not None and keys[0] not in named:
            slot = self._seen(slot, named)
        if record.version != (1 if slot is None else slot.record.version + 1):
            raise StoreError(f"{keys[0]}: a record's version begins with 1 and rises by one", code="bad_change")
        for key in keys:
            if found.get(key, slot) is not slot:
                raise StoreError(f"{key}: another record holds it", code="constraint")
        if put.entry is not None:
            self._check_entry(slot, put.entry, put.journal)
        # From here on nothing can fail.
        if slot is None:
            slot = _Slot(self._next_id, record, (), {})
            self._next_id += 1
        self._move(slot, record, keys)
        for part, sealed in put.seals.items():
            self._set(slot.seals, part, _NOTHING if sealed is None else sealed)
        if put.entry is not None:
            self._write_entry(slot.id, put.entry)
        for event in put.journal:
            self._lines.append((slot.id, event))
        return slot

    def _seen(self, slot: _Slot, named: Sequence[Key]) -> _Slot | None:
        """The slot if the transaction has read its record under another key, or has itself put it."""
        if any(held in named for held in slot.keys) or any(place is slot for place, _, _ in self._before or ()):
            return slot
        return None

    def _move(self, slot: _Slot, record: Record, keys: tuple[Key, ...]) -> None:
        """Make it the slot's record, let go of the keys that it no longer holds and take the others."""
        held, found, before = slot.keys, self._found, self._before
        if before is not None:
            before.append((slot, slot.record, held))
            before.extend((found, key, found.get(key, _NOTHING)) for key in (*held, *keys))
        slot.record, slot.keys = record, keys
        if keys == held:
            return
        for key in held:
            if key not in keys:
                del found[key]
        for key in keys:
            found[key] = slot

    def _drop(self, key: Key, named: Sequence[Key]) -> None:
        """Forget the record. Its ledger row and its history still say what became of it."""
        slot = self._found.get(key)
        if slot is not None and key not in named:
            slot = self._seen(slot, named)
        if slot is None:
            raise StoreError(f"{key}: there is no record to drop", code="bad_change")
        if isinstance(slot.record, WrittenOnce | Fence):
            raise StoreError(f"{key}: what is written once stays", code="constraint")
        self._move(slot, slot.record, ())
        if slot.id in self._entries:
            self._set(self._left, slot.id, None)
        for part in list(slot.seals):
            self._set(slot.seals, part, _NOTHING)

    def _check_entry(self, slot: _Slot | None, entry: LedgerEntry, journal: Sequence[JournalEvent]) -> None:
        pair = _pair(entry)
        there = slot is not None and slot.id in self._entries
        if broken := broken_rules(entry):
            raise StoreError(f"{pair}: {broken[0]}", code="constraint")
        if not journal:
            raise StoreError(f"{pair}: a ledger row changes with a line of history", code="bad_change")
        if entry.version == 1 and (there or pair in self._pairs):
            raise StoreError(f"{pair}: there is a row for it", code="constraint")
        if entry.version != 1 and not there:
            raise StoreError(f"{pair}: a ledger row that is not there cannot change", code="bad_change")

    def _write_entry(self, id_: int, entry: LedgerEntry) -> None:
        if entry.version == 1:
            self._set(self._pairs, _pair(entry), id_)
        self._set(self._entries, id_, entry)
        self._set(self._unsynced, id_, None)

    def _set(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        if self._before is not None:
            self._before.append((mapping, key, mapping.get(key, _NOTHING)))
        if value is _NOTHING:
            mapping.pop(key, None)
        else:
            mapping[key] = value

    async def due(self, kind: str, before: Instant, limit: int) -> Sequence[Key]:
        """See ``Store.due``: taken from a heap and put back, for they stay due until somebody attends to them."""
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
            return None if slot is None else slot.seals.get(part)

    async def changes(self, limit: int) -> Sequence[LedgerEntry]:
        """See ``Store.changes``."""
        with self._lock:
            return [self._entries[id_] for id_ in list(self._unsynced)[:limit]]

    async def synced(self, entries: Sequence[LedgerEntry], at: Instant) -> None:
        """See ``Store.synced``."""
        self.transact_at_once(Making(Change(answer=None, synced=(Synced(entries, at),))))

    def _mark(self, synced: Synced) -> None:
        for entry in synced.entries:
            id_ = self._pairs.get(_pair(entry), _NO_RECORD)
            if id_ in self._entries and self._entries[id_].version == entry.version:
                self._entries[id_] = replace(self._entries[id_], sync_timestamp=synced.at)
                self._unsynced.pop(id_, None)

    async def outlived(self, before: Instant, limit: int) -> Sequence[LedgerEntry]:
        """See ``Store.outlived``."""
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
        """Still PROCESSING, though whoever executed it has not been heard of."""
        slot = self._found.get(by_pair(row.client_correlation_id, row.server_correlation_id))
        if lease_ended_by is None or row.phase is not Phase.PROCESSING or slot is None:
            return False
        assert isinstance(slot.record, Intent)
        return (slot.record.lease_until or 0) <= lease_ended_by

    def of_type(self, type_: type[T]) -> list[T]:
        """Every record of a type, oldest first: memory has no file that somebody else could look into."""
        with self._lock:
            found = {slot.id: slot.record for slot in self._found.values() if isinstance(slot.record, type_)}
            return [found[id_] for id_ in sorted(found)]

    async def prove(self) -> None:
        """See ``Store.prove``. Memory has no disk that could be full."""

    async def reopen(self) -> None:
        """See ``Store.reopen``. Nothing here can be unknown."""

    async def history(self, key: Key) -> Sequence[JournalLine]:
        """See ``Store.history``."""
        with self._lock:
            slot = self._found.get(key)
            return [] if slot is None else [line for line in self._chained(0) if line.record == slot.id]

    async def journal(self, after: int, limit: int) -> Sequence[JournalLine]:
        """The whole journal, a page at a time."""
        with self._lock:
            return list(islice(self._chained(after), limit))

    def _chained(self, after: int) -> Iterator[JournalLine]:
        """The lines with their hashes, which are made when somebody first looks: a chain in memory proves nothing."""
        for seq in range(len(self._digests) + 1, len(self._lines) + 1):
            previous = self._digests[-1] if self._digests else GENESIS
            self._digests.append(link(previous, seq, *self._lines[seq - 1]))
        for seq in range(after + 1, len(self._lines) + 1):
            yield JournalLine(seq, *self._lines[seq - 1], self._digests[seq - 1])

    async def obligations(self, wanted: Obligations) -> Sequence[Obligation]:
        """See ``Store.obligations``."""
        with self._lock:
            last = self._found.get(by_id(wanted.before)) if wanted.before else None
            end = self._next_id if last is None else last.id
            found = [(slot.id, one) for slot, one in self._obligations() if slot.id < end and _fits(one, wanted)]
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

    def _obligations(self) -> Iterator[tuple[_Slot, Obligation]]:
        for key, slot in self._found.items():
            if isinstance(slot.record, Obligation) and key == slot.keys[0]:
                yield slot, slot.record

    async def kept(self, name: str, value: str) -> str:
        """The setting kept under ``name``; ``value`` becomes it if there is none yet."""
        return self._kept.setdefault(name, value)

    async def restamp(self, issued: str) -> None:
        """See ``Store.restamp``."""
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


def _play_back(notes: Sequence[tuple[Any, Any, Any]]) -> None:
    for place, what, was in reversed(notes):
        if type(place) is _Slot:
            place.record, place.keys = what, was
        elif was is _NOTHING:
            place.pop(what, None)
        else:
            place[what] = was


def _fits(obligation: Obligation, wanted: Obligations) -> bool:
    facts = ("flow", "state", "key", "intent", "trace_id")
    return all(getattr(wanted, name) in ("", getattr(obligation, name)) for name in facts)


def _pair(entry: LedgerEntry) -> tuple[str, str, str]:
    return entry.client_correlation_id, entry.server_correlation_id, entry.actor
