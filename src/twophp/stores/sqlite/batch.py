"""The SQLite driver of the kernel: load what a batch reads, apply its commands, write what they change.

Decisions are made inside the write transaction against what is in the database *and* what earlier commands of the same
batch have changed, so no decision can be out of date. Every UPDATE is guarded by the version that was read all the
same: the count of changed rows tells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import apsw
import msgspec
from msgspec.structs import astuple, replace

from twophp.core.entry import LEDGER_ID, LedgerEntry
from twophp.core.errors import ConstraintViolation, RecordTampered, StoreError, TwoPHPError
from twophp.core.intent import SETTLED, Intent
from twophp.core.records import JournalEvent, Key, Sealed
from twophp.kernel.apply import Applied, Failure, Operations, Outcome, Snapshot, apply, look
from twophp.kernel.journal import new_link
from twophp.kernel.overlay import Slot
from twophp.ports import Command, Part, Purge, Statement, Synced
from twophp.stores.clock import StoreTime
from twophp.stores.sqlite import hashes
from twophp.stores.sqlite.connection import is_outside_fault, translate
from twophp.stores.sqlite.record_cache import JournalHead, RecordCache
from twophp.stores.sqlite.sql import sql
from twophp.stores.sqlite.table import Row, Table
from twophp.stores.sqlite.tables import (
    HASHED_KEYS,
    INTENT_HASH,
    INTENT_PLACE,
    INTENTS,
    TABLE_OF_KEY,
    TABLE_OF_RECORD,
    WHOLE_KEYS,
    entry_changes,
)

_encode: Final = msgspec.json.Encoder().encode
_WRITE_HEAD: Final = sql("write_head")
_INSERT_ENTRY: Final = sql("insert_entry")
_UPDATE_ENTRY: Final = sql("update_entry")
_KEEP_SEAL: Final = sql("keep_seal")
_DESTROY_SEAL: Final = sql("destroy_seal")
_DESTROY_SEALS: Final = sql("destroy_seals")
_APPEND_LINK: Final = sql("append_link")
_WRITE_WRITER: Final = sql("write_writer")
_KEEP_META: Final = sql("keep_meta")
_LEAVE_ENTRY: Final = sql("leave_entry")
_UPDATE_INTENT: Final = sql("update_intent")
_UPDATE_SYNCED_INTENT: Final = sql("update_synced_intent")
_RENEW_INTENT: Final = sql("renew_intent")
_FORGET_INTENT: Final = sql("forget_intent")
_MARKS: Final = (sql("mark_carried_synced"), sql("mark_server_synced"))
_PURGE_ENTRY: Final = sql("purge_entry")
_PURGE_FORGOTTEN: Final = sql("purge_forgotten")
_LAST_STATE: Final = sql("last_state_of")
_OLD_STATE: Final = sql("old_state_of")
INLINE_BYTES: Final = 1_500
"""A larger sealed part has a row of its own: SQLite writes the whole row with every update of an intent."""
# Operations that would end the transaction, or reach beyond it: a PRAGMA stays when the transaction is rolled back.
_NOT_FOR_STATEMENTS: Final = frozenset(
    {apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT, apsw.SQLITE_PRAGMA, apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH}
)
_UPDATES: Final = frozenset({_UPDATE_ENTRY, _RENEW_INTENT, *(table.update for table in TABLE_OF_RECORD.values())})
_NO_RECORD: Final = 0  # The journal's record id for history that belongs to no single record.
_NOT_AS_READ: Final = "what is not there, or has changed, cannot change"
_PARTS: Final[tuple[Part, ...]] = ("payload", "response")
_Line: TypeAlias = tuple[int, int, JournalEvent]
"""A line with the number of the one before it about the same record, and the record's id."""


class Batch:
    """Runs inside an open write transaction and leaves COMMIT to its caller."""

    def __init__(self, connection: apsw.Connection, time: StoreTime, known: RecordCache) -> None:
        self._connection = connection
        self._known = known
        self._execute = connection.execute
        self._executemany = connection.executemany
        self._count_changes = connection.total_changes
        self._last_line, self._hash, at, self._next_id = known.head()
        self.now = time.reach(at)
        self._written: Iterable[Slot] = ()
        # Statements that free a unique key run before those that may take it.
        self._frees: defaultdict[str, list[Row]] = defaultdict(list)
        self._takes: defaultdict[str, list[Row]] = defaultdict(list)
        self._hashes: dict[str, int] = {}  # Of the client ids in this batch.
        self._places: defaultdict[int, set[int]] = defaultdict(set)  # Taken, by the hash of the client's id.
        self._has_kept_settings = False
        self.changed = False

    def run(self, commands: Sequence[Command]) -> list[Outcome]:
        """Decide every command, write the changes, and return the answers to give once they are durable.

        Raises what the database raises; then the caller has to roll back.
        """
        applied = apply(self._loaded(commands), commands, self.now)
        if not applied.operations.is_empty:
            self.changed = True
            self._written = applied.operations.changed
            self._write(applied.operations)
        if applied.trials:
            self._try(applied)
        return applied.answers

    def look(self, commands: Sequence[Command], refuse: Callable[[], Failure], *, must_be_there: bool) -> list[Outcome]:
        """Decide every command by itself on the stored records, and write nothing: see ``kernel.apply.look``."""
        return look(self._loaded(commands), commands, self.now, refuse, must_be_there=must_be_there)

    def flushed(self) -> None:
        """Call it after COMMIT: the cache keeps what was written."""
        self._known.flushed(self._written, self._head())
        self._known.has_settings |= self._has_kept_settings

    def _loaded(self, commands: Sequence[Command]) -> Snapshot:
        known = self._known
        if known.has_doubts:
            known.ask_again(key for command in commands for key in command.keys)
        refused: dict[Key, Failure] = {}
        for by, wanted in self._unknown(commands).items():
            table = TABLE_OF_KEY[by]
            for row in self._execute(table.reads[by], (_encode(wanted).decode(),)):
                self._load(table, row, refused)
        return Snapshot(known.slots, refused)

    def _unknown(self, commands: Sequence[Command]) -> dict[str, list[Any]]:
        """What is to be looked for, by the kind of key."""
        slots, has = self._known.slots, self._known.has
        wanted: defaultdict[str, list[Any]] = defaultdict(list)
        for command in commands:
            for key in command.keys:
                if key in slots or has(key):
                    continue
                by, values = key.by, key.values
                if by in HASHED_KEYS:
                    wanted[by].append(self._hashed(values[0]))
                else:
                    wanted[by].append(values if by in WHOLE_KEYS else values[0])
        return wanted

    def _load(self, table: Table, row: Row, refused: dict[Key, Failure]) -> None:
        record = table.record(row)
        keys = record.keys()
        slot = Slot(record, keys, row[0], record.version)
        if table.line_column:
            slot.last_line = row[table.line_column]
        if table is INTENTS:
            slot.place = row[INTENT_PLACE]
            self._places[row[INTENT_HASH]].add(slot.place)
        if self._known.has(keys[0]):  # Hashes collide: a cached record may be found beside the wanted one.
            return
        if table is INTENTS and (failure := self._differs_from_history(slot)) is not None:
            refused.update(dict.fromkeys(keys, failure))
            return
        self._known.slots.update(dict.fromkeys(keys, slot))

    def _hashed(self, client_correlation_id: str) -> int:
        """The hash of the id. It is kept, because the insert of a new intent needs it once more."""
        hashed = self._hashes.get(client_correlation_id)
        if hashed is None:
            hashed = self._hashes[client_correlation_id] = hashes.client_hash(client_correlation_id)
        return hashed

    def _differs_from_history(self, slot: Slot) -> Failure | None:
        """A failure if a direct edit has set an open intent back: executed again, its effects would happen twice.

        Only an intent that is read from the file is checked, not one that this handle wrote: a handshake pays nothing.
        """
        intent = slot.record
        assert isinstance(intent, Intent)
        if intent.phase in SETTLED:
            return None
        if slot.last_line:
            last: str | None = self._execute(_LAST_STATE, (slot.last_line, slot.id)).get
        else:
            last = self._execute(_OLD_STATE, (slot.id,)).get
        if last == intent.phase:
            return None
        message = f"intent {intent.server_correlation_id} is {intent.phase}, and its history ends with {last}"
        return Failure(RecordTampered(message))

    def _write(self, operations: Operations) -> None:
        self.now = operations.at
        purged = [line for purge in operations.purges for line in self._purge(purge)]
        for slot in operations.changed:
            if not slot.id:
                slot.id, self._next_id = self._next_id, self._next_id + 1
        self._add_link([*self._numbered(operations.lines), *purged])
        self._collect(operations)
        if _UPDATE_INTENT in self._frees:
            self._update_intents(self._frees.pop(_UPDATE_INTENT))
        for statements in (self._frees, self._takes):
            for statement, rows in statements.items():
                before = self._count_changes()
                self._executemany(statement, rows)
                if statement in _UPDATES and self._count_changes() - before != len(rows):
                    raise StoreError(_NOT_AS_READ, code="bad_change")
        if operations.synced:
            operations.statements.extend(_marks(operations.synced))
        if operations.statements:
            self._run_extra(operations.statements)
        self._frees, self._takes = defaultdict(list), defaultdict(list)  # Not kept over the COMMIT.

    def _head(self) -> JournalHead:
        return JournalHead(self._last_line, self._hash, self.now, self._next_id)

    def _numbered(self, lines: Iterable[tuple[Slot | None, JournalEvent]]) -> Iterable[_Line]:
        """Each line with the one before it about the same record, which points to this one from now on."""
        for number, (slot, event) in enumerate(lines, self._last_line + 1):
            if slot is None:
                yield 0, _NO_RECORD, event
            else:
                yield slot.last_line, slot.id, event
                slot.last_line = number

    def _add_link(self, lines: list[_Line]) -> None:
        """Chain the lines of this batch to the last link. Without a line, only time and next id in the head change."""
        if not lines:
            self._execute(_WRITE_HEAD, (self.now, self._next_id))
            return
        known = self._known
        link = new_link(self._hash, self._last_line + 1, known.writer(), lines, self.now, self._next_id)
        self._execute(_APPEND_LINK, (*astuple(link)[:-1], link.lines.decode()))
        self._execute(_WRITE_WRITER, known.linked(link))
        self._last_line, self._hash = self._last_line + len(lines), link.hash

    def _purge(self, purge: Purge) -> Iterable[_Line]:
        """Delete the row, if it is unchanged since it was read, and return the line that records it."""
        row = purge.entry
        facts = row.client_correlation_id, row.server_correlation_id, row.actor, row.version, row.sync_timestamp
        for statement in (_PURGE_FORGOTTEN, _PURGE_ENTRY):
            if found := list(self._execute(statement, facts)):
                ((id_, last_line),) = found
                self.now = max(self.now, purge.line.observed_at)
                return ((last_line, id_, purge.line),)
        return ()

    def _collect(self, operations: Operations) -> None:
        """The rows to write. A record that was dropped again still leaves its ledger row as it was put last."""
        for slot in operations.changed:
            if type(slot.record) is Intent:
                self._collect_intent(slot, slot.record)
            else:
                self._collect_record(slot, TABLE_OF_RECORD[type(slot.record)])
        for slot in operations.dropped:
            self._collect_drop(slot, TABLE_OF_RECORD[type(slot.record)])

    def _collect_record(self, slot: Slot, table: Table) -> None:
        """A record with a table of its own, and the ledger row that it carries."""
        entry, takes = slot.entry, self._takes
        if not slot.is_dropped:
            pointer = (slot.last_line,) if table.line_column else ()
            if slot.stored:
                self._frees[table.update].append((*table.changes(slot.record), *pointer, slot.id, slot.stored))
            else:
                takes[table.insert].append((slot.id, *table.row(slot.record), *pointer))
            for part, sealed in (slot.seals or {}).items():
                self._collect_seal(slot.id, part, sealed)
        if entry is not None and slot.entry_is_new:
            takes[_INSERT_ENTRY].append((slot.id, *astuple(entry)))
        elif entry is not None:
            takes[_UPDATE_ENTRY].append((*entry_changes(entry), slot.id))

    def _collect_drop(self, slot: Slot, table: Table) -> None:
        """Its ledger row stays: an intent's as its own row, any other's with a pointer to its history."""
        if table.line_column and table is not INTENTS:
            self._takes[_LEAVE_ENTRY].append((slot.last_line, slot.id))
        if slot.stored:
            if table is INTENTS:
                self._frees[_FORGET_INTENT].append((slot.id,))
            self._frees[table.delete].append((slot.id,))
            self._frees[_DESTROY_SEALS].append((slot.id,))

    def _collect_intent(self, slot: Slot, intent: Intent) -> None:
        """Its row is its ledger row as well, so one that is in the ledger stays when it is dropped."""
        entry, seals = slot.entry, slot.seals or {}
        if entry is not None and (entry.actor != "server" or entry.target is not None):
            raise ConstraintViolation(f"{entry.server_correlation_id}: an intent's ledger row is the server's")
        if entry is not None and not (self._known.has_settings or self._has_kept_settings):
            self._keep_settings(entry)
        if slot.is_dropped and entry is None:
            return
        payload, response = self._inline(slot, seals) if seals else (None, None)
        if slot.stored:
            parts = "payload" in seals, payload, "response" in seals, response
            version = 0 if entry is None else entry.version
            row = (*INTENTS.changes(intent), version, slot.last_line, *parts, slot.id, slot.stored)
            self._frees[_RENEW_INTENT if entry is None else _UPDATE_INTENT].append(row)
            return
        version, number, place = 0 if entry is None else entry.version, self._hashed(intent.client_correlation_id), None
        if slot.is_dropped:
            intent, payload, response = replace(intent, owner=None, lease_until=None, due_at=None), None, None
        else:
            place = slot.place = self._free_place(number, intent.principal)
        more = version, None, slot.last_line, number, place, slot.is_dropped, payload, response
        self._takes[INTENTS.insert].append((slot.id, *INTENTS.row(intent), *more))

    def _free_place(self, number: int, principal: str) -> int:
        """Where the key stands in its index. Where another key has both hashes as well, the next number is taken."""
        taken, place = self._places[number], hashes.who_hash(principal)
        while place in taken:
            place += 1
        taken.add(place)
        return place

    def _inline(self, slot: Slot, seals: Mapping[Part, Sealed | None]) -> list[Sealed | None]:
        """What the intent's own row keeps of payload and response. A large part gets a row of its own."""
        kept: list[Sealed | None] = []
        for part in _PARTS:
            sealed = seals.get(part)
            is_small = sealed is not None and len(sealed) <= INLINE_BYTES
            kept.append(sealed if is_small else None)
            if part in seals and not is_small and not slot.is_dropped:
                self._collect_seal(slot.id, part, sealed)
        return kept

    def _collect_seal(self, id_: int, part: Part, sealed: Sealed | None) -> None:
        if sealed is None:
            self._frees[_DESTROY_SEAL].append((id_, part))
        else:
            self._takes[_KEEP_SEAL].append((id_, part, sealed))

    def _keep_settings(self, entry: LedgerEntry) -> None:
        """Who writes the rows is a setting of the file, which the ledger's rows are read with."""
        rows = [("service", entry.source), (LEDGER_ID, entry.service_ledger_id)]
        self._executemany(_KEEP_META, rows)
        self._has_kept_settings = True

    def _update_intents(self, rows: list[Row]) -> None:
        """Update first the rows that are not synced, which keep their place in that index; then the others."""
        before = self._count_changes()
        self._executemany(_UPDATE_INTENT, rows)
        if self._count_changes() - before != len(rows):
            self._executemany(
                _UPDATE_SYNCED_INTENT, rows
            )  # A row that the first statement updated no longer has the version that the second asks for.
            if self._count_changes() - before != len(rows):
                raise StoreError(_NOT_AS_READ, code="bad_change")

    def _run_extra(self, statements: Sequence[Statement]) -> None:
        """Run a caller's SQL in our transaction. It must not end the transaction: half a batch would be durable.

        It must not leave a deferred reference open either: COMMIT would fail, and with it the whole batch.
        """
        self._connection.authorizer = _keeps_the_transaction
        try:
            for extra in statements:
                for _row in self._executemany(extra.sql, extra.rows):
                    pass  # The rows of RETURNING are dropped, but apsw runs the next statement only once they are read.
        finally:
            self._connection.authorizer = None
        if self._connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0]:
            raise ConstraintViolation("the statements leave a foreign key without its row")

    def _try(self, applied: Applied) -> None:
        """Run the trials after all rows are written, because the real statements would meet those rows."""
        for place, statements in applied.trials.items():
            if (refused := self._tried(statements)) is not None:
                applied.answers[place] = refused

    def _tried(self, statements: Sequence[Statement]) -> Failure | None:
        """Run the statements and undo them. Their error is this caller's alone, unless it has ended the transaction."""
        failure: Failure | None = None
        self._execute(sql("begin_trial"))
        try:
            self._run_extra(statements)
        except Exception as error:
            if is_outside_fault(error) or not self._connection.in_transaction:
                raise
            failure = Failure(translate(error) if isinstance(error, apsw.Error) else _not_writable(error))
        self._execute(sql("undo_trial"))
        self._execute(sql("end_trial"))
        return failure


def _not_writable(error: Exception) -> TwoPHPError:
    if isinstance(error, TwoPHPError):
        return error
    return StoreError(f"the change cannot be written: {error!r}", code="bad_change")


def _marks(arrived: Iterable[Synced]) -> list[Statement]:
    rows = [
        (one.at, row.client_correlation_id, row.server_correlation_id, row.actor, row.version)
        for one in arrived
        for row in one.entries
    ]
    return [Statement(sql=mark, rows=rows) for mark in _MARKS]


def _keeps_the_transaction(operation: int, *_about: str | None) -> int:
    """SQLite asks when it prepares a statement, and again for those it has prepared before."""
    return apsw.SQLITE_DENY if operation in _NOT_FOR_STATEMENTS else apsw.SQLITE_OK
