"""Verification of the registrar's rows: triggers keep them from being changed, and this finds changes that evaded them.

A consumed key is bound by its line: the line has the replay key, and the replay key is the digest of what was meant, so
an edited row cannot have its own digest. The inert row and the use of the nonce were written in the same transaction
and repeat what the consumed key says. Verdicts, compensations, fences and the gate have lines of their own.

Not bound by any line: the attempt of a row, the window of a nonce, unused nonces, and the failure audit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from twophp.core.registration import DRAFT
from twophp.stores.sqlite.registrar_tables import consumed_of

# What the line about a row repeats of it, in the order in which the statement gives both.
_REPEATED: Final = {
    "verdicts_with_line": ("verdict", ("logical_request_key", "verdict", "verified_at")),
    "compensations_with_line": ("compensation", ("logical_request_key", "event", "compensated_at")),
    "key_fences_with_line": ("fence of a key", ("logical_request_key", "version", "fenced_at")),
    "gates_with_line": ("gate", ("state", "authority or reason", "changed_at")),
}


CONSUMED: Final = "consumed_with_line"
STATEMENTS: Final = (CONSUMED, *_REPEATED)
"""They find every row that is there, with the line about it."""


class Problem(NamedTuple):
    """One thing that is wrong with the registrar's rows."""

    what: Literal["record_differs", "record_missing"]
    message: str
    seq: int | None
    subject: str


def of_gone(seq: int, subject: str, event: str) -> Problem:
    """A row that the journal tells of and that is not there (``registrar_rows_gone``)."""
    message = f"registrar, {subject}: the row that line {seq} ({event}) tells of is gone"
    return Problem("record_missing", message, seq, subject)


def of_row(name: str, row: Sequence[Any]) -> list[Problem]:
    """What is wrong with a row that is there, found by the statement of that name."""
    if name == CONSUMED:
        return _of_consumed(tuple(row))
    kind, names = _REPEATED[name]
    seq, *facts = row
    return _of_row(kind, names, seq, facts[:3], facts[3:])


def _of_consumed(row: tuple[Any, ...]) -> list[Problem]:
    seq, subject, detail, at, *beside = row[:10]
    key = consumed_of(row[10:])
    told = f"consumed key {key.logical_request_key}"
    if seq is None:
        return [Problem("record_differs", f"{told}: the journal has no line about it", None, key.logical_request_key)]
    bound = key.is_complete and (subject, detail, at) == (key.logical_request_key, key.digest(), key.consumed_at)
    inert_key, registered_at, status, used_by, used_at, nonce_is_there = beside
    inert = (inert_key, registered_at, status) == (key.replay_key, key.consumed_at, DRAFT)
    used = (used_by, used_at) == (key.logical_request_key, key.consumed_at)
    checks = [
        (bound and key.replay_key == detail, "record_differs", "what was meant, by whom or when was changed"),
        (inert, "record_missing" if inert_key is None else "record_differs", "its inert row is gone or was changed"),
        (used, "record_missing" if used_by is None else "record_differs", "its nonce's use is gone or was changed"),
        (nonce_is_there, "record_missing", "the nonce that allowed it is gone or was changed"),
    ]
    return [
        Problem(what, f"{told}: {problem}", seq, key.logical_request_key)  # type: ignore[arg-type]
        for holds, what, problem in checks
        if not holds
    ]


def _of_row(kind: str, names: tuple[str, ...], seq: int | None, said: list[Any], found: list[Any]) -> list[Problem]:
    if seq is None:
        return [Problem("record_differs", f"{kind} {found[0]}: the journal has no line about it", None, str(found[0]))]
    return [
        Problem(
            "record_differs", f"{kind} {found[0]}: {name} is {is_!r}, as line {seq} says {should!r}", seq, str(found[0])
        )
        for name, is_, should in zip(names, found, said, strict=True)
        if is_ != should
    ]
