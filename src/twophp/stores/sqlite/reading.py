"""Reading a database from outside: read-only, without migrating it and without making one that is missing.

Even for a read-only connection SQLite would leave two files beside a database that no process has open, and a service
of another user might then be unable to write them. So a database without a log is read as immutable: no lock is taken
and no file is made. If a service starts and folds its log into the file during the reading, the reading is refused at
its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

import apsw

from twophp.core.errors import ConfigError, SchemaMismatch, StoreError, StoreUnavailable, Tampered
from twophp.stores.sqlite.connection import APPLICATION_ID, CENTRAL_APPLICATION_ID, open_connection, translate
from twophp.stores.sqlite.seals import SealRow
from twophp.stores.sqlite.sql import migrations, sql
from twophp.stores.vault import key_name

_TABLES: Final = (
    "head",
    "meta",
    "intent",
    "obligation",
    "job",
    "call",
    "client_entry",
    "seal",
    "link",
    "writer",
    "old_journal",
)

_Stamp: TypeAlias = tuple[int, int, int]

UNREADABLE = ""
"""The name of the key for bytes that should be sealed and name no key."""


@contextmanager
def reading(path: str) -> Iterator[apsw.Connection]:
    """A read-only connection to a database of this version's schema, or an error that says why not."""
    if not Path(path).is_file():
        message = f"there is no database {path}"
        raise ConfigError(message, code="no_such_database")
    with _opened(path) as connection:
        _refuse_other_schema(connection, path)
        _refuse_missing_tables(connection, path)
        yield connection


@contextmanager
def _opened(path: str) -> Iterator[apsw.Connection]:
    log = Path(f"{Path(path).resolve()}-wal")  # SQLite follows links and keeps the log beside the file itself.
    before = None if log.exists() else _stamp(path)
    connection = open_connection(path, read_only=True, immutable=before is not None)
    try:
        yield connection
    except apsw.Error as error:
        _refuse_changed(path, before)  # Half of the old pages and half of the new look like damage.
        raise translate(error, path) from error
    finally:
        connection.close()
    _refuse_changed(path, before)


def _refuse_changed(path: str, before: _Stamp | None) -> None:
    if before is not None and before != _stamp(path):
        message = f"{path}: its service started while it was being read; try again"
        raise StoreUnavailable(message, code="changed_while_reading")


def _stamp(path: str) -> _Stamp:
    found = Path(path).stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


@contextmanager
def snapshot(path: str) -> Iterator[apsw.Connection]:
    """As ``reading``, and everything read inside the block is of one moment while other handles write on.

    Until the block ends, the write-ahead log cannot be folded back into the database and grows.
    """
    with reading(path) as connection:
        connection.execute(sql("begin_reading"))
        yield connection


def _refuse_other_schema(connection: apsw.Connection, path: str) -> None:
    newest = migrations()[-1][0]
    owner, schema = connection.execute("PRAGMA application_id").get, connection.execute("PRAGMA user_version").get
    if owner == CENTRAL_APPLICATION_ID:
        message = f"{path}: is a central ledger's database; ask the central ledger itself, by its URL"
        raise SchemaMismatch(message, code="central_database")
    if owner != APPLICATION_ID:
        message = f"{path}: the file does not belong to twophp"
        raise SchemaMismatch(message, code="foreign_database")
    if schema != newest:
        remedy = "upgrade twophp" if schema > newest else "start its service once, which migrates it"
        message = f"{path}: has schema {schema}, this twophp reads {newest}; {remedy}"
        raise SchemaMismatch(message, code="schema_too_new" if schema > newest else "schema_too_old")


def _refuse_missing_tables(connection: apsw.Connection, path: str) -> None:
    """Refuse here: a dropped table leaves nothing to compare, so no report could name the place."""
    missing = [name for name in _TABLES if not connection.execute(sql("find_table"), (name,)).get]
    if missing:
        message = f"{path}: has no table {', '.join(missing)}; restore the database from its backup"
        raise StoreError(message, code="store_corrupt")


def holds_seals(path: str) -> bool:
    """Whether the database has anything sealed. False for a file that does not exist; it is not made."""
    if not Path(path).is_file():
        return False
    with _opened(path) as connection:
        # A file before its migration, or half way through it, keeps the seals in other tables.
        return any(
            connection.execute(sql("find_table"), (name,)).get and connection.execute(sql(statement)).get
            for name, statement in (("seal", "any_separate_seal"), ("old_seal", "any_old_seal"), ("link", "any_seal"))
        )


def newest_seals(path: str) -> tuple[str, list[SealRow]]:
    """The service that sealed the parts of this database, and the parts that it sealed last."""
    if not holds_seals(path):
        return "", []
    with reading(path) as connection:
        return kept(connection, "service") or "", [SealRow(*row) for row in connection.execute(sql("newest_seals"))]


def rows_by_key(path: str) -> dict[str, int]:
    """How many sealed parts name each key; under ``UNREADABLE`` those that name none."""
    with reading(path) as connection:
        return dict(Counter(_name(header) for (header,) in connection.execute(sql("seal_headers"))))


def _name(header: bytes) -> str:
    try:
        return key_name(header).decode(errors="replace")
    except Tampered:
        return UNREADABLE


def kept(connection: apsw.Connection, name: str) -> str | None:
    """A setting that the store keeps, or None. A missing setting is not made."""
    try:
        value: str | None = connection.execute(sql("read_meta"), (name,)).get
    except UnicodeDecodeError as error:
        message = f"{connection.filename}: the setting {name} cannot be read; restore the database from its backup"
        raise StoreError(message, code="store_corrupt") from error
    return value
