"""The registrar's records as rows. Those that are written once have no update: nothing ever asks for one."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec

from twophp.core.records import Record
from twophp.core.registrar_records import (
    BY_COMPENSATION_NONCE,
    BY_CONSUMED_KEY,
    BY_EFFECT,
    BY_FAILURE,
    BY_GATE,
    BY_INERT_KEY,
    BY_KEY_FENCE,
    BY_NONCE,
    BY_NONCE_USE,
    BY_PASSED_COMPENSATION,
    BY_VERIFIED,
    Compensated,
    Consumed,
    Failure,
    Gate,
    Inert,
    KeyFence,
    NonceIssue,
    NonceUse,
    Verification,
    registration_of,
)
from twophp.core.registration import Registration, VerifyStatus
from twophp.stores.sqlite.sql import sql
from twophp.stores.sqlite.table import Row, Table

R = TypeVar("R", bound=Record)

_VERDICTS: Final = {status.value: status for status in VerifyStatus}


def _reader(of: type[R]) -> Callable[[Row], R]:
    """Reads a record whose columns stand in the order of its fields, behind the id, and need no conversion."""
    return lambda row: of(*row[1:])


def verification_of(row: Row) -> Verification:
    """A verdict, read back."""
    values = list(row)
    values[4] = _VERDICTS[row[4]]
    return Verification(*values[1:])


def gate_of(row: Row) -> Gate:
    """The gate, read back."""
    values = list(row)
    values[1] = bool(row[1])
    return Gate(*values[1:])


consumed_of: Final = _reader(Consumed)
compensated_of: Final = _reader(Compensated)
failure_of: Final = _reader(Failure)


def readback_registration(consumed: Row, replay_key: str, status: str) -> Registration:
    """What the inert row says, with the fields that the consume row binds."""
    row = consumed_of(consumed)
    found = registration_of(row, None, status)
    # Two rows that do not name the same digest are not one registration: no recomputed digest will fit this.
    return found if replay_key == row.replay_key else msgspec.structs.replace(found, replay_key="")


def _table(
    record: Callable[[Row], Record],
    of: type[msgspec.Struct],
    kind: str,
    name: str,
    reads: dict[str, str],
    changes: tuple[str, ...] = (),
) -> Table:
    """``reads`` has for each key the columns of its values, and ``changes`` are those that an update sets, if any."""
    values = ", ".join("?" * (1 + len(of.__struct_fields__)))
    settings = ", ".join(f"{column} = ?" for column in changes)
    return Table(
        kind=kind,
        reads={by: sql("registrar_read").format(table=name, key=_key(columns)) for by, columns in reads.items()},
        identity=next(iter(reads)),
        insert=sql("registrar_insert").format(table=name, values=values),
        update=sql("registrar_update").format(table=name, settings=settings) if changes else "",
        delete=sql("registrar_delete").format(table=name),
        record=record,
        row=msgspec.structs.astuple,
        changes=attrgetter(*changes) if changes else _refuse,
    )


def _key(columns: str) -> str:
    """The columns' comparison with the values of a key. Behind AND come conditions that take no value."""
    names, *more = columns.split(" AND ")
    compared = [f"{column} = wanted.value ->> {place}" for place, column in enumerate(names.split())]
    return " AND ".join((*compared, *more))


def _refuse(record: Any) -> Row:
    raise AssertionError(f"{record!r} is written once")


_KEY: Final = "logical_request_key"
_NONCE: Final = "authorization_nonce"
_EFFECT: Final = "canonical_operation canonical_target deployed_artifact_hash effect_run_id"
_SUBJECT: Final = "about subject"
_PASSED: Final = {BY_PASSED_COMPENSATION: f"{_KEY} AND about = 'compensation' AND verdict = 'PASS'"}
_OF_GATE: Final = ("is_open", "authority_ref", "reason", "changed_at", "version")

REGISTRAR_TABLES: Final[dict[type, Table]] = {
    Consumed: _table(
        consumed_of, Consumed, "consumed", "registrar_consumed", {BY_CONSUMED_KEY: _KEY, BY_EFFECT: _EFFECT}
    ),
    Inert: _table(_reader(Inert), Inert, "inert", "registrar_registration", {BY_INERT_KEY: _KEY}),
    NonceIssue: _table(_reader(NonceIssue), NonceIssue, "nonce", "registrar_nonce", {BY_NONCE: _NONCE}),
    NonceUse: _table(_reader(NonceUse), NonceUse, "nonce_use", "registrar_nonce_use", {BY_NONCE_USE: _NONCE}),
    Verification: _table(
        verification_of, Verification, "verification", "registrar_verification", {BY_VERIFIED: _SUBJECT, **_PASSED}
    ),
    Compensated: _table(
        compensated_of, Compensated, "compensation", "registrar_compensation", {BY_COMPENSATION_NONCE: _NONCE}
    ),
    Failure: _table(failure_of, Failure, "failure", "registrar_audit", {BY_FAILURE: "failure_id"}),
    Gate: _table(gate_of, Gate, "registrar_gate", "registrar_gate", {BY_GATE: "name"}, _OF_GATE),
    KeyFence: _table(
        _reader(KeyFence), KeyFence, "key_fence", "registrar_fence", {BY_KEY_FENCE: _KEY}, ("fenced_at", "version")
    ),
}
