"""The PostgreSQL driver of the kernel: lock what a batch reads, apply its commands, write what they change.

Every row that is read is locked until COMMIT, all of a kind in the order of their ids and the kinds in one order, so
what was decided on does not change meanwhile and nobody waits in a circle. What is not there cannot be locked: if
somebody else is quicker to make it, a unique index says so and the batch is decided again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import astuple, replace

from twophp.core.entry import LEDGER_ID, LedgerEntry, broken_rules
from twophp.core.errors import ConstraintViolation, StoreError, StorePoisoned
from twophp.core.intent import INTENT, SETTLED, Intent
from twophp.core.quota import BY_PRINCIPAL
from twophp.core.records import JournalEvent, Key
from twophp.core.registrar_records import BY_KEY_FENCE
from twophp.kernel.apply import Applied, Failure, Operations, Outcome, Snapshot, apply
from twophp.kernel.overlay import Slot, Slots
from twophp.ports import NOT_IN_TRANSACTION, Command, Purge
from twophp.ports import Statement as Extra
from twophp.stores.chains import Chain, add_link, numbered
from twophp.stores.group_commit import refuse_too_large
from twophp.stores.postgres.driver import (
    THEIRS,
    is_gone,
    is_outage,
    is_rolled_back,
    is_without_savepoint,
    may_be_decided_again,
    of_a_statement,
    translate,
)
from twophp.stores.postgres.kinds import (
    INSERT_ENTRY,
    KEYS,
    KIND_OF_RECORD,
    KINDS,
    UPDATE_ENTRY,
    Kind,
    Statement,
    lone,
    of_several,
)
from twophp.stores.postgres.script import Script
from twophp.stores.postgres.supply import Supply
from twophp.stores.postgres.text import kept, kept_values, plain
from twophp.stores.sqlite.table import Row
from twophp.stores.sqlite.tables import entry_changes

_APPEND_LINK: Final = of_several("append_link", *("bigint",) * 6, "bytea", "bytea", counts=True)
_MOVE_WRITER: Final = of_several("move_writer", *("bigint",) * 5, "bytea", "bigint")
_RELEASE: Final = of_several("release", "text", "bigint")
_KEEP_META: Final = of_several("keep_meta", "text", "text")
_FORGET_INTENTS: Final = of_several("forget_intents", "bigint")
_DELETE_INTENTS: Final = of_several("delete_intents", "bigint")
_LEAVE_ENTRIES: Final = of_several("leave_entries", "bigint", "bigint")
_KEEP_SEALS: Final = of_several("keep_seals", "bigint", "text", "bytea")
_DESTROY_SEALS: Final = of_several("destroy_seals", "bigint", "text")
_DESTROY_ALL_SEALS: Final = of_several("destroy_all_seals", "bigint")
_MARKS: Final = tuple(
    of_several(name, "bigint", "text", "text", "text", "bigint") for name in ("mark_carried", "mark_server")
)
_NOT_IN_TRANSACTION: Final = "a statement may not end the transaction or reach beyond it"
_NOT_AS_READ: Final = "what is not there, or has changed, cannot change"
# What would end the transaction or reach beyond it. The driver prepares a statement, so there is but one in a text.
_COMMENTS: Final = re.compile(r"(?:\s|--[^\r\n]*|;)*")
_COMMENT_MARKS: Final = re.compile(r"/\*|\*/")
_NOT_FOR_STATEMENTS: Final = re.compile(
    r"(abort|begin|call|commit|discard|do|end|listen|load|lock|notify|prepare|release|reset|rollback|savepoint|set|start"
    r"|unlisten)\b",
    re.IGNORECASE,
)


async def load(connection: Any, script: Script, keys: Iterable[Key], slots: Slots, *, locks: bool) -> list[Slot]:
    """Put the records under these keys into ``slots``: one statement for all of a kind that are found alike.

    Returns counts that are less than their rows say, and so have to be written.
    """
    less: list[Slot] = []
    wanted: defaultdict[str, dict[tuple[str, ...], None]] = defaultdict(dict)
    for key in keys:
        wanted[key.by][key.values] = None
    if unknown := wanted.keys() - KEYS:
        raise StoreError(f"PostgreSQL keeps no {min(unknown)}", code="unknown_record")
    if locks and BY_KEY_FENCE in wanted:  # A statement of its own: the next one sees what was committed meanwhile.
        await connection.fetch(script.named("lock_keys"), [kept(value[0]) for value in wanted[BY_KEY_FENCE]])
    for kind in KINDS:
        for by, arity, text in kind.loads if locks else kind.reads:
            values = [value for name in by if name in wanted for value in wanted[name]]
            if not values:
                continue
            columns = [list(dict.fromkeys(kept(value[0]) for value in values))]
            if arity > 1:
                columns = [[kept(value[place]) for value in values] for place in range(arity)]
            for found in await connection.fetch(script.spelled(text), *columns):
                slot = _enter(kind, plain(found), slots)
                if locks and kind.name == "quota" and found[-1]:
                    less.append(slot)
    return less


def _enter(kind: Kind, row: Row, slots: Slots) -> Slot:
    record = kind.table.record(row[: kind.columns])
    keys = record.keys()
    if keys[0] not in slots:  # It may have been found under two of its keys.
        slot = Slot(record, keys, row[0], record.version)
        if kind.table.line_column:
            slot.last_line = row[kind.table.line_column]
        slots.update(dict.fromkeys(keys, slot))
    return slots[keys[0]]


class TransactionEnded(StorePoisoned):
    """A caller's statement has ended the transaction that it shared: a part of the batch may be durable."""

    default_code = NOT_IN_TRANSACTION


class Batch:
    """Runs inside an open transaction and leaves COMMIT to its caller."""

    def __init__(
        self,
        connection: Any,
        script: Script,
        supply: Supply,
        chain: Chain,
        *,
        has_settings: bool,
        is_lone: bool = False,
    ) -> None:
        """``is_lone``: it is of one command, and spells its rows without arrays."""
        self._is_lone = is_lone
        self._connection = connection
        self._script = script
        self._supply = supply
        self.chain = chain
        self.has_settings = has_settings
        self.changed = False
        self.ended: list[str] = []  # Intents that whoever waits for them may hear of.
        self._transaction: int | None = None  # The server's number for it, once it has written.
        self._rows: defaultdict[Statement, list[Row]] = defaultdict(list)  # Updates, and what else may go first.
        self._drops: defaultdict[Statement, list[Row]] = defaultdict(list)
        self._takes: defaultdict[Statement, list[Row]] = defaultdict(list)

    async def run(self, commands: Sequence[Command]) -> list[Outcome]:
        """Decide every command, write what was decided, and say what to answer once it is durable."""
        slots: Slots = {}
        # A lone settlement locks no count, which all intents of a principal share, but notes that it is one less.
        keys = (key for command in commands for key in command.keys if not (self._is_lone and key.by == BY_PRINCIPAL))
        less = await load(self._connection, self._script, keys, slots, locks=True)
        await self._supply.look(self._connection, self._script.named("clock_and_ids"), len(commands))
        applied = apply(Snapshot(slots, check=_check), commands, self._supply.time.now())
        if less:
            operations = applied.operations
            operations.changed = {**operations.changed, **{one: None for one in less if one not in operations.dropped}}
        if not applied.operations.is_empty:
            self.changed = True
            refuse_too_large(applied.operations, len(commands))
            lines = applied.operations.lines
            self.ended = [event.subject for _slot, event in lines if event.kind == INTENT and event.after in SETTLED]
            await self._write(applied.operations)
        if applied.trials:
            await self._try(applied)
        return applied.answers

    async def _write(self, operations: Operations) -> None:
        purged = [line for purge in operations.purges for line in await self._purge(purge, operations)]
        fresh = [slot for slot in operations.changed if not slot.id]
        await self._supply.have(self._connection, self._script.named("clock_and_ids"), len(fresh))
        for slot in fresh:
            slot.id = self._supply.next_id()
        at = self._supply.time.reach(operations.at)  # A line may be ahead of our time; the next batch is not behind it.
        self._add_link([*numbered(operations.lines, self.chain), *purged], at)
        for slot in operations.changed:
            if type(slot.record) is Intent:
                self._collect_intent(slot, slot.record)
            else:
                self._collect_record(slot)
        for slot in operations.dropped:
            self._collect_drop(slot)
        await self._send()
        for synced in operations.synced:
            rows = [
                (synced.at, row.client_correlation_id, row.server_correlation_id, row.actor, row.version)
                for row in synced.entries
            ]
            if rows:
                await self._run(dict.fromkeys(_MARKS, rows))
        await self._run_extra(operations.statements)

    async def _send(self) -> None:
        """What frees a unique key goes before what takes it; all that cannot meet goes together."""
        frees_keys = any(kind.has_second_key and kind.update in self._rows for kind in KINDS)
        if frees_keys or self._drops:
            await self._run(self._rows)
            for statement, rows in self._drops.items():
                await self._run({statement: rows})
            await self._run(self._takes)
        else:
            await self._run({**self._rows, **self._takes})

    async def _run(self, sets: Mapping[Statement, Sequence[Row]]) -> None:
        if not sets:
            return
        spelled = tuple(sets)
        if self._is_lone:
            spelled = tuple([lone(statement) if len(rows) == 1 else statement for statement, rows in sets.items()])
        bound = [column for one, rows in zip(spelled, sets.values(), strict=True) for column in one.bound(rows)]
        counts = await self._connection.fetchrow(self._script.merged(spelled), *bound)
        *counts, self._transaction = counts
        found = dict(zip(sets, counts, strict=True))
        if found.get(_MOVE_WRITER, 1) != 1:
            raise StorePoisoned("somebody else has moved or closed this writer's row; open the database anew")
        if any(statement.counts and found[statement] != len(rows) for statement, rows in sets.items()):
            raise StoreError(_NOT_AS_READ, code="bad_change")

    def _add_link(self, lines: list[tuple[int, int, JournalEvent]], at: int) -> None:
        """The lines of this batch, chained to this writer's last link. Its row moves on with every batch."""
        before = self.chain
        if lines:
            link, self.chain = add_link(before, lines, at, self._supply.last_id + 1)
            self._takes[_APPEND_LINK].append(astuple(link))
        now = self.chain
        self._takes[_MOVE_WRITER].append((now.id, before.seq, now.seq, now.link, now.lines, now.hash, at))

    async def _purge(self, purge: Purge, operations: Operations) -> Sequence[tuple[int, int, JournalEvent]]:
        """Forget the row, if it is there as it was seen, and say which line tells of it."""
        row = purge.entry
        facts = row.client_correlation_id, row.server_correlation_id, row.actor, row.version, row.sync_timestamp
        for name in ("purge_forgotten", "purge_entry"):
            found = await self._connection.fetchrow(self._script.named(name), *kept_values(facts))
            if found is not None:
                operations.at = max(operations.at, purge.line.observed_at)
                return ((found[1], found[0], purge.line),)
        return ()

    def _collect_record(self, slot: Slot) -> None:
        """A record with a table of its own, and the ledger row that it carries."""
        kind, entry = _kind_of(slot), slot.entry
        if not slot.is_dropped:
            pointer = (slot.last_line,) if kind.table.line_column else ()
            if slot.stored:
                row = (slot.id, slot.stored, *kind.table.changes(slot.record), *pointer)
                self._rows[kind.update].append(row)
            else:
                self._takes[kind.insert].append((slot.id, *kind.table.row(slot.record), *pointer))
            for part, sealed in (slot.seals or {}).items():
                if sealed is None:
                    self._rows[_DESTROY_SEALS].append((slot.id, part))
                else:
                    self._takes[_KEEP_SEALS].append((slot.id, part, sealed))
        if entry is not None and slot.entry_is_new:
            self._takes[INSERT_ENTRY].append((slot.id, *astuple(entry), slot.last_line))
        elif entry is not None:
            self._rows[UPDATE_ENTRY].append((slot.id, *entry_changes(entry), slot.last_line))

    def _collect_drop(self, slot: Slot) -> None:
        """Its ledger row stays: an intent's as its own row, any other's with a pointer to its history."""
        kind = _kind_of(slot)
        if not slot.stored:
            return
        if type(slot.record) is Intent:
            self._drops[_DELETE_INTENTS].append((slot.id,))
            self._drops[_FORGET_INTENTS].append((slot.id,))
            return
        if kind.table.line_column:
            self._drops[_LEAVE_ENTRIES].append((slot.id, slot.last_line))
            self._drops[_DESTROY_ALL_SEALS].append((slot.id,))
        self._drops[kind.delete].append((slot.id,))

    def _collect_intent(self, slot: Slot, intent: Intent) -> None:
        """Its row is its ledger row as well, so one that is in the ledger stays when it is dropped."""
        entry, seals, kind = slot.entry, slot.seals or {}, KIND_OF_RECORD[Intent]
        if entry is not None and (entry.actor != "server" or entry.target is not None):
            raise ConstraintViolation(f"{entry.server_correlation_id}: an intent's ledger row is the server's")
        if entry is not None and not self.has_settings:
            self._takes[_KEEP_META] += [("service", entry.source), (LEDGER_ID, entry.service_ledger_id)]
            self.has_settings = True
        if slot.is_dropped and entry is None:
            return
        version, payload, response = 0 if entry is None else entry.version, seals.get("payload"), seals.get("response")
        if self._is_lone and intent.counted_bytes is not None and intent.phase in SETTLED:
            self._takes[_RELEASE].append((intent.principal, intent.counted_bytes))
        if slot.stored:
            parts = "payload" in seals, payload, "response" in seals, response
            row = (slot.id, slot.stored, *kind.table.changes(intent), slot.last_line, version, *parts)
            self._rows[kind.update].append(row)
            return
        if slot.is_dropped:
            intent, payload, response = replace(intent, owner=None, lease_until=None, due_at=None), None, None
        more = slot.last_line, version, slot.is_dropped, payload, response
        self._takes[kind.insert].append((slot.id, *astuple(intent), *more))

    async def _run_extra(self, statements: Iterable[Extra]) -> None:
        """What others wrote shares our transaction, so it may not end it: half a batch would be durable."""
        extra = None
        for extra in statements:
            if _NOT_FOR_STATEMENTS.match(extra.sql, _first_word(extra.sql)):
                raise StoreError(_NOT_IN_TRANSACTION, code=NOT_IN_TRANSACTION)
            try:
                await self._connection.executemany(extra.sql, extra.rows)
            except THEIRS as error:
                self._insist_on_transaction()
                if is_gone(self._connection) or is_outage(error) or may_be_decided_again(error):
                    raise
                raise of_a_statement(error) from error
            self._insist_on_transaction()
        if extra is not None and self._transaction is not None:
            (now,) = await self._connection.fetchrow(self._script.named("transaction"))
            if now != self._transaction:
                raise TransactionEnded(_NOT_IN_TRANSACTION)

    def _insist_on_transaction(self) -> None:
        """What has ended it has made a part of the batch durable, or undone it. The driver knows without a trip."""
        if not is_gone(self._connection) and not self._connection.is_in_transaction():
            raise TransactionEnded(_NOT_IN_TRANSACTION)

    async def _try(self, applied: Applied) -> None:
        """After all rows are written, which the statements on trial would meet. They are undone."""
        for place, statements in applied.trials.items():
            await self._connection.execute(self._script.named("begin_trial"))
            try:
                await self._run_extra(statements)
            except TransactionEnded:
                raise
            except Exception as error:
                if is_gone(self._connection) or is_outage(error) or is_rolled_back(error):
                    raise
                applied.answers[place] = Failure(translate(error))
            try:
                await self._connection.execute(self._script.named("undo_trial"))
            except THEIRS as error:
                if is_without_savepoint(error):
                    raise TransactionEnded(_NOT_IN_TRANSACTION) from error
                raise


def _first_word(text: str) -> int:
    """Where a statement begins, after blanks and comments as PostgreSQL reads them: a comment may hold another."""
    at, depth = 0, 0
    while True:
        if depth == 0:
            blank = _COMMENTS.match(text, at)
            at = at if blank is None else blank.end()
            if not text.startswith("/*", at):
                return at
        mark = _COMMENT_MARKS.search(text, at)
        if mark is None:
            return len(text)
        at, depth = mark.end(), depth + (1 if mark[0] == "/*" else -1)


def _kind_of(slot: Slot) -> Kind:
    kind = KIND_OF_RECORD.get(type(slot.record))
    if kind is None:
        raise StoreError(f"PostgreSQL keeps no {type(slot.record).__name__} yet", code="unknown_record")
    return kind


def _check(_slot: Slot | None, entry: LedgerEntry) -> None:
    """What no row may break; said before anything is written, so that it costs nobody else."""
    if broken := broken_rules(entry):
        raise ConstraintViolation(f"{entry.client_correlation_id}: {broken[0]}")
