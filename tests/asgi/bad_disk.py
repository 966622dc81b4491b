"""A disk that fails when a test says so: SQLite's own, with a shim in front of every read, write and sync."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw

BASE = "unix"


class BadDisk(apsw.VFS):
    """Counts what is done to files, and fails the calls that ``strikes`` says."""

    def __init__(self) -> None:
        super().__init__("bad-disk", BASE, makedefault=True)
        self.calls = 0
        self.full = False
        self.failing: range | None = None  # By number of the call.

    def xOpen(self, name: Any, flags: list[int]) -> BadFile:  # noqa: N802 - SQLite's names.
        return BadFile(self, name, flags)

    def strike(self, code: int) -> None:
        """Fail this call, if it is its turn."""
        number, self.calls = self.calls, self.calls + 1
        if self.failing is not None and number in self.failing:
            error = apsw.IOError("disk I/O error")
            error.extendedresult = code  # type: ignore[attr-defined]
            raise error

    def strike_write(self) -> None:
        if self.full:
            raise apsw.FullError("database or disk is full")
        self.strike(apsw.SQLITE_IOERR_WRITE)


class BadFile(apsw.VFSFile):
    """One of its files."""

    def __init__(self, disk: BadDisk, name: Any, flags: list[int]) -> None:
        super().__init__(BASE, name, flags)
        self._disk = disk

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._disk.strike(apsw.SQLITE_IOERR_READ)
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._disk.strike_write()
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.strike(apsw.SQLITE_IOERR_FSYNC)
        super().xSync(flags)

    def xFileSize(self) -> int:  # noqa: N802
        self._disk.strike(apsw.SQLITE_IOERR_FSTAT)
        return super().xFileSize()


@contextmanager
def bad_disk() -> Iterator[BadDisk]:
    """The disk of every connection that is opened in the block."""
    before = apsw.vfs_names()[0]
    disk = BadDisk()
    try:
        yield disk
    finally:
        disk.full, disk.failing = False, None
        apsw.set_default_vfs(before)
        apsw.unregister_vfs("bad-disk")
