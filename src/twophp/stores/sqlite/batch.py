"""One transaction for everybody who waits: read all keys, decide in order of arrival, write all changes.

Decisions are made inside the write transaction against what is in the database *and* what earlier decisions of the
same batch have changed, so no decision can be out of date and no write can conflict. A record that several decisions
touched is written once, as it is in the end; its history is written line by line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import apsw
import msgspec
from msgspec.structs import astuple

from twophp.core.errors import ConstraintViolation, RecordTampered, StoreError, TwoPHPError
from twophp.core.intent import SETTLED, Intent
from twophp.core.records import JournalEvent, Key, Sealed
from twophp.ports import Change, Decide, Part, Purge, Put, Statement, Synced
from twophp.stores.clock import StoreTime
from twophp.stores.journal import hash_line
from twophp.stores.sqlite.connection import is_outside_fault, translate
from twophp.stores.sqlite.known import Head, Known, Slot
from twophp.stores.sqlite.sql import sql
from twophp.stores.sqlite.table import Row
from twophp.stores.sqlite.tables import TABLE_OF_KEY, TABLE_OF_RECORD, WHOLE_KEYS, entry_changes
from twophp.stores.view import View

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


class Done(Protocol):
    """Whom to tell: asyncio's future, or what a thread waits for."""

    def done(self) -> bool:
        """Whether it was told, or no longer wants to be."""
        ...

    def set_result(self, result: Any, /) -> None:
        """It is durable, and this is the answer."""
        ...

    def set_exception(self, exception: Exception, /) -> None:
        """It is not, or nobody knows."""
        ...


Job: TypeAlias = tuple[Sequence[Key], Decide, Done]
"""One caller's wish: what to read, how to decide, whom to tell."""


class Failure:
    """What to raise to a caller instead of an answer."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        # The one exception that a future cannot carry.
        self.error = RuntimeError(f"decide raised {error!r}") if isinstance(error, StopIteration) else error


Outcome: TypeAlias = Any | Failure


class Batch:
    """Runs inside an open write transaction and leaves COMMIT to its caller."""

    def __init__(self, connection: apsw.Connection, time: StoreTime, known: Known) -> None:
        self._connection = connection
        self._known = known
        self._slots = known.slots
        self._execute = connection.execute
        self._executemany = connection.executemany
        self._count_changes = connection.total_changes
        self._seq, self._hash, at, self._next_id = known.head()
        self.now = time.reach(at)
        # What frees a unique key goes before what may take it.
        self._frees: defaultdict[str, list[Row]] = defaultdict(list)
        self._takes: defaultdict[str, list[Row]] = defaultdict(list)
        self._statements: list[Statement] = []  # In their callers' order, which is theirs to choose.
        self._dirty: dict[Slot, None] = {}
        self._refused: dict[Key, Failure] = {}  # Records that nobody may act on.
        self._lines: list[Row] = []
        self.changed = False

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Decide every job, write what was decided, and say what to answer once it is durable.

        Raises what the database raises; then nothing is kept.
        """
        self._read(jobs)
        view = View((), self._slots, self.now)
        outcomes: list[Outcome] = []
        trials: dict[int, tuple[Statement, ...]] = {}
        for keys, decide, _done in jobs:
            if self._refused and (failure := self._refusal(keys)) is not None:
                outcomes.append(failure)
                continue
            view.keys = keys
            try:
                change = decide(view)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this caller's alone.
                outcomes.append(Failure(error))
                continue
            if change.trial:
                trials[len(outcomes)] = change.trial
            outcomes.append(change.answer)
            if change.puts or change.drops or change.journal or change.statements or change.synced or change.purges:
                self._apply(change)
        if self.changed:
            self._write()
        for place, statements in trials.items():  # After the others' rows, which they would meet.
            if (refused := self._tried(statements)) is not None:
                outcomes[place] = refused
        return outcomes

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

    def look(self, jobs: Sequence[Job], refuse: Callable[[], Failure], *, must_be_there: bool) -> list[Outcome]:
        """Decide every job by itself on what is there, and write nothing: whoever would change something is refused.

        With ``must_be_there`` so is whoever finds no record.
        """
        self._read(jobs)
        view = View((), self._slots, self.now)
        outcomes: list[Outcome] = []
        for keys, decide, _done in jobs:
            if self._refused and (failure := self._refusal(keys)) is not None:
                outcomes.append(failure)
                continue
            view.keys = keys
            if must_be_there and all(view.get(key) is None for key in keys):
                outcomes.append(refuse())
                continue
            try:
                change = decide(view)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this caller's alone.
                outcomes.append(Failure(error))
                continue
            outcomes.append(refuse() if _writes(change) else change.answer)
        return outcomes

    def flushed(self) -> None:
        """COMMIT is through: what was written is known."""
        self._known.flushed(self._dirty, self._head())

    def _read(self, jobs: Sequence[Job]) -> None:
        slots, has = self._slots, self._known.has
        wanted: defaultdict[str, list[Any]] = defaultdict(list)
        for keys, _decide, _done in jobs:
            for key in keys:
                if not has(key):
                    wanted[key.by].append(key.values if key.by in WHOLE_KEYS else key.values[0])
        for by, all_values in wanted.items():
            table = TABLE_OF_KEY[by]
            for row in self._execute(table.reads[by], (_encode(all_values).decode(),)):
                record = table.record(row)
                keys = record.keys()
                if has(keys[0]):  # It may be known, and have been found beside what was wanted.
                    continue
                if isinstance(record, Intent) and (failure := self._differs_from_history(row[0], record)) is not None:
                    self._refused.update(dict.fromkeys(keys, failure))
                    continue
                slots.update(dict.fromkeys(keys, Slot(row[0], record, table, is_new=False)))

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

    def _refusal(self, keys: Sequence[Key]) -> Failure | None:
        return next((self._refused[key] for key in keys if key in self._refused), None)

    def _apply(self, change: Change) -> None:
        self.changed = True
        for put in change.puts:
            if put.replaces is not None:
                self._drop(put.replaces)
            self._chain(self._put(put), put.journal)
        for key in change.drops:
            self._drop(key)
        if change.journal:
            self._chain(_NO_RECORD, change.journal)
        if change.statements:
            self._statements.extend(change.statements)
        if change.synced:
            self._statements.extend(_marks(change.synced))
        for purge in change.purges:
            self._purge(purge)

    def _put(self, put: Put) -> int:
        """Take the record's next version up, and say under which id it is kept."""
        record = put.record
        keys = record.keys()
        slot = self._slots.get(keys[0])
        if record.version != (1 if slot is None else slot.record.version + 1):
            raise StoreError(f"{keys[0]}: a record's version begins with 1 and rises by one", code="bad_change")
        if slot is None:
            held: tuple[Key, ...] = ()
            slot = Slot(self._new_id(), record, TABLE_OF_RECORD[type(record)], is_new=True)
        else:
            held = slot.record.keys()
            slot.record = record
        if keys != held:
            self._rekey(slot, held, keys)
        self._dirty[slot] = None
        if put.seals:
            slot.seals = {**slot.seals, **put.seals} if slot.seals else put.seals
        if put.entry is not None:
            if not put.journal:  # The journal is what the central ledger is fed from.
                raise StoreError(f"{keys[0]}: a ledger row changes with a line of history", code="bad_change")
            slot.entry = put.entry
            slot.entry_is_new = slot.entry_is_new or put.entry.version == 1
        return slot.id

    def _drop(self, key: Key) -> None:
        """Forget the record. Its ledger row and its history still say what became of it."""
        slot = self._slots.get(key)
        if slot is None:
            raise StoreError(f"{key}: there is no record to drop", code="bad_change")
        self._rekey(slot, slot.record.keys(), ())
        slot.is_dropped = True
        if not slot.is_new:
            self._frees[slot.table.delete].append((slot.id,))
            self._frees[_DESTROY_SEALS].append((slot.id,))

    def _purge(self, purge: Purge) -> None:
        """At once: no record is left that could bring another version of the row within this batch."""
        row = purge.entry
        facts = row.client_correlation_id, row.server_correlation_id, row.actor, row.version, row.sync_timestamp
        id_ = self._execute(_PURGE_ENTRY, facts).get
        if id_ is not None:
            self._chain(id_, (purge.line,))

    def _rekey(self, slot: Slot, held: tuple[Key, ...], keys: tuple[Key, ...]) -> None:
        slots = self._slots
        for key in held:
            del slots[key]
        for key in keys:
            if slots.setdefault(key, slot) is not slot:
                raise StoreError(f"{key}: another record holds it", code="constraint")

    def _new_id(self) -> int:
        id_ = self._next_id
        self._next_id = id_ + 1
        return id_

    def _chain(self, record: int, events: Iterable[JournalEvent]) -> None:
        for event in events:
            self.now = max(self.now, event.observed_at)  # An arrival may be ahead of a clock that was set back.
            self._seq += 1
            line = (self._seq, record, *astuple(event))
            self._hash = hash_line(self._hash, line)
            self._lines.append((*line, self._hash))

    def _write(self) -> None:
        self._collect()
        if self._lines:
            self._takes[_APPEND_JOURNAL] = self._lines
        for statements in (self._frees, self._takes):
            for statement, rows in statements.items():
                before = self._count_changes()
                self._executemany(statement, rows)
                if statement in _UPDATES and self._count_changes() - before != len(rows):
                    raise StoreError("what is not there cannot change", code="bad_change")
        if self._statements:
            self._run_extra(self._statements)
        self._execute(_WRITE_HEAD, self._head())
        self._frees, self._takes, self._lines = defaultdict(list), defaultdict(list), []  # Not kept over the COMMIT.

    def _head(self) -> Head:
        return Head(self._seq, self._hash, self.now, self._next_id)

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

    def _collect(self) -> None:
        """The rows to write. A record that was dropped again still leaves its ledger row as it was put last."""
        frees, takes = self._frees, self._takes
        for slot in self._dirty:
            id_, table, record, entry = slot.id, slot.table, slot.record, slot.entry
            if slot.is_dropped:
                pass
            elif slot.is_new:
                takes[table.insert].append((id_, *table.row(record)))
            else:
                frees[table.update].append((*table.changes(record), id_))
            if entry is not None:
                if slot.entry_is_new:
                    takes[_INSERT_ENTRY].append((id_, *astuple(entry)))
                else:
                    takes[_UPDATE_ENTRY].append((*entry_changes(entry), id_))
            if slot.seals and not slot.is_dropped:
                self._collect_seals(id_, slot.seals)

    def _collect_seals(self, id_: int, seals: Mapping[Part, Sealed | None]) -> None:
        for part, sealed in seals.items():
            if sealed is None:
                self._frees[_DESTROY_SEAL].append((id_, part))
            else:
                self._takes[_KEEP_SEAL].append((id_, part, sealed))


def _writes(change: Change) -> bool:
    return bool(change.puts or change.drops or change.journal or change.statements or change.synced or change.purges)


def _not_writable(error: Exception) -> TwoPHPError:
    if isinstance(error, TwoPHPError):
        return error
    return StoreError(f"the change cannot be written: {error!r}", code="bad_change")


def _marks(arrived: Iterable[Synced]) -> list[Statement]:
    """They run after all rows are written, so a row that changes in this very batch is not marked (A-57)."""
    rows = [
        (one.at, row.client_correlation_id, row.server_correlation_id, row.actor, row.version)
        for one in arrived
        for row in one.entries
    ]
    return [Statement(sql=_MARK_SYNCED, rows=rows), _ADVANCE_SYNCED]


def _keeps_the_transaction(operation: int, *_about: str | None) -> int:
    """SQLite asks when it prepares a statement, and again for those it has prepared before."""
    return apsw.SQLITE_DENY if operation in _NOT_FOR_STATEMENTS else apsw.SQLITE_OK
