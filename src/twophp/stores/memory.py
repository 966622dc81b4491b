"""A store that forgets: for tests and for trying things out (A-52). It keeps every promise but the durable one.

Nothing waits here, so a transaction is one synchronous stretch that no other task can interrupt. Its changes are made
at once, with a note of what was there before; when one of them breaks a rule, the notes are played back and nothing
has happened.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple, Self

from msgspec.structs import replace

from twophp.core.entry import LedgerEntry, broken_rules
from twophp.core.errors import StoreError
from twophp.core.intent import Intent, Phase, by_pair
from twophp.core.records import Instant, JournalEvent, Key, Record, Sealed
from twophp.ports import (
    Calls,
    Change,
    Clock,
    Decide,
    Find,
    Initiated,
    JournalLine,
    Load,
    Part,
    Put,
    Question,
    Stalled,
    Tail,
    Tree,
)
from twophp.stores.clock import system_clock
from twophp.stores.journal import GENESIS, link
from twophp.stores.view import View

_STALLED: Final = frozenset({Phase.WAITING_CONFIRM, Phase.TTL_EXPIRED})
_PARTS: Final[tuple[Part, ...]] = ("payload", "response")
_NO_RECORD: Final = 0  # The journal's record id for history that belongs to no single record.
_NOTHING: Final = object()


class _Slot(NamedTuple):
    id: int
    record: Record
    keys: tuple[Key, ...]


class _Due(NamedTuple):
    """An appointment. It holds for one version of a record; a later version makes its own."""

    at: Instant
    id: int
    version: int
    key: Key


class MemoryStore:
    """A ``Store`` in this process's memory. Everything but ``transact`` and ``due`` may look at all there is."""

    takes_statements: Final = False

    def __init__(self, *, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._now: Instant = 0
        self._next_id = 1
        self._found: dict[Key, _Slot] = {}
        self._due: defaultdict[str, list[_Due]] = defaultdict(list)
        self._seals: dict[tuple[int, Part], Sealed] = {}
        self._entries: dict[int, LedgerEntry] = {}
        self._pairs: dict[tuple[str, str, str], int] = {}
        self._unsynced: dict[int, None] = {}
        self._lines: list[tuple[int, JournalEvent]] = []
        self._digests: list[bytes] = []
        self._kept: dict[str, str] = {}
        self._before: list[tuple[dict[Any, Any], Any, Any]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self.close()

    def load(self) -> Load:
        """See ``Store.load``: nothing waits here."""
        return Load()

    def now(self) -> Instant:
        """See ``Store.now``."""
        return max(self._clock(), self._now)

    async def transact(self, keys: Sequence[Key], decide: Decide) -> Any:
        """See ``Store.transact``."""
        self._now = self.now()
        change = decide(View(keys, self._found, self._now))
        if change.puts or change.drops or change.journal or change.statements:
            self._apply(change, keys)
        return change.answer

    def _apply(self, change: Change, named: Sequence[Key]) -> None:
        line_count = len(self._lines)
        try:
            put = self._make(change, named)
        except BaseException:
            for mapping, key, value in reversed(self._before):
                if value is _NOTHING:
                    mapping.pop(key, None)
                else:
                    mapping[key] = value
            del self._lines[line_count:]
            raise
        finally:
            self._before.clear()
        for slot in put:
            if slot.record.due_at is not None:
                self._appoint(slot, slot.record.due_at)

    def _make(self, change: Change, named: Sequence[Key]) -> list[_Slot]:
        if change.statements:
            raise StoreError("the memory store runs no SQL", code="no_sql")
        slots = [self._put(put, named) for put in change.puts]
        for key in change.drops:
            self._drop(key, named)
        self._lines.extend([(_NO_RECORD, event) for event in change.journal])
        return slots

    def _put(self, put: Put, named: Sequence[Key]) -> _Slot:
        record = put.record
        keys = record.keys()
        slot = self._seen(keys[0], named)
        if record.version != (1 if slot is None else slot.record.version + 1):
            raise StoreError(f"{keys[0]}: a record's version begins with 1 and rises by one", code="bad_change")
        id_ = self._new_id() if slot is None else slot.id
        now = _Slot(id_, record, keys)
        self._rekey(now, () if slot is None else slot.keys)
        for part, sealed in put.seals.items():
            self._set(self._seals, (id_, part), _NOTHING if sealed is None else sealed)
        if put.entry is not None:
            self._write_entry(id_, put.entry, put.journal)
        self._lines.extend([(id_, event) for event in put.journal])
        return now

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _seen(self, key: Key, named: Sequence[Key]) -> _Slot | None:
        """The record under ``key`` if the transaction has read it, or has itself put it."""
        slot = self._found.get(key)
        if slot is None or key in named or any(held in named for held in slot.keys):
            return slot
        return slot if any(mapping is self._found and held == key for mapping, held, _ in self._before) else None

    def _rekey(self, slot: _Slot, held: tuple[Key, ...]) -> None:
        """Let go of what is no longer held, and take the rest unless somebody else holds it."""
        for key in held:
            if key not in slot.keys:
                self._set(self._found, key, _NOTHING)
        for key in slot.keys:
            holder = self._found.get(key)
            if holder is not None and holder.id != slot.id:
                raise StoreError(f"{key}: another record holds it", code="constraint")
            self._set(self._found, key, slot)

    def _drop(self, key: Key, named: Sequence[Key]) -> None:
        """Forget the record. Its ledger row and its history still say what became of it."""
        slot = self._seen(key, named)
        if slot is None:
            raise StoreError(f"{key}: there is no record to drop", code="bad_change")
        for held in slot.keys:
            self._set(self._found, held, _NOTHING)
        for part in _PARTS:
            self._set(self._seals, (slot.id, part), _NOTHING)

    def _write_entry(self, id_: int, entry: LedgerEntry, journal: Sequence[JournalEvent]) -> None:
        pair = _pair(entry)
        if broken := broken_rules(entry):
            raise StoreError(f"{pair}: {broken[0]}", code="constraint")
        if not journal:
            raise StoreError(f"{pair}: a ledger row changes with a line of history", code="bad_change")
        if entry.version == 1:
            if id_ in self._entries or pair in self._pairs:
                raise StoreError(f"{pair}: there is a row for it", code="constraint")
            self._set(self._pairs, pair, id_)
        elif id_ not in self._entries:
            raise StoreError(f"{pair}: a ledger row that is not there cannot change", code="bad_change")
        self._set(self._entries, id_, entry)
        self._set(self._unsynced, id_, None)

    def _set(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        self._before.append((mapping, key, mapping.get(key, _NOTHING)))
        if value is _NOTHING:
            mapping.pop(key, None)
        else:
            mapping[key] = value

    def _appoint(self, slot: _Slot, at: Instant) -> None:
        """Note when the record is due. Appointments that a later version has made void go when their time comes."""
        key = slot.keys[0]
        heappush(self._due[_kind(key)], _Due(at, slot.id, slot.record.version, key))

    async def due(self, kind: str, before: Instant, limit: int) -> Sequence[Key]:
        """See ``Store.due``: taken from a heap and put back, for they stay due until somebody attends to them."""
        heap, found = self._due[kind], list[_Due]()
        while heap and heap[0].at < before and len(found) < limit:
            appointment = heappop(heap)
            slot = self._found.get(appointment.key)
            if slot is not None and (slot.id, slot.record.version) == (appointment.id, appointment.version):
                found.append(appointment)
        for appointment in found:
            heappush(heap, appointment)
        return [appointment.key for appointment in found]

    async def unseal(self, key: Key, part: Part) -> Sealed | None:
        """See ``Store.unseal``."""
        slot = self._found.get(key)
        return None if slot is None else self._seals.get((slot.id, part))

    async def changes(self, limit: int) -> Sequence[LedgerEntry]:
        """See ``Store.changes``."""
        return [self._entries[id_] for id_ in list(self._unsynced)[:limit]]

    async def synced(self, entries: Sequence[LedgerEntry], at: Instant) -> None:
        """See ``Store.synced``."""
        for entry in entries:
            id_ = self._pairs.get(_pair(entry), _NO_RECORD)
            if id_ in self._entries and self._entries[id_].version == entry.version:
                self._entries[id_] = replace(self._entries[id_], sync_timestamp=at)
                self._unsynced.pop(id_, None)

    async def entries(self, question: Question) -> Sequence[LedgerEntry]:
        """See ``Store.entries``."""
        rows = [self._entries[id_] for id_ in sorted(self._entries)]
        match question:
            case Tree(root):
                called = _called(rows, root)
                return [row for row in rows if row.client_correlation_id in called]
            case Initiated(source):
                return [row for row in rows if row.source == source and row.actor == "client"]
            case Stalled(lease_ended_by):
                stalled = [row for row in rows if row.phase in _STALLED or self._has_stopped(row, lease_ended_by)]
                return sorted(stalled, key=lambda row: row.phase_1_timestamp)
            case Find(id_):
                return [row for row in rows if id_ in (row.client_correlation_id, row.server_correlation_id)]
            case Calls(ids):
                return [row for row in rows if row.client_correlation_id in ids]
            case Tail(limit):
                return rows[::-1][:limit]

    def _has_stopped(self, row: LedgerEntry, lease_ended_by: Instant | None) -> bool:
        """Still PROCESSING, though whoever executed it has not been heard of."""
        slot = self._found.get(by_pair(row.client_correlation_id, row.server_correlation_id))
        if lease_ended_by is None or row.phase is not Phase.PROCESSING or slot is None:
            return False
        assert isinstance(slot.record, Intent)
        return (slot.record.lease_until or 0) <= lease_ended_by

    async def reopen(self) -> None:
        """See ``Store.reopen``. Nothing here can be unknown."""

    async def history(self, key: Key) -> Sequence[JournalLine]:
        """See ``Store.history``."""
        slot = self._found.get(key)
        return [] if slot is None else [line for line in self._chained(0) if line.record == slot.id]

    async def journal(self, after: int, limit: int) -> Sequence[JournalLine]:
        """The whole journal, a page at a time."""
        return list(self._chained(after))[:limit]

    def _chained(self, after: int) -> Iterator[JournalLine]:
        """The lines with their hashes, which are made when somebody first looks: a chain in memory proves nothing."""
        for seq in range(len(self._digests) + 1, len(self._lines) + 1):
            previous = self._digests[-1] if self._digests else GENESIS
            self._digests.append(link(previous, seq, *self._lines[seq - 1]))
        for seq in range(after + 1, len(self._lines) + 1):
            yield JournalLine(seq, *self._lines[seq - 1], self._digests[seq - 1])

    async def kept(self, name: str, value: str) -> str:
        """The setting kept under ``name``; ``value`` becomes it if there is none yet."""
        return self._kept.setdefault(name, value)

    async def close(self) -> None:
        """See ``Store.close``. There is nothing to finish."""


def _kind(key: Key) -> str:
    """An index is named after the kind of record it finds."""
    return key.by.partition(".")[0]


def _pair(entry: LedgerEntry) -> tuple[str, str, str]:
    return entry.client_correlation_id, entry.server_correlation_id, entry.actor


def _called(rows: Sequence[LedgerEntry], root: str) -> set[str]:
    """The root and every id that was called below it. Whoever was seen is not looked at again (A-53)."""
    children: defaultdict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.actor == "client":
            children[row.parent_reference_id].append(row.client_correlation_id)
    called, ahead = {root}, [root]
    while ahead:
        fresh = [child for child in children[ahead.pop()] if child not in called]
        called.update(fresh)
        ahead.extend(fresh)
    return called
