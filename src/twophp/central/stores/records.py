"""From a database's rows to the values of the port; columns stand in the order of the fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from twophp.central.ports import Role, Row, Service, Token
from twophp.core.entry import LedgerEntry
from twophp.core.intent import Mode, Phase

COLUMNS: Final = 1 + len(LedgerEntry.__struct_fields__)
"""The number of a row and its fields. What a database keeps behind them is its own business."""

_decode: Final = msgspec.msgpack.Decoder(list[Any]).decode
_MODES: Final = {mode.value: mode for mode in Mode}
_PHASES: Final = {phase.value: phase for phase in Phase}


def row_of(row: Sequence[Any]) -> Row:
    """A ledger row under its number. Spelled out by position: exports and trees are many rows."""
    values = list(row)
    values[9] = _PHASES[row[9]]
    values[13] = _PHASES[row[13]] if row[13] is not None else None
    values[18] = _MODES[row[18]]
    values[19] = bool(row[19])
    values[22] = bool(row[22])
    return Row(row[0], LedgerEntry(*values[1:COLUMNS]))


def past_row_of(row: Sequence[Any]) -> Row | None:
    """A superseded version under its number; None where only the number was kept."""
    sequence, _superseded_by, leaf = row
    if leaf is None:
        return None
    fields = _decode(leaf)
    return row_of([sequence, *fields, *[False] * (COLUMNS - 1 - len(fields))])


def sequence_of(row: Row) -> int:
    """To sort by."""
    return row.sequence


def shape(kind: type[msgspec.Struct]) -> Callable[[Sequence[Any]], Any]:
    """Makes a value of this kind of a row."""
    names = kind.__struct_fields__
    return lambda row: kind(**dict(zip(names, row, strict=True)))


service_of: Final = shape(Service)


def token_of(row: Sequence[Any]) -> Token:
    """A token as the databases keep it."""
    token_id, name, roles, created_at, service_ledger_id, expires_at, revoked_at, last_used_at = row
    return Token(
        token_id=token_id,
        name=name,
        roles=frozenset(map(Role, roles.split())),
        created_at=created_at,
        service_ledger_id=service_ledger_id,
        expires_at=expires_at,
        revoked_at=revoked_at,
        last_used_at=last_used_at,
    )


def token_values(token: Token, secret_hash: bytes) -> tuple[Any, ...]:
    """The columns of a token."""
    roles = " ".join(sorted(token.roles))
    times = (token.created_at, token.expires_at, token.revoked_at, token.last_used_at)
    return (token.token_id, secret_hash, token.name, roles, *times)
