"""What a surface is probed with: a table described in neutral words, and the few things one may try to do to it.

Everything is tried inside a transaction that is rolled back. A bench reports what the database said; whether that is
good or bad is for the criteria to judge.
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
    """There is nothing to probe."""


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
    hazards: tuple[str, ...] = ()  # Why rows may vanish although nobody deletes them.
    strangers: tuple[str, ...] = ()  # Who else may insert, as far as the schema tells.


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """What the database said. ``rows`` were changed, if it was ``done``."""

    done: bool
    rows: int = 0
    said: str = ""


def done(rows: int = 0) -> Tried:
    """It was let pass."""
    return Tried(done=True, rows=rows)


def refused(said: str) -> Tried:
    """It was not."""
    return Tried(done=False, said=said)


class Bench(Protocol):
    """One table under examination."""

    async def describe(self) -> Shape:
        """The schema; raises NoSuchTable."""
        ...

    async def fresh(self) -> None:
        """Undo whatever was tried, and begin anew."""
        ...

    async def undo(self) -> None:
        """Undo whatever was tried, and hold nothing."""
        ...

    async def insert(self, row: Values, *, conflict: Conflict = "fail") -> Tried:
        """Insert as the registrar would."""
        ...

    async def insert_as_stranger(self, row: Values) -> Tried:
        """Insert as somebody who is not the registrar, in a transaction of his own."""
        ...

    async def insert_beside(self, row: Values) -> Tried:
        """Insert from a second connection while ours is not committed; having to wait counts as refused."""
        ...

    async def update(self, where: Values, column: str, value: Any) -> Tried:
        """Change one column of what ``where`` finds."""
        ...

    async def delete(self, where: Values) -> Tried:
        """Delete what ``where`` finds."""
        ...

    async def truncate(self) -> Tried:
        """Empty the table by whatever shortcut the database has; refused where it has none."""
        ...

    async def read(self, where: Values) -> Sequence[Mapping[str, Any]]:
        """What ``where`` finds."""
        ...

    async def close(self) -> None:
        """Undo everything and let go."""
        ...


_ALLOWED: str = r"""\b{name}["`\])]*(?:::[\w ]+)?\s*(?:=|\bIN\b)\s*\(*\s*(?:ANY\s*\(+\s*)?(?:ARRAY\[)?\s*\(?'([^']*)'"""


def allowed_values(definition: str, columns: Iterable[str]) -> dict[str, str]:
    """For each column that is compared with literals, the first of them: a value that its check will let pass."""
    found = {name: re.search(_ALLOWED.format(name=re.escape(name)), definition, re.IGNORECASE) for name in columns}
    return {name: match[1] for name, match in found.items() if match}
