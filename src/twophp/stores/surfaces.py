"""The port for probing a surface: a table described in neutral words, and the few changes that a probe tries on it.

Every change is tried inside a transaction that is rolled back. A bench reports the database's answer; the criteria
judge whether that is good or bad.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

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


class Bench(Protocol):
    """One table under examination."""

    async def describe(self) -> Shape:
        """The schema; raises NoSuchTable."""
        ...

    async def fresh(self) -> None:
        """Undo every change that was tried, and begin a new transaction."""
        ...

    async def undo(self) -> None:
        """Undo every change that was tried, and hold no transaction."""
        ...

    async def insert(self, row: Values, *, conflict: Conflict = "fail") -> Tried:
        """Insert as the registrar would."""
        ...

    async def insert_as_stranger(self, row: Values) -> Tried:
        """Insert as a role that is not the registrar's, in a transaction of its own."""
        ...

    async def insert_beside(self, row: Values) -> Tried:
        """Insert from a second connection while ours is not committed; having to wait counts as refused."""
        ...

    async def update(self, where: Values, column: str, value: Any) -> Tried:
        """Change one column of the rows that match ``where``."""
        ...

    async def delete(self, where: Values) -> Tried:
        """Delete the rows that match ``where``."""
        ...

    async def truncate(self) -> Tried:
        """Empty the table by the database's own shortcut, such as TRUNCATE; refused where it has none."""
        ...

    async def read(self, where: Values) -> Sequence[Mapping[str, Any]]:
        """The rows that match ``where``."""
        ...

    async def close(self) -> None:
        """Undo every change and close the connections."""
        ...


_ALLOWED: str = r"""\b{name}["`\])]*(?:::[\w ]+)?\s*(?:=|\bIN\b)\s*\(*\s*(?:ANY\s*\(+\s*)?(?:ARRAY\[)?\s*\(?'([^']*)'"""


def allowed_values(definition: str, columns: Iterable[str]) -> dict[str, str]:
    """For each column that is compared with literals, the first of them: a value that its check will let pass."""
    found = {name: re.search(_ALLOWED.format(name=re.escape(name)), definition, re.IGNORECASE) for name in columns}
    return {name: match[1] for name, match in found.items() if match}
