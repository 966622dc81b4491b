"""Text as PostgreSQL keeps it: it takes every character but NUL, and we keep text as it is.

NUL is written as the character 16 and a zero, character 16 as itself twice. Both are so rare that a column is looked
through as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

_MARK: Final = "\x10"
_NUL: Final = "\0"
_MARKED: Final = re.compile("\x10(.)", re.DOTALL)


def kept(text: str) -> str:
    """The text as a column keeps it."""
    if _MARK in text or _NUL in text:
        return text.replace(_MARK, _MARK * 2).replace(_NUL, f"{_MARK}0")
    return text


def kept_column(column: Sequence[Any]) -> Sequence[Any]:
    """A column of texts, some of them None, as it is kept."""
    together = "".join(filter(None, column))
    if _MARK in together or _NUL in together:
        return [None if value is None else kept(value) for value in column]
    return column


def kept_values(values: Iterable[Any]) -> list[Any]:
    """Whatever a statement is bound to, its texts as they are kept."""
    return [kept(value) if isinstance(value, str) else value for value in values]


def plain(row: Iterable[Any]) -> tuple[Any, ...]:
    """A row that was read, its texts as they are."""
    return tuple([_plain(value) if type(value) is str and _MARK in value else value for value in row])


def _plain(text: str) -> str:
    return _MARKED.sub(lambda found: _NUL if found[1] == "0" else found[1], text)
