"""The SQLite store: one file that holds records, ledger, sealed parts and journal, written in group commits."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Self

import apsw

from twophp.core.entry import LEDGER_ID, LedgerEntry, restamped_line
from twophp.core.errors import StoreUnavailable
from twophp.core.obligation import Obligation, by_id
from twophp.core.records import Instant, Key, Sealed
from twophp.kernel.commands import AdHocCommand, MakeChange, ReadRecords
from twophp.kernel.journal import Link
from twophp.ports import (
    Admission,
    Change,
    Clock,
    Command,
    JournalLine,
    Load,
    Obligations,
    Part,
    Question,
    Records,
    Statement,
    Synced,
    Tally,
    Then,
)
from twophp.stores.clock import system_clock
from twophp.stores.owners import Owners
from twophp.stores.sqlite.connection import let_go, migrate, open_connection, open_without_room, translate
from twophp.stores.sqlite.history import asked, history, lines_after, links_after, obligations_asked
from twophp.stores.sqlite.sql import sql
from twophp.stores.sqlite.table import Row, Table
from twophp.stores.sqlite.tables import OBLIGATIONS, TABLE_OF_KEY, TABLES, entry_of
from twophp.stores.sqlite.writer import BATCH_LIMIT, QUEUE_CAPACITY, Writer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

log: Final = logging.getLogger("twophp.store")

DISK_FULL: Final = "disk_full"
PROOF: Final = Statement(sql=sql("prove_durable"), rows=[()])
RESTAMPED_AT_A_TIME: Final = 500


class SQLiteStore:
    """A ``Store`` over one file. Use it from one event loop; any number of processes may share the file."""

    takes_statements: Final = True
    at_once: Final = None

    def __init__(
        self,
        path: str,
        *,
        clock: Clock = system_clock,
        capacity: int = QUEUE_CAPACITY,
        batch_limit: int = BATCH_LIMIT,
    ) -> None:
        """Open or create the database, migrate it, and prove that a write reaches the disk."""
        self.path = path
        self._clock = clock
        self._capacity = capacity
        self._batch_limit = batch_limit
        self._reopening = asyncio.Lock()
        self._is_closed = False
        self._open()
        self.owners = Owners(self.path)

    def _open(self, *, must_exist: bool = False) -> None:
        """Open all connections and the writer, or none of them."""
        try:
            with ExitStack() as undo:
                connection, proved = self._connected(must_exist=must_exist)
                undo.callback(let_go, connection)
                path = connection.filename  # From the root on: the process may change its folder.
                # A read by key is quicker than a hop to a thread. Questions may take long and get their own thread.
                reads = open_connection(path, read_only=True)
                undo.callback(let_go, reads)
                questions = open_connection(path, read_only=True)
                undo.callback(let_go, questions)
                writer = self._writer_of(connection, proved=proved)
                undo.pop_all()
        except apsw.Error as error:
            raise translate(error, self.path) from error
        self.path, self._connection, self._reads, self._questions = path, connection, reads, questions
        self._writer = writer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="twophp-read")

    def _connected(self, *, must_exist: bool) -> tuple[apsw.Connection, bool]:
        """A connection, and whether it was proved that a write reaches the disk.

        With a full disk at the first opening the store still answers from the stored records (ADR 30). Reopening raises
        the error: it has to settle the outcome of an unknown commit, and that needs a write.
        """
        connection = open_connection(self.path, must_exist=must_exist)
        try:
            migrate(connection, self.path)
        except StoreUnavailable as error:
            if must_exist or error.code != DISK_FULL:
                raise
            log.warning("%s: opened to be read; changes are refused until there is room on the disk", self.path)
            return open_without_room(self.path), False
        return connection, True

    def _writer_of(self, connection: apsw.Connection, *, proved: bool) -> Writer:
        return Writer(connection, self._clock, capacity=self._capacity, batch_limit=self._batch_limit, is_proved=proved)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self.close()

    def load(self) -> Load:
        """See ``Store.load``."""
        return self._writer.load()

    def now(self) -> Instant:
        """See ``Store.now``."""
        return self._writer.now()

    def wall_ahead_ms(self) -> int:
        """See ``Store.wall_ahead_ms``."""
        return self._writer.wall_ahead_ms()

    def transact(self, command: Command) -> Awaitable[Any]:
        """See ``Store.transact``: answered only after COMMIT. Returns the writer's own future, to save a frame."""
        return self._writer.transact(command)

    async def read(self, keys: Sequence[Key]) -> Sequence[Any]:
        """See ``Store.read``. Takes no lock: a commit is seen once it is durable."""
        if not self._writer.is_sure:
            found: Sequence[Any] = await self._writer.transact(ReadRecords(keys))
            return found
        return self._writer.read(self._reads, keys)

    def submit(self, command: Command, then: Then) -> None:
        """See ``Store.submit``."""
        self._writer.submit(command, then)

    async def due(self, kind: str, before: Instant, limit: int) -> Sequence[Key]:
        """See ``Store.due``: a range of an index on ``due_at``."""
        table = TABLES[kind]
        return [Key(table.identity, row) for row in self._read(table.due, (before, limit))]

    async def owners_of(self, kind: str) -> Sequence[str]:
        """See ``Store.owners_of``: a step through an index for each of them."""
        return [row[0] for row in self._read(TABLES[kind].owners, ())]

    async def owned(self, kind: str, owner: str, limit: int) -> Sequence[Key]:
        """See ``Store.owned``."""
        table = TABLES[kind]
        return [Key(table.identity, row) for row in self._read(table.owned, (owner, limit))]

    async def unseal(self, key: Key, part: Part) -> Sealed | None:
        """See ``Store.unseal``."""
        table = _table_of_identity(key)
        rows = self._read(table.seal, (*key.values, part))
        return Sealed(rows[0][0]) if rows else None

    async def history(self, key: Key) -> Sequence[JournalLine]:
        """See ``Store.history``."""
        try:
            found = self._reads.execute(_table_of_identity(key).last_line, key.values).fetchone()
            return [] if found is None else history(self._reads, *found)
        except apsw.Error as error:
            raise translate(error) from error

    async def changes(self, limit: int) -> Sequence[LedgerEntry]:
        """See ``Store.changes``."""
        return await self._ask(sql("entries_unsynced"), (limit,), entry_of)

    async def synced(self, entries: Sequence[LedgerEntry], at: Instant) -> None:
        """See ``Store.synced``."""
        change = Change(answer=None, synced=(Synced(entries, at),))
        await self._writer.transact(MakeChange(change))

    async def purgeable(self, before: Instant, limit: int) -> Sequence[LedgerEntry]:
        """See ``Store.purgeable``: a range of an index on the time of arrival."""
        return [entry_of(row) for row in self._read(sql("entries_outlived"), (before, limit))]

    async def entries(self, question: Question) -> Sequence[LedgerEntry]:
        """See ``Store.entries``."""
        return await self._ask(*asked(question), entry_of)

    async def journal(self, after: int, limit: int) -> Sequence[JournalLine]:
        """See ``LedgerQuestions.journal``."""
        return await self._off_loop(lambda: list(lines_after(self._questions, after, limit)))

    async def links(self, after: int, limit: int) -> Sequence[Link]:
        """The links of the journal after this line."""
        return await self._off_loop(lambda: list(links_after(self._questions, after, limit)))

    async def obligations(self, wanted: Obligations) -> Sequence[Obligation]:
        """See ``Store.obligations``."""
        return await self._ask(*obligations_asked(wanted), OBLIGATIONS.record)

    async def reserved(self) -> int:
        """See ``Store.reserved``."""
        found: list[int] = await self._ask(sql("count_reserved"), (), lambda row: row[0])
        return found[0]

    async def settled(self, before: Instant, limit: int) -> Sequence[Key]:
        """See ``Store.settled``: ids rise with time, so it looks only at obligations older than ``before``."""
        return await self._ask(sql("obligations_settled"), (before, limit), lambda row: by_id(row[0]))

    async def tally(self, since: Instant = 0) -> Sequence[Tally]:
        """See ``Store.tally``."""
        return await self._ask(sql("tally_obligations"), (since,), lambda row: Tally(*row))

    async def get_or_set_meta(self, name: str, value: str) -> str:
        """The setting kept under ``name``; ``value`` becomes it if there is none yet."""
        found = self._read(sql("read_meta"), (name,))
        if not found:
            await self._execute(Statement(sql=sql("keep_meta"), rows=[(name, value)]))
            found = self._read(sql("read_meta"), (name,))  # Another process may have set it first.
        return str(found[0][0])

    async def set_meta(self, name: str, value: str) -> None:
        """See ``Store.set_meta``."""
        await self._execute(Statement(sql=sql("replace_meta"), rows=[(name, value)]))

    async def prove(self) -> None:
        """See ``Store.prove``."""
        await self._execute(PROOF)

    async def reassign_ledger_id(self, issued: str) -> None:
        """See ``Store.reassign_ledger_id``: a bounded number of rows at a time, the setting with its line last."""
        (last,) = self._read(sql("last_entry"), ())[0]
        for after in range(0, last, RESTAMPED_AT_A_TIME):
            rows = [(issued, after, after + RESTAMPED_AT_A_TIME)]
            await self._execute(Statement(sql=sql("restamp_entries"), rows=rows), "background")
        before = self._read(sql("read_meta"), (LEDGER_ID,))
        keep = Statement(sql=sql("replace_meta"), rows=[(LEDGER_ID, issued)])

        def change(records: Records) -> Change:
            line = restamped_line(before[0][0] if before else "", issued, records.now)
            return Change(answer=None, journal=(line,), statements=(keep,))

        await self._writer.transact(AdHocCommand((), change))

    async def reopen(self) -> None:
        """See ``Store.reopen``. Concurrent callers share one reopen. A closed store stays closed."""
        broken = self._writer
        async with self._reopening:
            self._refuse_if_closed()
            if self._writer is broken:
                broken.stop("it is being opened anew")  # New changes get StorePoisoned, not "closed", and may reopen.
                await self._let_go()
                self._refuse_if_closed()
                self._open(must_exist=True)

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the store is closed", code="store_closed")

    async def close(self) -> None:
        """See ``Store.close``. The last handle to close folds the log into the database."""
        self._is_closed = True
        await self._let_go()

    async def _let_go(self) -> None:
        await self._writer.close()
        self._thread.shutdown()
        for connection in (self._reads, self._questions, self._connection):
            let_go(connection)

    async def _execute(self, statement: Statement, admission: Admission = "accepted") -> None:
        """Bookkeeping that no decision depends on, in the same queue as every other change."""
        change = Change(answer=None, statements=(statement,))
        await self._writer.transact(MakeChange(change, admission))

    def _read(self, statement: str, bindings: tuple[Any, ...]) -> list[Row]:
        try:
            return list(self._reads.execute(statement, bindings))
        except apsw.Error as error:
            raise translate(error) from error

    async def _ask(self, statement: str, bindings: tuple[Any, ...], shape: Callable[[Row], Any]) -> list[Any]:
        return await self._off_loop(lambda: [shape(row) for row in self._questions.execute(statement, bindings)])

    async def _off_loop(self, ask: Callable[[], list[Any]]) -> list[Any]:
        try:
            asked_for = asyncio.get_running_loop().run_in_executor(self._thread, ask)
        except RuntimeError as error:  # The thread was shut down.
            raise StoreUnavailable("the store is closed", code="store_closed") from error
        try:
            return await asked_for
        except apsw.Error as error:
            raise translate(error) from error


def _table_of_identity(key: Key) -> Table:
    table = TABLE_OF_KEY[key.by]
    assert key.by == table.identity, "a part or a history is asked for by the record's identity"
    return table
