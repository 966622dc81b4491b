"""What the store knows of one kind of record: its statements, and how it becomes a row and a row becomes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from twophp.core.records import Record

Row: TypeAlias = tuple[Any, ...]


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """The statements and the two conversions of one kind of record."""

    kind: str
    reads: dict[str, str]  # by what -> the statement that finds all wanted rows at once, and at times some more
    identity: str  # the key whose values ``due`` returns and the two after it take
    due: str = ""  # Empty where a kind is never due, sealed or written about.
    owners: str = ""  # Empty where an unfinished record has no owner; so is ``owned``.
    owned: str = ""
    seal: str = ""
    last_line: str = ""  # The id of a record and the number of the newest line about it.
    line_column: int = 0  # Where a row that is read has that number; 0: no line is about this kind alone.
    insert: str
    update: str
    delete: str
    record: Callable[[Row], Record]
    row: Callable[[Any], Row]  # every column but the id
    changes: Callable[[Any], Row]  # the columns that ``update`` sets
