"""The registrar's records as rows. Those that are written once have no update: nothing ever asks for one."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

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

_VERDICTS: Final = {status.value: status for status in VerifyStatus}


def _written_once(kind: str, reads: dict[str, str], record: Callable[[Row], Record]) -> Table:
    return Table(
        kind=kind,
        reads={by: sql(name) for by, name in reads.items()},
        identity=next(iter(reads)),
        insert=sql(f"insert_{kind}"),
        update="",
        delete=sql(f"delete_{kind}"),
        record=record,
        row=msgspec.structs.astuple,
        changes=_refuse,
    )


def _refuse(record: Any) -> Row:
    raise AssertionError(f"{record!r} is written once")


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


def consumed_of(row: Row) -> Consumed:
    """A consumed key, read back."""
    return Consumed(*row[1:])


def compensated_of(row: Row) -> Compensated:
    """A compensation, read back."""
    return Compensated(*row[1:])


def failure_of(row: Row) -> Failure:
    """A line of the audit, read back."""
    return Failure(*row[1:])


def readback_registration(consumed: Row, replay_key: str, status: str) -> Registration:
    """What the inert row says, with the fields that the consume row binds."""
    row = consumed_of(consumed)
    found = registration_of(row, None, status)
    # Two rows that do not name the same digest are not one registration: no recomputed digest will fit this.
    return found if replay_key == row.replay_key else msgspec.structs.replace(found, replay_key="")


REGISTRAR_TABLES: Final[dict[type, Table]] = {
    Consumed: _written_once(
        "consumed", {BY_CONSUMED_KEY: "consumed_by_key", BY_EFFECT: "consumed_by_effect"}, consumed_of
    ),
    Inert: _written_once("inert", {BY_INERT_KEY: "inert_by_key"}, lambda row: Inert(*row[1:])),
    NonceIssue: _written_once("nonce", {BY_NONCE: "nonce_by_value"}, lambda row: NonceIssue(*row[1:])),
    NonceUse: _written_once("nonce_use", {BY_NONCE_USE: "nonce_use_by_value"}, lambda row: NonceUse(*row[1:])),
    Verification: _written_once(
        "verification",
        {BY_VERIFIED: "verification_by_subject", BY_PASSED_COMPENSATION: "verification_by_passed_compensation"},
        verification_of,
    ),
    Compensated: _written_once("compensation", {BY_COMPENSATION_NONCE: "compensation_by_nonce"}, compensated_of),
    Failure: _written_once("failure", {BY_FAILURE: "failure_by_id"}, failure_of),
    Gate: Table(
        kind="registrar_gate",
        reads={BY_GATE: sql("gate_by_name")},
        identity=BY_GATE,
        insert=sql("insert_gate"),
        update=sql("update_gate"),
        delete=sql("delete_gate"),
        record=gate_of,
        row=msgspec.structs.astuple,
        changes=attrgetter("is_open", "authority_ref", "reason", "changed_at", "version"),
    ),
    KeyFence: Table(
        kind="key_fence",
        reads={BY_KEY_FENCE: sql("key_fence_by_key")},
        identity=BY_KEY_FENCE,
        insert=sql("insert_key_fence"),
        update=sql("update_key_fence"),
        delete=sql("delete_key_fence"),
        record=lambda row: KeyFence(*row[1:]),
        row=msgspec.structs.astuple,
        changes=attrgetter("fenced_at", "version"),
    ),
}
