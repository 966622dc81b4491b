"""One SQLite file behind two threads: one writes, one reads, and the event loop waits for neither.

A commit has a fixed price, and random ids cost a page of the log each unless they share one. So what waits for the
writer goes into one transaction. If one change fails, all are undone, and made again in a transaction each: a savepoint
before each would cost a copy of every page they touch, whether or not one ever fails.

In memory there is one connection for both, since a second could not open it; an export then reads from a copy.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar, cast
from zlib import crc32

import apsw

from twophp.central.stores.statements import statements
from twophp.core.errors import (
    CommitUnknown,
    SchemaMismatch,
    StoreOverloaded,
    StorePoisoned,
    StoreUnavailable,
    TwoPHPError,
)
from twophp.stores.named_sql import migrations_of
from twophp.stores.sqlite.connection import (
    CENTRAL_APPLICATION_ID,
    Schema,
    is_fsync_failure,
    is_outside_fault,
    migrate,
    open_connection,
    read_schema,
    translate,
)

log: Final = logging.getLogger("twophp.central")

MOST_WAITING: Final = 64
"""At most this many batches wait for the writer; a further one is refused, to be sent again."""
MOST_TOGETHER: Final = 16
"""At most this many changes share a transaction."""
CHECKPOINT_PAGES: Final = 16_384

SQL: Final = statements(__package__)
CENTRAL: Final = Schema(application_id=CENTRAL_APPLICATION_ID, package=__package__, prove_durable=SQL["prove_durable"])

T = TypeVar("T")
Values: TypeAlias = tuple[Any, ...]
_Change: TypeAlias = Callable[[apsw.Connection], Any]
_Wish: TypeAlias = tuple[_Change, asyncio.Future[Any]]


class _Failure:
    """What to raise to a caller instead of an answer."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Database:
    """A file, or a database in memory where ``path`` is None."""

    def __init__(self, path: str | None, *, read_only: bool = False) -> None:
        """``read_only`` is for looking at a file beside a running service: nothing is made, migrated or held up."""
        self.path = path
        self._is_read_only = read_only
        self._waiting: deque[_Wish] = deque()
        self._drain: asyncio.Task[None] | None = None
        self._is_closed = False
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="twophp-central-write")
        self._reading = (
            ThreadPoolExecutor(1, thread_name_prefix="twophp-central-read") if path is not None else self._writing
        )
        self._poison: StorePoisoned | None = None
        self._open()

    def _open(self) -> None:
        self._log_pages = 0
        if self.path is None:
            self._writer = self._reader = _in_memory()
            return
        if self._is_read_only:
            self._writer = self._reader = _for_reading(self.path)
            return
        self._writer = open_connection(self.path, schema=CENTRAL)
        migrate(self._writer, self.path, CENTRAL)
        self._writer.set_wal_hook(self._count_log_pages)
        self._reader = open_connection(self.path, read_only=True, schema=CENTRAL)
        _teach(self._reader)
        for connection in (self._writer, self._reader):
            connection.execute(SQL["cache"])

    async def write(self, change: Callable[[apsw.Connection], T]) -> T:
        """Run ``change`` in a transaction of its own; what it returns is durable. Raises errors of ours alone."""
        if self._is_closed:
            raise _closed()
        if len(self._waiting) >= MOST_WAITING:
            message = f"{MOST_WAITING} changes are waiting for the disk"
            raise StoreOverloaded(message)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._waiting.append((change, done))
        if self._drain is None:
            self._drain = loop.create_task(self._work())
        return await done

    async def read(self, question: Callable[[apsw.Connection], T]) -> T:
        """Ask; what ``question`` reads is of one moment."""
        if self._poison is not None:  # A read may come first: every request reads its token before it writes.
            await self.write(_nothing)
        return await self._off_loop(self._reading, lambda: self._ask(question))

    async def chunks(self, statement: str, values: Sequence[Any], size: int) -> AsyncGenerator[list[Values]]:
        """Every row of an answer as of now, ``size`` at a time, on a connection of its own."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="twophp-central-export")
        try:
            connection = await self._off_loop(self._writing if self.path is None else thread, self._snapshot)
            try:
                cursor = await self._off_loop(thread, lambda: connection.execute(statement, values))
                while rows := await self._off_loop(thread, lambda: _some(cursor, size)):
                    yield rows
            finally:  # Also if the database was closed before the export ended.
                await asyncio.get_running_loop().run_in_executor(thread, connection.close)
        finally:
            thread.shutdown(wait=False)

    async def close(self) -> None:
        """Finish what was begun. The last handle to close folds the log into the database."""
        if self._is_closed:
            return
        self._is_closed = True
        while self._drain is not None:
            await self._drain
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._writing.shutdown)
        await loop.run_in_executor(None, self._reading.shutdown)
        for connection in {self._reader, self._writer}:
            connection.close()

    async def _off_loop(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if self._is_closed:
            raise _closed()
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, work)
        except apsw.Error as error:
            raise translate(error, self.path or "memory") from error

    async def _work(self) -> None:
        """Write until no change waits. Each caller gets its outcome after the commit."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                wishes = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_TOGETHER))]
                changes = [change for change, _done in wishes]
                try:
                    outcomes = await loop.run_in_executor(self._writing, self._transact, changes)
                except Exception as error:  # noqa: BLE001 - every waiting caller must receive it.
                    outcomes = [_Failure(error)] * len(wishes)
                for (_change, done), outcome in zip(wishes, outcomes, strict=True):
                    self._tell(done, outcome)
        finally:
            self._drain = None

    def _tell(self, done: asyncio.Future[Any], outcome: Any) -> None:
        if done.done():  # A caller that gave up waiting is no reason to stop.
            return
        if isinstance(outcome, _Failure):
            done.set_exception(_for_a_caller(outcome.error, self.path or "memory"))
        else:
            done.set_result(outcome)

    def _transact(self, changes: Sequence[_Change]) -> list[Any]:
        if self._poison is not None:
            self._open_anew()
        connection = self._writer
        with _undone_on_failure(connection):
            connection.execute(SQL["begin"])
            try:
                outcomes = [change(connection) for change in changes]
            except Exception as error:
                if len(changes) == 1 or is_outside_fault(error):
                    raise
                connection.execute(SQL["rollback"])
                return [self._alone(change) for change in changes]
            self._commit(connection)
        if self._log_pages >= CHECKPOINT_PAGES:
            self._checkpoint(connection)
        return outcomes

    def _alone(self, change: _Change) -> Any:
        """What one change says, or why it was undone."""
        try:
            return self._transact([change])[0]
        except Exception as error:  # noqa: BLE001 - its caller receives it; the others go on.
            return _Failure(error)

    def _commit(self, connection: apsw.Connection) -> None:
        try:
            connection.execute(SQL["commit"])
        except (apsw.FullError, apsw.ConstraintError):
            raise  # Certain: the log could not grow, or the change was refused.
        except apsw.Error as error:
            self._poison = StorePoisoned(f"a commit failed on {self.path}: {error}")
            message = f"the commit failed and may still be on the disk: {error}"
            raise CommitUnknown(message) from error

    def _open_anew(self) -> None:
        """Reopen after a failed commit: the old handle knows nothing for certain. A repeated batch finds out."""
        log.warning("opening the database anew: %s", self._poison)
        for connection in {self._writer, self._reader}:
            connection.close(force=True)
        self._open()
        self._poison = None

    def _checkpoint(self, connection: apsw.Connection) -> None:
        """Fold the log into the database. What was committed is safe in the log if this fails."""
        try:
            connection.wal_checkpoint()
            self._log_pages = 0
        except apsw.BusyError:
            pass  # A reader is in the way; the next commit tries again.
        except apsw.Error as error:
            log.warning("checkpoint failed: %s", error)
            if is_fsync_failure(error):
                self._poison = StorePoisoned(f"a checkpoint's fsync failed: {error}")

    def _ask(self, question: Callable[[apsw.Connection], T]) -> T:
        connection = self._reader
        with _undone_on_failure(connection):
            connection.execute(SQL["begin_reading"])
            answer = question(connection)
            connection.execute(SQL["commit"])
            return answer

    def _snapshot(self) -> apsw.Connection:
        if self.path is None:
            copy = apsw.Connection(":memory:")
            copy.deserialize("main", self._writer.serialize("main"))
            _teach(copy)
            return copy
        connection = open_connection(self.path, read_only=True, schema=CENTRAL)
        _teach(connection)
        connection.execute(SQL["begin_reading"])
        connection.execute(SQL["ready"]).fetchall()  # The view is fixed by the first look, not by BEGIN.
        return connection

    def _count_log_pages(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK


def _for_reading(path: str) -> apsw.Connection:
    """A file as it is. One of another version is refused: its tables are others."""
    connection = open_connection(path, read_only=True, schema=CENTRAL)
    number, newest = read_schema(connection, path, CENTRAL), migrations_of(CENTRAL.package)[-1][0]
    if number != newest:
        connection.close()
        message = f"{path}: schema {number} is older than this twophp's ({newest}); `twophp central serve` migrates it"
        raise SchemaMismatch(message, code="schema_too_old")
    _teach(connection)
    return connection


def _in_memory() -> apsw.Connection:
    """A database that is always new."""
    connection = apsw.Connection(":memory:")
    for _number, script in migrations_of(CENTRAL.package):
        connection.execute(script)
    _teach(connection)
    return connection


def _teach(connection: apsw.Connection) -> None:
    """The function by which ids are looked for."""
    connection.create_scalar_function("spot_of", cast("Any", spot_of), 1, deterministic=True)


def spot_of(id_: str) -> int:
    """The lowest spot of rows that name this id (migrations/0002)."""
    return crc32(id_.encode("utf-8", "replace")) >> 4 << 35


def _nothing(_connection: apsw.Connection) -> None:
    """A change that changes nothing: the writer opens the database anew where it has to."""


def _for_a_caller(error: Exception, path: str) -> Exception:
    """A fresh error for each caller: one that is raised in many tasks would collect all their tracebacks."""
    if isinstance(error, apsw.Error):
        return translate(error, path)
    return type(error)(error.message, code=error.code) if isinstance(error, TwoPHPError) else error


def _closed() -> StoreUnavailable:
    return StoreUnavailable("the central ledger's database is closed", code="store_closed")


@contextmanager
def _undone_on_failure(connection: apsw.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute(SQL["rollback"])
        raise


def _some(cursor: Any, size: int) -> list[Values]:
    return list(islice(cursor, size))
