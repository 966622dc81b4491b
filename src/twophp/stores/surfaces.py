"""What a bench says of a surface: a table in neutral words, and what became of the changes that a probe tries.

Every change is tried inside a transaction that is rolled back. A bench reports the database's answer; the criteria
judge whether that is good or bad.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["text", "integer", "real", "bytes"]
Conflict: TypeAlias = Literal["fail", "ignore", "replace"]
Values: TypeAlias = Mapping[str, Any]


class NoSuchTable(Exception):
    """The database has no table of this name."""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One column. ``required``: an insert must give it a value."""

    name: str
    kind: Kind
    nullable: bool
    required: bool


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A table as its schema describes it."""

    columns: Mapping[str, Column]
    uniques: tuple[tuple[str, ...], ...]  # Only those that hold for every row.
    allowed: Mapping[str, str] = {}  # A value that the checks of a column allow.
    hazards: tuple[str, ...] = ()  # Why rows may vanish without a DELETE.
    strangers: tuple[str, ...] = ()  # Who else may insert, as far as the schema tells.


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """The database's answer. ``rows`` were changed, if it was ``done``."""

    done: bool
    rows: int = 0
    said: str = ""


def done(rows: int = 0) -> Tried:
    """The database made the change."""
    return Tried(done=True, rows=rows)


def refused(said: str) -> Tried:
    """The database refused the change."""
    return Tried(done=False, said=said)


_ALLOWED: str = r"""\b{name}["`\])]*(?:::[\w ]+)?\s*(?:=|\bIN\b)\s*\(*\s*(?:ANY\s*\(+\s*)?(?:ARRAY\[)?\s*\(?'([^']*)'"""


def allowed_values(definition: str, columns: Iterable[str]) -> dict[str, str]:
    """For each column that is compared with literals, the first of them: a value that its check will let pass."""
    found = {name: re.search(_ALLOWED.format(name=re.escape(name)), definition, re.IGNORECASE) for name in columns}
    return {name: match[1] for name, match in found.items() if match}
