"""Opening a database so that what it says is durable, and the one table that maps its errors onto ours."""

from __future__ import annotations

from typing import Final

import apsw

from twophp.core.errors import ConfigError, SchemaMismatch, StoreError, StoreUnavailable, TwoPHPError
from twophp.stores.sqlite.sql import migrations, sql

APPLICATION_ID: Final = 0x32504850  # "2PHP": the file says whose it is.
BUSY_TIMEOUT_MS: Final = 5_000
CACHE_KIB: Final = 32 * 1024  # Enough for a batch of large payloads without spilling into the log half way.

_FSYNC_FAILURES: Final = frozenset({apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC})

# What SQLite says -> what we say. The first match counts.
_ERRORS: Final[tuple[tuple[type[apsw.Error], type[TwoPHPError], str, str], ...]] = (
    (apsw.FullError, StoreUnavailable, "disk_full", "the disk is full"),
    (apsw.BusyError, StoreUnavailable, "store_busy", "another process holds the database"),
    (apsw.IOError, StoreUnavailable, "store_io_error", "the disk failed"),
    (apsw.ReadOnlyError, StoreUnavailable, "store_read_only", "the database cannot be written"),
    (apsw.CantOpenError, StoreUnavailable, "store_cannot_open", "the database cannot be opened"),
    (apsw.NotADBError, SchemaMismatch, "not_a_database", "the file is not a database"),
    (apsw.CorruptError, StoreError, "store_corrupt", "the database is damaged"),
    (apsw.ConstraintError, StoreError, "constraint", "the change breaks a constraint"),
    (apsw.TooBigError, StoreError, "too_big", "a value is too big for the database"),
)

# The disk, another process, the machine: trouble that strikes everybody alike, whoever's change met it first.
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


def translate(error: apsw.Error) -> TwoPHPError:
    """Our error for one of SQLite's."""
    for theirs, ours, code, message in _ERRORS:
        if isinstance(error, theirs):
            return ours(f"{message}: {error}", code=code)
    return StoreError(str(error))


def is_outside_fault(error: Exception) -> bool:
    """Whether everybody who waits must hear of it. Anything else is the fault of one change, and only its caller's."""
    return isinstance(error, _OUTSIDE_FAULTS)


def is_fsync_failure(error: apsw.Error) -> bool:
    """After one of these nobody knows what is durable; the kernel may even have dropped the pages."""
    return getattr(error, "extendedresult", 0) in _FSYNC_FAILURES


def open_connection(path: str, *, read_only: bool = False) -> apsw.Connection:
    """A connection in WAL mode that syncs at every commit, or an error that says what is wrong."""
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    try:
        connection = apsw.Connection(path, flags=flags)
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        if not read_only:
            _insist_on_durability(connection, path)
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute("PRAGMA foreign_keys = ON")
    except apsw.Error as error:
        raise translate(error) from error
    return connection


def _insist_on_durability(connection: apsw.Connection, path: str) -> None:
    """Ask for what we promise, then check that we got it: some file systems and builds silently say no."""
    journal_mode = connection.execute("PRAGMA journal_mode = WAL").get
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # Where fsync alone leaves data in the drive's cache.
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    # A failed fsync inside an automatic checkpoint would go unnoticed; the writer checkpoints by itself.
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    synchronous = connection.execute("PRAGMA synchronous").get
    if journal_mode != "wal" or synchronous != 2:  # noqa: PLR2004 - FULL
        message = f"{path}: needs WAL and synchronous=FULL, got {journal_mode} and {synchronous}"
        raise ConfigError(message, code="weak_durability")


def migrate(connection: apsw.Connection, path: str) -> None:
    """Bring the schema to this version of twophp, one numbered step after the other, all in one transaction."""
    steps = migrations()
    newest = steps[-1][0]
    try:
        connection.execute(sql("begin"))
        with_schema = connection.execute("PRAGMA user_version").get
        _refuse_foreign(connection, path, with_schema, newest)
        for number, script in steps:
            if number > with_schema:
                connection.execute(script)
                connection.execute(f"PRAGMA user_version = {number}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        # Also the fence after a commit of unknown outcome: once this write is durable, no frame that an earlier
        # failed fsync left behind can come back to life.
        connection.execute(sql("prove_durable"))
        connection.execute(sql("commit"))
    except apsw.Error as error:
        _abort(connection)
        raise translate(error) from error
    except TwoPHPError:
        _abort(connection)
        raise


def _abort(connection: apsw.Connection) -> None:
    if connection.in_transaction:
        connection.execute(sql("rollback"))


def _refuse_foreign(connection: apsw.Connection, path: str, with_schema: int, newest: int) -> None:
    if with_schema > newest:
        message = f"{path}: schema {with_schema} is newer than this twophp knows ({newest}); upgrade twophp"
        raise SchemaMismatch(message, code="schema_too_new")
    owner = connection.execute("PRAGMA application_id").get
    has_tables = connection.execute(sql("count_tables")).get
    if owner != APPLICATION_ID and has_tables:
        message = f"{path}: the file belongs to another program"
        raise SchemaMismatch(message, code="foreign_database")
