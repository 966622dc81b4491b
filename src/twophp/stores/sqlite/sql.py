"""Named SQL from the files beside this module."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from twophp.stores.named_sql import migrations_of, named

__all__ = ["migrations", "named", "sql"]


@cache
def _statements() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in files(__package__).iterdir():
        if path.name.endswith(".sql"):
            more = named(path.read_text(encoding="utf-8"))
            assert not found.keys() & more.keys(), "a name stands for one statement"
            found |= more
    return found


def sql(name: str) -> str:
    """The statement called ``name`` in one of the files."""
    return _statements()[name]


def migrations(package: str = __package__) -> tuple[tuple[int, str], ...]:
    """Number and text of every migration of a package, in order."""
    return migrations_of(package)
