"""How records become rows: the same descriptions as SQLite's, and the statements that follow from them.

A statement takes its rows as one array for each column, so it is sent, planned and run once, however many there are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from types import NoneType
from typing import Any, Final, get_args, get_type_hints

import msgspec
from msgspec.structs import replace

from twophp.core.budget import BY_FLOW, Spent
from twophp.core.call import BY_CLIENT_ID, FIXED_FIELDS, Call
from twophp.core.entry import LedgerEntry
from twophp.core.fence import BY_RESOURCE, Fence
from twophp.core.intent import BY_LOGICAL_KEY, BY_PAIR, BY_SERVER_ID, CHANGING_FIELDS, Intent
from twophp.core.job import BY_JOB_ID, Job
from twophp.core.obligation import BY_FLOW_AND_KEY, BY_ID, Obligation
from twophp.core.quota import BY_PRINCIPAL, Usage
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
)
from twophp.stores.postgres.text import kept_column, kept_values
from twophp.stores.sqlite.sql import named
from twophp.stores.sqlite.table import Row, Table
from twophp.stores.sqlite.tables import TABLE_OF_RECORD

_TYPES: Final = {int: "bigint", bool: "boolean", bytes: "bytea"}


@cache
def _named() -> dict[str, str]:
    folder, found = files(__package__), dict[str, str]()
    for name in ("copy.sql", "queries.sql", "registrar.sql", "rotate.sql", "verify.sql"):
        found |= named(folder.joinpath(name).read_text(encoding="utf-8"))
    return found


def sql(name: str) -> str:
    """The statement called ``name``, without its end: it may become a part of another."""
    return _named()[name].rstrip(";")


_ARRAYS: Final = re.compile(r"\bunnest\(((?:\$\d+::\w+\[\][,\s]*)+)\)(\s+AS\b)?")


class Statement(msgspec.Struct, frozen=True):
    """A statement over a set of rows, and the types of their columns."""

    text: str
    types: tuple[str, ...]
    counts: bool = False  # Whether it has to change as many rows as it is given.
    is_lone: bool = False  # It takes one row, without arrays.

    def bound(self, rows: Sequence[Row]) -> list[Sequence[Any]]:
        """The rows, column by column."""
        if self.is_lone:
            return kept_values(rows[0])
        columns = zip(*rows, strict=True)
        return [
            kept_column(column) if kind == "text" else column for kind, column in zip(self.types, columns, strict=True)
        ]


@cache
def lone(statement: Statement) -> Statement:
    """The same for one row: arrays of one value cost the driver and the server more than the value."""
    text = _ARRAYS.sub(lambda found: f"(VALUES ({found[1].replace('[]', '')})){found[2] or ' AS one'}", statement.text)
    return statement if text == statement.text else replace(statement, text=text, is_lone=True)


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of record: its description, and what is run for it."""

    name: str
    table: Table
    fields: tuple[str, ...]
    loads: tuple[tuple[frozenset[str], int, str], ...]  # The keys, how many values, the statement that locks them.
    reads: tuple[tuple[frozenset[str], int, str], ...]  # The same without a lock.
    insert: Statement
    update: Statement
    delete: Statement
    columns: int  # Of a row that was found; a lock may tell more after them.
    has_second_key: bool  # An update may let go of a key that an insert takes.


def _types_of(struct: type, names: Sequence[str]) -> tuple[str, ...]:
    hints = get_type_hints(struct)
    found = []
    for name in names:
        of = [one for one in (get_args(hints[name]) or (hints[name],)) if one is not NoneType]
        found.append(next((_TYPES[one] for one in of if one in _TYPES), "text"))
    return tuple(found)


def arrays(types: Sequence[str]) -> str:
    """Placeholders for arrays of these types."""
    return ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(types, 1))


def _inserting(name: str, columns: Sequence[str], types: tuple[str, ...]) -> Statement:
    text = sql("insert_rows").format(table=name, columns=", ".join(columns), arrays=arrays(types))
    return Statement(text, types, counts=True)


def _updating(name: str, sets: str, columns: Sequence[str], types: tuple[str, ...], guard: str) -> Statement:
    listed = ", ".join(columns)
    text = sql("update_rows").format(table=name, sets=sets, columns=listed, arrays=arrays(types), guard=guard)
    return Statement(text, types, counts=True)


def _find(name: str, columns: Sequence[str], where: str, arity: int) -> str:
    listed = ", ".join(f"t.{column}" for column in columns)
    if arity == 1:
        return sql("find_rows").format(table=name, columns=listed, where=where)
    texts = arrays(("text",) * arity)
    return sql("find_rows_by_several").format(
        table=name, columns=listed, where=where, arrays=texts, names=", ".join("abcd"[:arity])
    )


def _kind(
    record: type,
    name: str,
    keys: Sequence[tuple[set[str], int, str]],
    changing: Sequence[str],
    *,
    lock: str | None = "lock_rows",
) -> Kind:
    """``lock`` is how a batch locks what it finds: nothing has to keep rows that nobody can change."""
    fields: tuple[str, ...] = record.__struct_fields__  # type: ignore[attr-defined]
    table = TABLE_OF_RECORD[record]
    pointer = ("last_line",) if table.line_column else ()
    seals = ("payload", "response") if record is Intent else ()
    columns, types = ("id", *fields, *pointer), ("bigint", *_types_of(record, fields), *("bigint" for _ in pointer))
    loads = tuple((frozenset(by), arity, _find(name, columns, where, arity)) for by, arity, where in keys)
    sets = ", ".join(f"{column} = n.{column}" for column in (*changing, *pointer))
    new, new_types = (*changing, *pointer), (*_types_of(record, changing), *("bigint" for _ in pointer))
    more: tuple[str, ...] = ()
    more_types: tuple[str, ...] = ()
    all_columns, all_types = columns, types
    if seals:
        # A change that is not the ledger's leaves its row as it is; any other has to be sent again.
        sets += ", row_version = CASE WHEN n.row_version > 0 THEN n.row_version ELSE t.row_version END"
        sets += ", sync_timestamp = CASE WHEN n.row_version > 0 THEN NULL ELSE t.sync_timestamp END"
        sets += "".join(f", {part} = CASE WHEN n.has_{part}_now THEN n.{part} ELSE t.{part} END" for part in seals)
        more = ("row_version", "has_payload_now", "payload", "has_response_now", "response")
        more_types = ("bigint", "boolean", "bytea", "boolean", "bytea")
        all_columns = (*columns, "row_version", "forgotten", *seals)
        all_types = (*types, "bigint", "boolean", "bytea", "bytea")
    return Kind(
        name=name,
        table=table,
        fields=fields,
        loads=tuple((by, arity, sql(lock).format(find=text)) for by, arity, text in loads) if lock else loads,
        reads=loads,
        insert=_inserting(name, all_columns, all_types),
        update=_updating(
            name,
            sets,
            ("id", "stored", *new, *more),
            ("bigint", "bigint", *new_types, *more_types),
            "t.id = n.id AND t.version = n.stored",
        ),
        delete=Statement(sql("delete_rows").format(table=name), ("bigint",)),
        columns=len(columns),
        has_second_key=record is Obligation,
    )


def _written_once(record: type, name: str, *keys: tuple[set[str], int, str]) -> Kind:
    """A kind of the registrar's. Its rows never change, so nobody locks them."""
    return _kind(record, f"registrar_{name}", keys, (), lock=None)


# In the order in which they are locked.
KINDS: Final = (
    _kind(
        KeyFence,
        "registrar_fence",
        (({BY_KEY_FENCE}, 1, "t.logical_request_key = ANY($1::text[])"),),
        ("fenced_at", "version"),
    ),
    _written_once(
        Consumed,
        "consumed",
        ({BY_CONSUMED_KEY}, 1, "t.logical_request_key = ANY($1::text[])"),
        (
            {BY_EFFECT},
            4,
            sql("is_effect"),
        ),
    ),
    _written_once(Inert, "registration", ({BY_INERT_KEY}, 1, "t.logical_request_key = ANY($1::text[])")),
    _written_once(NonceIssue, "nonce", ({BY_NONCE}, 1, "t.authorization_nonce = ANY($1::text[])")),
    _written_once(NonceUse, "nonce_use", ({BY_NONCE_USE}, 1, "t.authorization_nonce = ANY($1::text[])")),
    _written_once(
        Verification,
        "verification",
        ({BY_VERIFIED}, 2, "t.about = w.a AND t.subject = w.b"),
        (
            {BY_PASSED_COMPENSATION},
            1,
            "t.logical_request_key = ANY($1::text[]) AND t.about = 'compensation' AND t.verdict = 'PASS'",
        ),
    ),
    _written_once(Compensated, "compensation", ({BY_COMPENSATION_NONCE}, 1, "t.authorization_nonce = ANY($1::text[])")),
    _written_once(Failure, "audit", ({BY_FAILURE}, 1, "t.failure_id = ANY($1::text[])")),
    _kind(
        Intent,
        "intent",
        (
            ({BY_PAIR, BY_LOGICAL_KEY}, 1, "t.client_correlation_id = ANY($1::text[]) AND NOT t.forgotten"),
            (
                {BY_SERVER_ID},
                1,
                "t.server_correlation_id = ANY($1::text[]) AND t.mode = 'async' AND NOT t.forgotten",
            ),
        ),
        CHANGING_FIELDS,
    ),
    _kind(
        Obligation,
        "obligation",
        (
            ({BY_ID}, 1, "t.obligation_id = ANY($1::text[])"),
            ({BY_FLOW_AND_KEY}, 2, "t.flow = w.a AND t.key = w.b AND t.state = 'Reserved' AND t.key <> ''"),
        ),
        Obligation.__struct_fields__[7:],
    ),
    _kind(Job, "job", (({BY_JOB_ID}, 1, "t.job_id = ANY($1::text[])"),), Job.__struct_fields__[5:]),
    _kind(
        Call,
        "call",
        (({BY_CLIENT_ID}, 1, "t.client_correlation_id = ANY($1::text[])"),),
        Call.__struct_fields__[FIXED_FIELDS:],
    ),
    _kind(Fence, "fence", (({BY_RESOURCE}, 1, "t.resource = ANY($1::text[])"),), Fence.__struct_fields__[1:]),
    _kind(
        Gate,
        "registrar_gate",
        (({BY_GATE}, 1, "t.name = ANY($1::text[])"),),
        Gate.__struct_fields__[:5],
        lock="share_rows",
    ),
    # Counts are the hottest rows: they are locked last.
    _kind(Spent, "budget", (({BY_FLOW}, 1, "t.flow = ANY($1::text[])"),), Spent.__struct_fields__[1:]),
    _kind(
        Usage,
        "quota",
        (({BY_PRINCIPAL}, 1, "t.principal = ANY($1::text[])"),),
        Usage.__struct_fields__[1:],
        lock="lock_usage",
    ),
)
KIND_OF_TABLE: Final = {kind.table.kind: kind for kind in KINDS}
KIND_OF_RECORD: Final = {
    record: KIND_OF_TABLE[table.kind] for record, table in TABLE_OF_RECORD.items() if table.kind in KIND_OF_TABLE
}
KEYS: Final = frozenset(by for kind in KINDS for keys, _arity, _text in kind.loads for by in keys)

_ENTRY: Final = LedgerEntry.__struct_fields__
_ENTRY_CHANGES: Final = (
    *("phase", "phase_2_timestamp", "outcome", "payload_ref", "sync_timestamp", "transaction_reference", "version"),
    *("settled_at", "indeterminate"),
)
INSERT_ENTRY: Final = _inserting(
    "client_entry", ("id", *_ENTRY, "last_line"), ("bigint", *_types_of(LedgerEntry, _ENTRY), "bigint")
)
UPDATE_ENTRY: Final = _updating(
    "client_entry",
    ", ".join(f"{column} = n.{column}" for column in (*_ENTRY_CHANGES, "last_line")),
    ("id", *_ENTRY_CHANGES, "last_line"),
    ("bigint", *_types_of(LedgerEntry, _ENTRY_CHANGES), "bigint"),
    "t.id = n.id",
)


def of_several(name: str, *types: str, counts: bool = False) -> Statement:
    """A named statement over a set of rows of these types."""
    return Statement(sql(name), types, counts=counts)
