"""Opening a database so that what it says is durable, and the one table that maps its errors onto ours."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import ENOSPC
from pathlib import Path
from typing import Final

import apsw
import msgspec

from twophp.core.errors import (
    ConfigError,
    ConstraintViolation,
    SchemaMismatch,
    StoreError,
    StoreUnavailable,
    TwoPHPError,
)
from twophp.stores.clock import pause, steady_seconds
from twophp.stores.sqlite.hashes import teach
from twophp.stores.sqlite.new_file import make_tables
from twophp.stores.sqlite.one_library import connect
from twophp.stores.sqlite.sql import migrations, sql
from twophp.stores.sqlite.widening import Progress, widen

log: Final = logging.getLogger("twophp.store")

LOG_EVERY_S: Final = 5.0
APPLICATION_ID: Final = 0x32504850  # "2PHP": marks a file as a ledger of twophp.
CENTRAL_APPLICATION_ID: Final = (
    0x32504843  # "2PHC": a central ledger's. Known here, to tell it from another program's file.
)
BUSY_TIMEOUT_MS: Final = 5_000
WAL_TRIES: Final = 100
WAL_PAUSE_S: Final = 0.02
COPY_BYTES: Final = 1024 * 1024
PRIVATE: Final = 0o600
CACHE_KIB: Final = 32 * 1024  # Enough for a batch of large payloads without spilling into the log half way.


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """The kind of database that a file is, and the package with the numbered migrations that make its tables."""

    application_id: int
    package: str
    prove_durable: str  # A statement that changes something of no consequence.
    # By number: the work after a migration that is too much for one transaction.
    long_steps: dict[int, Callable[[apsw.Connection, Progress], None]] = {}


LEDGER: Final = Schema(
    application_id=APPLICATION_ID, package=__package__, prove_durable=sql("prove_durable"), long_steps={13: widen}
)
"""The schema of a service's own ledger."""

_FSYNC_FAILURES: Final = frozenset({apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC})

# What SQLite says -> what we say. The first match counts.
_ERRORS: Final[tuple[tuple[type[apsw.Error], type[TwoPHPError], str, str], ...]] = (
    (apsw.FullError, StoreUnavailable, "disk_full", "the disk is full"),
    (apsw.BusyError, StoreUnavailable, "store_busy", "another process holds the database"),
    (apsw.LockedError, StoreUnavailable, "store_busy", "another connection holds the database"),
    (apsw.ProtocolError, StoreUnavailable, "store_busy", "another process holds the database"),
    (apsw.IOError, StoreUnavailable, "store_io_error", "the disk failed"),
    (apsw.NoMemError, StoreUnavailable, "store_no_memory", "there is no memory"),
    (apsw.ReadOnlyError, StoreUnavailable, "store_read_only", "the database cannot be written"),
    (apsw.CantOpenError, StoreUnavailable, "store_cannot_open", "the database cannot be opened"),
    (apsw.ConnectionClosedError, StoreUnavailable, "store_closed", "the store is closed"),
    (apsw.NotADBError, SchemaMismatch, "not_a_database", "the file is not a database"),
    (apsw.CorruptError, StoreError, "store_corrupt", "the database is damaged"),
    (apsw.ConstraintError, ConstraintViolation, "constraint", "the change breaks a constraint"),
    (
        apsw.AuthError,
        StoreError,
        "not_allowed",
        "no statement may end the transaction, set a PRAGMA or attach a file",
    ),
    (apsw.TooBigError, StoreError, "too_big", "a value is too big for the database"),
)

# Faults of the disk, of another process or of the machine: they strike every change alike, not only the first one.
_OUTSIDE_FAULTS: Final = (
    apsw.BusyError,
    apsw.CantOpenError,
    apsw.CorruptError,
    apsw.FullError,
    apsw.IOError,
    apsw.LockedError,
    apsw.NoMemError,
    apsw.NotADBError,
    apsw.ProtocolError,
    apsw.ReadOnlyError,
)


def translate(error: apsw.Error, path: str = "") -> TwoPHPError:
    """Our error for one of SQLite's, with the path of the database where it is known."""
    place, said = f"{path}: " if path else "", str(error)
    for theirs, ours, code, message in _ERRORS:
        if isinstance(error, theirs):
            repeats = message.endswith(said)  # SQLite's words may be ours already.
            return ours(f"{place}{message}" if repeats else f"{place}{message}: {said}", code=code)
    return StoreError(f"{place}{said}")


def is_outside_fault(error: Exception) -> bool:
    """Whether every waiting caller must receive the error. Any other fault belongs to one change and its caller."""
    return isinstance(error, _OUTSIDE_FAULTS)


def is_fsync_failure(error: apsw.Error) -> bool:
    """Whether an fsync failed: then it is unknown what is durable; the kernel may even have dropped the pages."""
    return getattr(error, "extendedresult", 0) in _FSYNC_FAILURES


def open_connection(
    path: str, *, read_only: bool = False, immutable: bool = False, must_exist: bool = False, schema: Schema = LEDGER
) -> apsw.Connection:
    """A connection in WAL mode that syncs at every commit, or an error that says what is wrong.

    ``immutable`` is for reading a file that no process has open: it takes no lock and makes no file beside it.
    ``must_exist`` is for a file that was open before: if it has gone, a new one would hide the loss of its records.
    """
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    if not read_only and not must_exist:
        flags |= apsw.SQLITE_OPEN_CREATE
        _make_private(path)
    try:
        connection = connect(path, flags, parameters="immutable=1" if immutable else "")
    except apsw.Error as error:
        folder = Path(path).absolute().parent
        if not folder.is_dir():
            raise StoreUnavailable(f"{path}: there is no folder {folder}", code="store_cannot_open") from error
        raise translate(error, path) from error
    with _given_up_on_failure(connection):
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        teach(connection)
        if not read_only:
            # Before WAL, which would change a file that may belong to another program.
            _refuse_foreign_at_once(connection, path, schema)
            _insist_on_durability(connection, path)
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _make_private(path: str) -> None:
    """Make a new file that only its owner can read; SQLite gives the files beside it the same mode.

    An existing file keeps its mode: its operator may have chosen it. If the file cannot be made, SQLite's own error
    says why.
    """
    if path == ":memory:":
        return
    with suppress(OSError):
        # Only a new file: closing another descriptor of a file that this process has open would give up its locks.
        os.close(os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))


def roll_back(connection: apsw.Connection) -> None:
    """Undo an open transaction. An error here must not hide the first one, so it is dropped; the next use meets it."""
    with suppress(apsw.Error):
        if connection.in_transaction:  # After some errors SQLite has rolled back by itself.
            connection.execute(sql("rollback"))


def let_go(connection: apsw.Connection) -> None:
    """Close it. An error of its last checkpoint loses nothing: every commit is in the log, for the next opening."""
    with suppress(apsw.Error):
        connection.close()


@contextmanager
def _given_up_on_failure(connection: apsw.Connection) -> Iterator[None]:
    """On an error close the connection, which rolls back, and raise only errors of twophp."""
    try:
        yield
    except apsw.Error as error:
        path = connection.filename
        let_go(connection)
        raise translate(error, path) from error
    except TwoPHPError:
        let_go(connection)
        raise


def _insist_on_durability(connection: apsw.Connection, path: str) -> None:
    """Set what we promise, then check that it is set: some file systems and builds silently refuse it."""
    journal_mode = _into_wal(connection)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # Where fsync alone leaves data in the drive's cache.
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    # A failed fsync inside an automatic checkpoint would go unnoticed; the writer checkpoints by itself.
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    synchronous = connection.execute("PRAGMA synchronous").get
    if journal_mode != "wal" or synchronous != 2:  # noqa: PLR2004 - FULL
        message = f"{path}: needs WAL and synchronous=FULL, got {journal_mode} and {synchronous}"
        raise ConfigError(message, code="weak_durability")


def _into_wal(connection: apsw.Connection) -> str:
    """Switch to WAL. Two processes that make a new file at the same time collide here, and SQLite does not wait."""
    for _try in range(WAL_TRIES):
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").get)
        except apsw.BusyError:
            pause(WAL_PAUSE_S)
    return str(connection.execute("PRAGMA journal_mode = WAL").get)


def migrate(
    connection: apsw.Connection, path: str, schema: Schema = LEDGER, *, progress: Progress | None = None
) -> None:
    """Bring the schema to this version of twophp: a new file at once, another one numbered step after the other.

    All steps share one transaction, except a step that moves every row of a file (``Schema.long_steps``): it has
    transactions of its own, and if it is interrupted the next opening goes on with it.
    """
    with _given_up_on_failure(connection):
        connection.execute(sql("begin"))
        _harden_log(connection)
        with_schema = read_schema(connection, path, schema)
        steps = migrations(schema.package)
        if not with_schema:
            make_tables(connection, steps)
            with_schema = steps[-1][0]
            connection.execute(f"PRAGMA user_version = {with_schema}")
        for number, script in steps:
            if number > with_schema:
                connection.execute(script)
                connection.execute(f"PRAGMA user_version = {number}")
            if number in schema.long_steps and number >= with_schema:
                connection.execute(sql("commit"))
                schema.long_steps[number](connection, progress or logged(path))
                connection.execute(sql("begin"))
                with_schema = read_schema(connection, path, schema)  # Another process may have finished.
        connection.execute(f"PRAGMA application_id = {schema.application_id}")
        # A failed commit may lie behind the end of the log, where no reader sees it but a recovery would. This write
        # replaces it, so a record that reads as absent from here on stays absent.
        connection.execute(schema.prove_durable)
        connection.execute(sql("commit"))


def logged(path: str) -> Progress:
    """Progress for a service's log: a line every few seconds."""
    told_at = steady_seconds()

    def tell(done: int, total: int) -> None:
        nonlocal told_at
        if steady_seconds() - told_at >= LOG_EVERY_S:
            told_at = steady_seconds()
            log.info("%s: migrating, %d of %d rows", path, done, total)

    return tell


def belongs_to(path: str, schema: Schema) -> bool:
    """Whether a file is there, and is of this kind."""
    if not Path(path).is_file():
        return False
    try:
        connection = open_connection(path, read_only=True, schema=schema)
    except TwoPHPError:
        return False
    try:
        return bool(connection.execute("PRAGMA application_id").get == schema.application_id)
    except apsw.Error:  # It is no database.
        return False
    finally:
        let_go(connection)


def schema_of(path: str) -> int:
    """The number of a ledger's schema, old or current. Raises if the file is not a ledger's, or is too new."""
    if not Path(path).is_file():
        message = f"there is no database {path}"
        raise ConfigError(message, code="no_such_database")
    connection = open_connection(path, read_only=True)
    with _given_up_on_failure(connection):
        number = read_schema(connection, path, LEDGER)
    let_go(connection)
    return number


def open_without_room(path: str, schema: Schema = LEDGER) -> apsw.Connection:
    """A connection for reading a database of this version's schema on a full disk.

    The pages of its log are made durable in place, as ``migrate`` does, so a record that is read may be reported. A
    record that is absent may still turn up, until something was written.
    """
    connection = open_connection(path, must_exist=True, schema=schema)
    with _given_up_on_failure(connection):
        connection.execute(sql("begin"))
        _harden_log(connection)
        if read_schema(connection, path, schema) != migrations(schema.package)[-1][0]:
            raise StoreUnavailable(f"{path}: there is no room to migrate it", code="disk_full")
        roll_back(connection)
    return connection


def _harden_log(connection: apsw.Connection) -> None:
    """Write the log once more as it is, and sync it. Call it inside the write transaction, where nobody else writes.

    After a process has died its log is read back, and with it a commit whose sync may have failed. Such pages may be in
    memory only: a kernel that could not write a page calls it clean, and no later sync writes it. Everything that is
    appended behind it would be lost with it in a power cut, and a database that was half checkpointed could not be
    repaired. Written anew, the pages are dirty again; once they are synced, what was read back is durable.
    """
    try:
        with Path(connection.filename_wal).open("r+b", buffering=0) as log:
            offset = 0
            while chunk := os.pread(log.fileno(), COPY_BYTES, offset):
                offset += os.pwrite(log.fileno(), chunk, offset)
            os.fdatasync(log.fileno())
    except FileNotFoundError:
        return  # Nothing was written yet.
    except OSError as error:
        code = "disk_full" if error.errno == ENOSPC else "store_io_error"
        raise StoreUnavailable(f"the log cannot be written: {error}", code=code) from error


def _refuse_foreign_at_once(connection: apsw.Connection, path: str, schema: Schema) -> None:
    """Check inside one read transaction: between two reads, another process may have made the file ours."""
    connection.execute("BEGIN")
    try:
        read_schema(connection, path, schema)
    finally:
        roll_back(connection)


def read_schema(connection: apsw.Connection, path: str, schema: Schema) -> int:
    """The schema's number. Raises if the file is another program's, or of a newer version."""
    with_schema = int(connection.execute("PRAGMA user_version").get)
    newest = migrations(schema.package)[-1][0]
    owner = connection.execute("PRAGMA application_id").get
    if owner != schema.application_id and connection.execute(sql("count_tables")).get:
        raise SchemaMismatch(f"{path}: the file belongs to another program", code="foreign_database")
    if with_schema > newest:
        message = f"{path}: schema {with_schema} is newer than this twophp knows ({newest}); upgrade twophp"
        raise SchemaMismatch(message, code="schema_too_new")
    return with_schema
