"""Named SQL, and numbered migrations, in the packages of every driver."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def named(text: str) -> dict[str, str]:
    """The statements of a file, each under the name above it."""
    _preamble, *pieces = _NAME.split(text)
    return {name: sql.strip() for name, sql in zip(pieces[::2], pieces[1::2], strict=True)}


@cache
def migrations_of(package: str) -> tuple[tuple[int, str], ...]:
    """Number and text of every migration of a package, in order. Read once."""
    folder = files(package).joinpath("migrations")
    found = [(int(path.name[:4]), path.read_text(encoding="utf-8")) for path in folder.iterdir()]
    return tuple(sorted(found))
