"""The registrar's side of a SQLite file: the one handle that may write its rows, and a reader that trusts no handle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from twophp.core.compensation import CompensationReadback
from twophp.core.registrar import Look, Readback
from twophp.core.registrar_records import (
    Compensated,
    Consumed,
    Failure,
    Gate,
    Unverified,
    compensation_of,
    registration_of,
)
from twophp.core.registration import Registration
from twophp.stores.sqlite.connection import open_connection, translate
from twophp.stores.sqlite.registrar_tables import (
    compensated_of,
    consumed_of,
    failure_of,
    gate_of,
    readback_registration,
    verification_of,
)
from twophp.stores.sqlite.sql import sql
from twophp.stores.sqlite.store import SQLiteStore
from twophp.stores.sqlite.table import Row

_CONSUMED_COLUMNS = 1 + len(Consumed.__struct_fields__)
_COMPENSATED_COLUMNS = 1 + len(Compensated.__struct_fields__)


def as_registrar(connection: apsw.Connection) -> None:
    """Let this connection write the registrar's rows: their guards ask for this function (criterion e)."""
    connection.create_scalar_function(
        "twophp_registrar", lambda *_: 1, 0, deterministic=True, flags=apsw.SQLITE_INNOCUOUS
    )


class RegistrarStore(SQLiteStore):
    """The store whose writer is the registrar."""

    def _open(self, *, must_exist: bool = False) -> None:
        super()._open(must_exist=must_exist)
        as_registrar(self._connection)


class SQLiteWitness:
    """An independent reader: its own read-only connection sees committed rows only, and no cache of a writer.

    A reader from outside brings a connection that leaves no file beside the database: see ``reading``.
    """

    def __init__(self, path: str, connection: apsw.Connection | None = None) -> None:
        self._path = path
        self._connection = connection or open_connection(path, read_only=True)

    async def schema(self) -> int:
        """A number that changes when a table or a trigger is altered."""
        return int(self._rows_of("PRAGMA schema_version")[0][0])

    async def look(self, key: str) -> Look:
        """What an attempt sees when it begins."""
        ((consumed, fence, gate),) = self._rows("look_at_key", key)
        return Look(is_free=not consumed, fence=fence, gate=gate)

    async def readback(self, key: str) -> Readback:
        """What stands under a key, read row by row and believed nowhere."""
        rows = self._rows("readback", key)
        used_by = rows[0][-1] if rows else None
        found = tuple(readback_registration(row[:_CONSUMED_COLUMNS], *row[_CONSUMED_COLUMNS:-1]) for row in rows)
        return Readback(registrations=found, nonce_consumed_by=used_by)

    async def readback_of_compensation(self, nonce: str) -> CompensationReadback | None:
        """What stands under a compensation's nonce."""
        rows = self._rows("readback_of_compensation", nonce)
        if not rows:
            return None
        row = rows[0]
        return CompensationReadback(
            compensation=compensation_of(compensated_of(row[:_COMPENSATED_COLUMNS]), None),
            nonce_consumed_by=row[_COMPENSATED_COLUMNS],
            registrations=row[_COMPENSATED_COLUMNS + 1],
        )

    async def find(self, key: str) -> Registration | None:
        """The registration under a key, as far as it is committed."""
        consumed = self._rows("registrar_consumed_of_key", key)
        verdicts = self._rows("registrar_verdict_of_key", key)
        if not consumed:
            return None
        return registration_of(consumed_of(consumed[0]), verification_of(verdicts[0]) if verdicts else None)

    async def compensations(self, key: str, limit: int) -> Sequence[Compensated]:
        """Every compensation of a key, oldest first."""
        return [compensated_of(row) for row in self._rows("registrar_compensations_of_key", key, limit)]

    async def unverified(self, limit: int) -> Sequence[Unverified]:
        """What waits for a verdict, oldest first."""
        keys = [Unverified("registration", key, key) for (key,) in self._rows("unverified_registrations", limit)]
        nonces = [
            Unverified("compensation", nonce, key) for key, nonce in self._rows("unverified_compensations", limit)
        ]
        return [*keys, *nonces]

    async def erased(self, limit: int, *, by_history: bool) -> Sequence[str]:
        """Keys that were consumed and are not there: as other rows say, or as the whole journal says."""
        return [key for (key,) in self._rows("erased_in_journal" if by_history else "erased_keys", limit)]

    async def failures(self, key: str | None, limit: int) -> Sequence[Failure]:
        """The failure audit, newest first."""
        rows = self._rows("failures_newest", limit) if key is None else self._rows("failures_of_key", key, limit)
        return [failure_of(row) for row in rows]

    async def gate(self) -> Gate | None:
        """The gate as it is."""
        rows = self._rows("registrar_gate_now")
        return gate_of(rows[0]) if rows else None

    async def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def _rows(self, name: str, *bindings: Any) -> list[Row]:
        return self._rows_of(sql(name), bindings)

    def _rows_of(self, statement: str, bindings: tuple[Any, ...] = ()) -> list[Row]:
        try:
            return list(self._connection.execute(statement, bindings))
        except apsw.Error as error:
            raise translate(error, self._path) from error
