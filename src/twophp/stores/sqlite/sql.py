"""Named SQL from the files beside this module."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def _statements() -> dict[str, str]:
    text = files(__package__).joinpath("queries.sql").read_text(encoding="utf-8")
    _preamble, *pieces = _NAME.split(text)
    return {name: sql.strip() for name, sql in zip(pieces[::2], pieces[1::2], strict=True)}


def sql(name: str) -> str:
    """The statement called ``name`` in ``queries.sql``."""
    return _statements()[name]


@cache
def migrations() -> tuple[tuple[int, str], ...]:
    """Number and text of every migration, in order."""
    folder = files(__package__).joinpath("migrations")
    found = [(int(path.name[:4]), path.read_text(encoding="utf-8")) for path in folder.iterdir()]
    return tuple(sorted(found))
