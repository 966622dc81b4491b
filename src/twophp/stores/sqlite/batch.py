"""The SQLite driver of the kernel: load what a batch reads, apply its commands, write what they change.

Decisions are made inside the write transaction against what is in the database *and* what earlier commands of the same
batch have changed, so no decision can be out of date. Every UPDATE is guarded by the version that was read all the
same: the count of changed rows tells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import apsw
import msgspec
from msgspec.structs import astuple

from twophp.core.errors import ConstraintViolation, RecordTampered, StoreError, TwoPHPError
from twophp.core.intent import SETTLED, Intent
from twophp.core.records import JournalEvent, Key
from twophp.kernel.apply import Applied, Failure, Operations, Outcome, Snapshot, apply, look
from twophp.kernel.journal import Chain
from twophp.kernel.overlay import Slot
from twophp.ports import Command, Purge, Statement, Synced
from twophp.stores.clock import StoreTime
from twophp.stores.sqlite.connection import is_outside_fault, translate
from twophp.stores.sqlite.known import Head, Known
from twophp.stores.sqlite.sql import sql
from twophp.stores.sqlite.table import Row
from twophp.stores.sqlite.tables import TABLE_OF_KEY, TABLE_OF_RECORD, WHOLE_KEYS, entry_changes

_encode: Final = msgspec.json.Encoder().encode
_WRITE_HEAD: Final = sql("write_head")
_INSERT_ENTRY: Final = sql("insert_entry")
_UPDATE_ENTRY: Final = sql("update_entry")
_KEEP_SEAL: Final = sql("keep_seal")
_DESTROY_SEAL: Final = sql("destroy_seal")
_DESTROY_SEALS: Final = sql("destroy_seals")
_APPEND_JOURNAL: Final = sql("append_journal")
_MARK_SYNCED: Final = sql("mark_synced")
_PURGE_ENTRY: Final = sql("purge_entry")
_LAST_STATE: Final = sql("last_state_of")
_ADVANCE_SYNCED: Final = Statement(sql=sql("advance_synced"), rows=[()])
# What would end the transaction, or reach beyond it: a PRAGMA stays when everything else is rolled back.
_NOT_FOR_STATEMENTS: Final = frozenset(
    {apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT, apsw.SQLITE_PRAGMA, apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH}
)
_UPDATES: Final = frozenset({_UPDATE_ENTRY, *(table.update for table in TABLE_OF_RECORD.values())})
_NO_RECORD: Final = 0  # The journal's record id for history that belongs to no single record.


class Batch:
    """Runs inside an open write transaction and leaves COMMIT to its caller."""

    def __init__(self, connection: apsw.Connection, time: StoreTime, known: Known) -> None:
        self._connection = connection
        self._known = known
        self._execute = connection.execute
        self._executemany = connection.executemany
        self._count_changes = connection.total_changes
        seq, digest, at, self._next_id = known.head()
        self._chain = Chain(seq, digest)
        self.now = time.reach(at)
        self._written: Iterable[Slot] = ()
        # What frees a unique key goes before what may take it.
        self._frees: defaultdict[str, list[Row]] = defaultdict(list)
        self._takes: defaultdict[str, list[Row]] = defaultdict(list)
        self.changed = False

    def run(self, commands: Sequence[Command]) -> list[Outcome]:
        """Decide every command, write what was decided, and say what to answer once it is durable.

        Raises what the database raises; then nothing is kept.
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
        """Decide every command by itself on what is there, and write nothing: see ``kernel.apply.look``."""
        return look(self._loaded(commands), commands, self.now, refuse, must_be_there=must_be_there)

    def flushed(self) -> None:
        """COMMIT is through: what was written is known."""
        self._known.flushed(self._written, self._head())

    def _loaded(self, commands: Sequence[Command]) -> Snapshot:
        self._known.ask_again(key for command in commands for key in command.keys)
        slots, has = self._known.slots, self._known.has
        wanted: defaultdict[str, list[Any]] = defaultdict(list)
        for command in commands:
            for key in command.keys:
                if not has(key):
                    wanted[key.by].append(key.values if key.by in WHOLE_KEYS else key.values[0])
        refused: dict[Key, Failure] = {}
        for by, all_values in wanted.items():
            table = TABLE_OF_KEY[by]
            for row in self._execute(table.reads[by], (_encode(all_values).decode(),)):
                record = table.record(row)
                keys = record.keys()
                if has(keys[0]):  # It may be known, and have been found beside what was wanted.
                    continue
                if isinstance(record, Intent) and (failure := self._differs_from_history(row[0], record)) is not None:
                    refused.update(dict.fromkeys(keys, failure))
                    continue
                slots.update(dict.fromkeys(keys, Slot(record, keys, id=row[0], stored=record.version)))
        return Snapshot(slots, refused)

    def _differs_from_history(self, id_: int, intent: Intent) -> Failure | None:
        """Whether an open intent was set back by hand: executed, or settled, once more it would happen twice.

        Only what is read from the file is looked at, not what this handle wrote itself, so a handshake pays nothing.
        """
        if intent.phase in SETTLED:
            return None
        last: str | None = self._execute(_LAST_STATE, (id_,)).get
        if last == intent.phase:
            return None
        message = f"intent {intent.server_correlation_id} is {intent.phase}, and its history ends with {last}"
        return Failure(RecordTampered(message))

    def _write(self, operations: Operations) -> None:
        self.now = operations.at
        purged = [line for purge in operations.purges for line in self._purge(purge)]
        self._collect(operations)
        lines = [(_NO_RECORD if slot is None else slot.id, event) for slot, event in operations.lines]
        if rows := self._chain.add(lines + purged):
            self._takes[_APPEND_JOURNAL] = rows
        for statements in (self._frees, self._takes):
            for statement, rows in statements.items():
                before = self._count_changes()
                self._executemany(statement, rows)
                if statement in _UPDATES and self._count_changes() - before != len(rows):
                    raise StoreError("what is not there, or has changed, cannot change", code="bad_change")
        if operations.synced:
            operations.statements.extend(_marks(operations.synced))
        if operations.statements:
            self._run_extra(operations.statements)
        self._execute(_WRITE_HEAD, self._head())
        self._frees, self._takes = defaultdict(list), defaultdict(list)  # Not kept over the COMMIT.

    def _head(self) -> Head:
        return Head(self._chain.seq, self._chain.hash, self.now, self._next_id)

    def _purge(self, purge: Purge) -> Iterable[tuple[int, JournalEvent]]:
        """Forget the row, if it is there as it was seen, and say which line tells of it."""
        row = purge.entry
        facts = row.client_correlation_id, row.server_correlation_id, row.actor, row.version, row.sync_timestamp
        id_ = self._execute(_PURGE_ENTRY, facts).get
        if id_ is None:
            return ()
        self.now = max(self.now, purge.line.observed_at)
        return ((id_, purge.line),)

    def _collect(self, operations: Operations) -> None:
        """The rows to write. A record that was dropped again still leaves its ledger row as it was put last."""
        frees, takes = self._frees, self._takes
        for slot in operations.dropped:
            if slot.stored:
                frees[TABLE_OF_RECORD[type(slot.record)].delete].append((slot.id,))
                frees[_DESTROY_SEALS].append((slot.id,))
        for slot in operations.changed:
            record, entry, table = slot.record, slot.entry, TABLE_OF_RECORD[type(slot.record)]
            if not slot.id:
                slot.id, self._next_id = self._next_id, self._next_id + 1
            id_ = slot.id
            if slot.is_dropped:
                pass
            elif slot.stored:
                frees[table.update].append((*table.changes(record), id_, slot.stored))
            else:
                takes[table.insert].append((id_, *table.row(record)))
            if entry is not None:
                if slot.entry_is_new:
                    takes[_INSERT_ENTRY].append((id_, *astuple(entry)))
                else:
                    takes[_UPDATE_ENTRY].append((*entry_changes(entry), id_))
            if slot.seals and not slot.is_dropped:
                self._collect_seals(slot)

    def _collect_seals(self, slot: Slot) -> None:
        for part, sealed in (slot.seals or {}).items():
            if sealed is None:
                self._frees[_DESTROY_SEAL].append((slot.id, part))
            else:
                self._takes[_KEEP_SEAL].append((slot.id, part, sealed))

    def _run_extra(self, statements: Sequence[Statement]) -> None:
        """What others wrote shares our transaction, so it may not end it: half a batch would be durable.

        Nor may it leave a reference open until COMMIT, where the whole batch would fail for it.
        """
        self._connection.authorizer = _keeps_the_transaction
        try:
            for extra in statements:
                for _row in self._executemany(extra.sql, extra.rows):
                    pass  # Nobody wants it (RETURNING), but only then it goes on with the next.
        finally:
            self._connection.authorizer = None
        if self._connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0]:
            raise ConstraintViolation("the statements leave a foreign key without its row")

    def _try(self, applied: Applied) -> None:
        """After all rows are written, which the statements on trial would meet."""
        for place, statements in applied.trials.items():
            if (refused := self._tried(statements)) is not None:
                applied.answers[place] = refused

    def _tried(self, statements: Sequence[Statement]) -> Failure | None:
        """Run them and undo them; what refuses them is this caller's alone, unless it has ended the transaction."""
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
    return [Statement(sql=_MARK_SYNCED, rows=rows), _ADVANCE_SYNCED]


def _keeps_the_transaction(operation: int, *_about: str | None) -> int:
    """SQLite asks when it prepares a statement, and again for those it has prepared before."""
    return apsw.SQLITE_DENY if operation in _NOT_FOR_STATEMENTS else apsw.SQLITE_OK
