"""Named SQL from the files beside this module."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def _statements() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in files(__package__).iterdir():
        if path.name.endswith(".sql"):
            more = named(path.read_text(encoding="utf-8"))
            assert not found.keys() & more.keys(), "a name stands for one statement"
            found |= more
    return found


def named(text: str) -> dict[str, str]:
    """The statements of a file, each under the name above it."""
    _preamble, *pieces = _NAME.split(text)
    return {name: sql.strip() for name, sql in zip(pieces[::2], pieces[1::2], strict=True)}


def sql(name: str) -> str:
    """The statement called ``name`` in one of the files."""
    return _statements()[name]


def migrations(package: str = __package__) -> tuple[tuple[int, str], ...]:
    """Number and text of every migration of a package, in order. Read once."""
    return _migrations(package)


@cache
def _migrations(package: str) -> tuple[tuple[int, str], ...]:
    folder = files(package).joinpath("migrations")
    found = [(int(path.name[:4]), path.read_text(encoding="utf-8")) for path in folder.iterdir()]
    return tuple(sorted(found))
