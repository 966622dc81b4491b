"""What is durable: rows, ledger rows, sealed parts and the journal. No step of it takes time or fails.

It is what a driver of a real database keeps, and no more: every row has a version that guards its update, a key belongs
to one row, every writer has a row that it moves on, and all lines are one chain. What breaks a guard changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from twophp.core.entry import LEDGER_ID, LedgerEntry, broken_rules, restamped_line
from twophp.core.errors import ConstraintViolation, StoreError
from twophp.core.intent import Intent, Phase
from twophp.core.obligation import Obligation, by_id
from twophp.core.records import Instant, JournalEvent, Key, Record, Sealed
from twophp.kernel.apply import Operations
from twophp.kernel.journal import GENESIS, Link, Writer, new_link
from twophp.kernel.overlay import Slot, Slots
from twophp.ports import MOST_ROWS, JournalLine, Obligations, Part, Purge, Question, Synced, Tally
from twophp.stores.memory_answers import answer, fits

_NO_RECORD: Final = 0


class Conflict(Exception):
    """Somebody else was quicker: what was decided is not decided on what is there now."""


class Taken(Conflict):
    """A key belongs to another record."""


class Row(msgspec.Struct, eq=False, gc=False):
    """One record, and what is kept beside it."""

    id: int
    record: Record
    keys: tuple[Key, ...]
    seals: dict[Part, Sealed] = {}


class WriterRow(msgspec.Struct):
    """How far one handle has come."""

    id: int
    seq: int = 0
    is_closed: bool = False


Written: TypeAlias = Callable[["Database", Operations], None]


class Database:
    """One service's ledger, or one client's."""

    def __init__(self, name: str, clock: Callable[[], Instant], written: Written) -> None:
        self.name = name
        self.clock = clock  # Its machine's.
        self._written = written
        self._next_id = 1
        self.at: Instant = 0  # The latest write.
        self.rows: dict[int, Row] = {}
        self.index: dict[Key, int] = {}
        self.by_kind: dict[str, dict[int, Row]] = {}
        self.entries: dict[int, LedgerEntry] = {}
        self.pairs: dict[tuple[str, str, str], int] = {}
        self.unsynced: dict[int, None] = {}
        self.left: dict[int, None] = {}
        self.writers: list[WriterRow] = []
        self.links: list[Link] = []
        self.lines: list[tuple[int, JournalEvent]] = []  # Each with the record that it is about.
        self.last_line: dict[int, int] = {}  # About each record.
        self.meta: dict[str, str] = {}
        self.business: list[tuple[Any, ...]] = []
        self.owners: dict[str, bool] = {}  # Whether it lives, for those that can be known.

    def new_writer(self) -> WriterRow:
        """A handle was opened: nobody else moves its row."""
        self.writers.append(WriterRow(len(self.writers) + 1))
        return self.writers[-1]

    @staticmethod
    def close_writer(writer: WriterRow) -> None:
        """What it has sent and is still on its way comes too late."""
        writer.is_closed = True

    # Changes.

    def load(self, keys: Iterable[Key]) -> Slots:
        """Copies of the rows under these keys, as they are now."""
        slots: Slots = {}
        for key in keys:
            id_ = self.index.get(key)
            if id_ is not None and key not in slots:
                row = self.rows[id_]
                slot = Slot(row.record, row.keys, id_, row.record.version)
                slots.update(dict.fromkeys(row.keys, slot))
        return slots

    def commit(self, operations: Operations, writer: WriterRow, seq: int) -> None:
        """All of it, if every guard holds; else Conflict, and nothing."""
        self.check(operations)
        if writer.is_closed or writer.seq != seq:
            raise ConstraintViolation("somebody else has closed or moved this writer's row")
        writer.seq += 1
        self._write(operations)
        self._written(self, operations)

    def check(self, operations: Operations) -> None:
        """The guards: the version that was read, and keys that belong to nobody else."""
        freed: set[Key] = set()
        for slot in (*operations.changed, *operations.dropped):
            if not slot.id:
                continue
            row = self.rows.get(slot.id)
            if row is None or row.record.version != slot.stored:
                raise Conflict
            freed.update(row.keys)
        for slot in operations.changed:
            if any(key in self.index and key not in freed for key in slot.keys):
                raise Taken

    def check_entry(self, slot: Slot | None, entry: LedgerEntry) -> None:
        """What no ledger row may break."""
        pair = _pair(entry)
        if broken := broken_rules(entry):
            raise ConstraintViolation(f"{pair}: {broken[0]}")
        is_there = slot is not None and (slot.id in self.entries or slot.entry is not None)
        if (entry.version == 1) is is_there:
            raise StoreError(f"{pair}: a ledger row begins with version 1 and then changes", code="constraint")

    def _write(self, operations: Operations) -> None:
        self.at = max(self.at, operations.at)
        for slot in operations.changed:
            if not slot.id:
                slot.id, self._next_id = self._next_id, self._next_id + 1
        purged = [(self.pairs[_pair(one.entry)], one.line) for one in operations.purges if self._may_purge(one)]
        self._append([*self._by_record(operations), *purged], operations.at)
        for id_, _line in purged:
            del self.left[id_], self.pairs[_pair(self.entries.pop(id_))]
        for slot in {**operations.dropped, **operations.changed}:
            self._forget_keys(slot)
        for slot in operations.changed:
            self._keep(slot)
        for slot in operations.dropped:
            self._drop(slot)
        for synced in operations.synced:
            self._mark(synced)
        for statement in operations.statements:
            self.business.extend(statement.rows)

    @staticmethod
    def _by_record(operations: Operations) -> list[tuple[int, JournalEvent]]:
        return [(_NO_RECORD if slot is None else slot.id, event) for slot, event in operations.lines]

    def _append(self, lines: Sequence[tuple[int, JournalEvent]], at: Instant) -> None:
        if not lines:
            return
        first, linked = len(self.lines) + 1, []
        for number, (record, event) in enumerate(lines, first):
            linked.append((self.last_line.get(record, 0), record, event))
            if record:
                self.last_line[record] = number
        self.lines.extend(lines)
        previous = self.links[-1].hash if self.links else GENESIS
        self.links.append(new_link(previous, first, Writer(1, len(self.links)), linked, at, self._next_id))

    def _forget_keys(self, slot: Slot) -> None:
        row = self.rows.get(slot.id)
        for key in () if row is None else row.keys:
            del self.index[key]

    def _keep(self, slot: Slot) -> None:
        """A record that was dropped again in the same batch still leaves its ledger row."""
        if slot.entry is not None:
            self._write_entry(slot.id, slot.entry)
        if slot.is_dropped:
            if slot.entry is not None:
                self.left[slot.id] = None
            return
        row = self.rows.get(slot.id)
        if row is None:
            row = self.rows[slot.id] = Row(slot.id, slot.record, slot.keys, seals={})
            self.by_kind.setdefault(_kind(slot.keys[0].by), {})[slot.id] = row
        row.record, row.keys = slot.record, slot.keys
        for part, sealed in (slot.seals or {}).items():
            if sealed is None:
                row.seals.pop(part, None)
            else:
                row.seals[part] = sealed
        self.index.update(dict.fromkeys(slot.keys, slot.id))

    def _drop(self, slot: Slot) -> None:
        row = self.rows.pop(slot.id, None)
        if row is not None:
            del self.by_kind[_kind(row.record.keys()[0].by)][slot.id]
        if slot.id in self.entries:
            self.left[slot.id] = None

    def _write_entry(self, id_: int, entry: LedgerEntry) -> None:
        if self.pairs.setdefault(_pair(entry), id_) != id_:
            raise ConstraintViolation(f"{_pair(entry)}: there is a row for it")
        self.entries[id_] = entry
        self.unsynced[id_] = None

    def _mark(self, synced: Synced) -> None:
        for entry in synced.entries:
            id_ = self.pairs.get(_pair(entry), _NO_RECORD)
            if id_ in self.entries and self.entries[id_].version == entry.version:
                self.entries[id_] = replace(self.entries[id_], sync_timestamp=synced.at)
                self.unsynced.pop(id_, None)

    def _may_purge(self, purge: Purge) -> bool:
        id_ = self.pairs.get(_pair(purge.entry), _NO_RECORD)
        return id_ in self.left and id_ not in self.unsynced and self.entries[id_] == purge.entry

    # Questions.

    def read(self, keys: Sequence[Key]) -> list[Any]:
        """The records under these keys, or None."""
        return [None if (id_ := self.index.get(key)) is None else self.rows[id_].record for key in keys]

    def due(self, kind: str, before: Instant, limit: int) -> list[Key]:
        """Most overdue first."""
        rows = self.by_kind.get(kind, {}).values()
        found = [(at, row.id, row.keys[0]) for row in rows if (at := row.record.due_at) is not None and at < before]
        return [key for _at, _id, key in sorted(found)[:limit]]

    def of(self, kind: str) -> list[Any]:
        """All records of a kind, oldest first."""
        return [row.record for row in self.by_kind.get(kind, {}).values()]

    def owners_of(self, kind: str) -> list[str]:
        """Owners of what is unfinished."""
        owners = (getattr(record, "owner", None) for record in self.of(kind))
        return list(dict.fromkeys(owner for owner in owners if owner))

    def owned(self, kind: str, owner: str, limit: int) -> list[Key]:
        """What is this owner's."""
        rows = self.by_kind.get(kind, {}).values()
        return [row.keys[0] for row in rows if getattr(row.record, "owner", None) == owner][:limit]

    def unseal(self, key: Key, part: Part) -> Sealed | None:
        """A sealed part."""
        id_ = self.index.get(key)
        return None if id_ is None else self.rows[id_].seals.get(part)

    def ask(self, question: Question) -> Sequence[LedgerEntry]:
        """Ledger rows."""
        return answer([self.entries[id_] for id_ in sorted(self.entries)], question, self._has_stopped)

    def _has_stopped(self, row: LedgerEntry, lease_ended_by: Instant | None) -> bool:
        found = self.intent(row.server_correlation_id)
        if lease_ended_by is None or row.phase is not Phase.PROCESSING or found is None:
            return False
        return (found.lease_until or 0) <= lease_ended_by

    def history(self, key: Key) -> list[JournalLine]:
        """The lines about one record."""
        id_ = self.index.get(key, -1)
        return [line for line in self.journal(0, len(self.lines)) if self.lines[line.seq - 1][0] == id_]

    def journal(self, after: int, limit: int) -> list[JournalLine]:
        """The lines after this one."""
        hashes = [link.hash for link in self.links for _line in range(link.count)]
        found = enumerate(zip(self.lines, hashes, strict=True), 1)
        return [JournalLine(number, event, hash_) for number, ((_record, event), hash_) in found][after : after + limit]

    def obligations(self, wanted: Obligations) -> list[Obligation]:
        """Newest first."""
        end = self.index.get(by_id(wanted.before), self._next_id) if wanted.before else self._next_id
        rows = reversed(self.by_kind.get("obligation", {}).items())
        found: list[Any] = [row.record for id_, row in rows if id_ < end]
        return [one for one in found if fits(one, wanted)][: min(wanted.limit, MOST_ROWS)]

    def tally(self, since: Instant) -> list[Tally]:
        """How many there are of each."""
        found = [one for one in self.of("obligation") if one.reserved_at >= since]
        counts = Counter((one.flow, one.state.value, one.resolution) for one in found)
        return [Tally(*what, counts[what]) for what in sorted(counts)]

    def settled(self, before: Instant, limit: int) -> list[Key]:
        """Obligations that have ended."""
        ended = (one for one in self.of("obligation") if one.settled_at is not None and one.settled_at < before)
        return [one.keys()[0] for one in ended][:limit]

    def outlived(self, before: Instant, limit: int) -> list[LedgerEntry]:
        """Ledger rows that may be purged."""
        rows = [(row.sync_timestamp, id_) for id_ in self.left if (row := self.entries[id_]).sync_timestamp is not None]
        return [self.entries[id_] for at, id_ in sorted(rows) if at < before][:limit]

    def intent(self, server_correlation_id: str) -> Intent | None:
        """For the checks: what is durable of it."""
        intents: list[Intent] = self.of("intent")
        return next((one for one in intents if one.server_correlation_id == server_correlation_id), None)

    def restamp(self, issued: str, at: Instant) -> None:
        """Another GUID for the ledger, and the line that says so."""
        self.entries = {id_: replace(entry, service_ledger_id=issued) for id_, entry in self.entries.items()}
        before, self.meta[LEDGER_ID] = self.meta.get(LEDGER_ID, ""), issued
        self._append([(_NO_RECORD, restamped_line(before, issued, at))], at)


def _kind(by: str) -> str:
    return by.partition(".")[0]


def _pair(entry: LedgerEntry) -> tuple[str, str, str]:
    return entry.client_correlation_id, entry.server_correlation_id, entry.actor
