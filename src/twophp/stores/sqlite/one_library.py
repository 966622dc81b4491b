"""In one process only one SQLite library may open a ledger's file: ours, which apsw brings.

Python's ``sqlite3`` brings another, and neither knows of the other. POSIX locks belong to the process, so the second
library sees no lock of the first: it truncates the shared memory that the first has mapped (SIGBUS), and when it closes
the file the locks of both are gone. The damage to the database cannot be foreseen, so the second one is refused.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

import apsw

from twophp.core.errors import ConfigError
from twophp.stores.clock import pause

OPEN_FILES: Final = Path("/proc/self/fd")
LOOKS: Final = 25
LOOK_PAUSE_S: Final = 0.02
ADVICE: Final = "open it with apsw too, or with sqlite3 in a process of its own"

_Identity: TypeAlias = tuple[int, int]  # Device and inode: a file has many names.

_ours: Final[WeakKeyDictionary[apsw.Connection, _Identity | None]] = WeakKeyDictionary()


def connect(path: str, flags: int, *, parameters: str = "") -> apsw.Connection:
    """Open a file that no other library in this process has open, and that none can open for as long as it is.

    What had it open before is seen where the system lists a process's files. ``parameters`` are those of a URI.
    """
    if (file := _identity(path)) is not None and _is_open_elsewhere(file):
        message = f"{path}: something else in this process has the database open, such as sqlite3; {ADVICE}"
        raise ConfigError(message, code="two_sqlite_libraries")
    name = f"{Path(path).absolute().as_uri()}?{parameters}" if parameters else path
    connection = apsw.Connection(name, flags=flags | apsw.SQLITE_OPEN_URI if parameters else flags)
    _ours[connection] = _identity(path)
    _watch_sqlite3()
    return connection


@cache  # Once: a hook stays for good. Nothing on a request's way raises an event for it.
def _watch_sqlite3() -> None:
    sys.addaudithook(_refuse)


def _refuse(event: str, details: tuple[object, ...]) -> None:
    if event != "sqlite3.connect" or not isinstance(details[0], str | bytes | os.PathLike):
        return
    name = os.fsdecode(details[0])
    file = _identity(unquote(urlsplit(name).path) if name.startswith("file:") else name)
    if file is not None and any(_ours.get(connection) == file for connection in apsw.connections()):
        message = f"{name}: a ledger that is open in this process must not be opened by sqlite3; {ADVICE}"
        raise ConfigError(message, code="two_sqlite_libraries")


def _is_open_elsewhere(file: _Identity) -> bool:
    """Whether this process has the file open, and no connection of apsw explains it, however often one looks.

    One that another thread is opening or closing right now has the file open, and is not listed.
    """
    for _look in range(LOOKS):
        if not _is_open_in_process(file) or any(_may_have(connection, file) for connection in apsw.connections()):
            return False
        pause(LOOK_PAUSE_S)
    return True


def _is_open_in_process(file: _Identity) -> bool:
    try:
        return any(_identity(entry) == file for entry in OPEN_FILES.iterdir())
    except OSError:  # No such list here.
        return False


def _may_have(connection: apsw.Connection, file: _Identity) -> bool:
    if connection in _ours:
        return _ours[connection] == file
    try:
        return _identity(connection.filename) == file
    except apsw.ThreadingViolationError:  # A connection of the application that another thread uses just now.
        return True
    except apsw.ConnectionClosedError:  # It was closed after it was listed.
        return False


def _identity(path: str | Path) -> _Identity | None:
    try:
        found = Path(path).stat()
    except (OSError, ValueError):  # No such file, ``:memory:``, or no name of a file at all.
        return None
    return found.st_dev, found.st_ino
