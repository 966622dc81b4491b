"""Which owners are alive, as the kernel knows it: a lock for every owner, which ends with its process.

Beside a database stands an empty file, ``orders.db.owners``. An owner locks one byte of it, far behind its end, at a
place that follows from its name. The kernel releases the lock when the process ends, however it ends. A free byte
therefore says that its owner is dead, and a locked one that its owner lives.

* The locks belong to an open file description (``F_OFD_SETLK``). Closing another descriptor of the file does not
  release them, as it would with POSIX locks. No process id is involved, so containers that share a volume, each with
  its own process ids, see each other's locks.
* A forked child inherits the descriptor and would keep its parent's lock. It closes the descriptor first of all.
* The file is never written and never removed. An owner's name contains the inode of the file it is locked in: if the
  file is replaced, the owners that are locked in the old one are unknown.
* The database file itself cannot be used: closing any descriptor of it releases SQLite's locks.

Where the file cannot be made or locked, every owner is unknown, and leases alone decide.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import threading
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final, TypeAlias

from twophp.ports import OwnerState

log: Final = logging.getLogger("twophp.store")

SUFFIX: Final = ".owners"
_SET: Final[int | None] = getattr(fcntl, "F_OFD_SETLK", None)  # Linux.
_GET: Final[int | None] = getattr(fcntl, "F_OFD_GETLK", None)
_FLOCK: Final = struct.Struct("hhqqi0q")  # type, whence, start, length, pid; padded as C does it.
_PLACE_MASK: Final = 2**62 - 1  # Every place is one that a file can have.

_Identity: TypeAlias = tuple[int, int]


class _LockFile:
    """One file and the owners of this process that are locked in it. All of them share one descriptor."""

    def __init__(self, handle: int, inode: int) -> None:
        self.handle = handle
        self.inode = inode
        self.owners: set[str] = set()

    def lock(self, owner: str) -> None:
        assert _SET is not None
        fcntl.fcntl(self.handle, _SET, _request(fcntl.F_RDLCK, owner))  # For reading: no right to write is needed.
        self.owners.add(owner)

    def unlock(self, owner: str) -> None:
        assert _SET is not None
        self.owners.discard(owner)
        fcntl.fcntl(self.handle, _SET, _request(fcntl.F_UNLCK, owner))

    def is_locked(self, owner: str) -> bool:
        """Whether any process holds the lock. The kernel does not report a descriptor's own locks to it."""
        assert _GET is not None
        if owner in self.owners:
            return True
        found = fcntl.fcntl(self.handle, _GET, _request(fcntl.F_WRLCK, owner))
        return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


_files: Final[dict[_Identity, _LockFile]] = {}  # Of this process.
_turn = threading.Lock()


def _forget_after_fork() -> None:
    global _turn  # noqa: PLW0603 - A thread that stayed with the parent may hold it.
    _turn = threading.Lock()
    for file in _files.values():
        with suppress(OSError):
            os.close(file.handle)  # The lock stays with the parent's handle.
    _files.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


class Owners:
    """The owners of one database. See ``ports.Owners``."""

    def __init__(self, database: str) -> None:
        self._path = f"{database}{SUFFIX}"
        self._database = database

    def register(self, name: str) -> str:
        """See ``ports.Owners``. Without a lock the name stands as it is: nothing is known about it."""
        if _SET is None:
            return name
        try:
            with _turn:
                file = self._file()
                owner = f"{name}.{file.inode:x}"
                file.lock(owner)
        except OSError as error:
            message = "%s cannot be locked (%s): after a crash, what ran is recovered when its lease has run out"
            log.warning(message, self._path, error.strerror)
            return name
        return owner

    def release(self, owner: str) -> None:
        """See ``ports.Owners``."""
        with _turn, suppress(OSError):
            for identity, file in list(_files.items()):
                if owner in file.owners:
                    file.unlock(owner)
                    if not file.owners:
                        del _files[identity]
                        os.close(file.handle)

    def state(self, owner: str) -> OwnerState:
        """See ``ports.Owners``."""
        inode = _inode_of(owner)
        if inode is None or _GET is None:
            return "unknown"
        try:
            with _turn:
                return self._state(owner, inode)
        except OSError:
            return "unknown"

    def _state(self, owner: str, inode: int) -> OwnerState:
        """The state of an owner's lock. A process without an owner of its own opens the file for this call alone."""
        found = os.stat(self._path)  # noqa: PTH116
        if found.st_ino != inode:
            return "unknown"
        file = _files.get((found.st_dev, found.st_ino))
        if file is not None:
            return "alive" if file.is_locked(owner) else "dead"
        handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(handle).st_ino != inode:
                return "unknown"
            return "alive" if _LockFile(handle, inode).is_locked(owner) else "dead"
        finally:
            os.close(handle)

    def _file(self) -> _LockFile:
        """The file that has the name now, opened once in this process."""
        handle = self._open()
        found = os.fstat(handle)
        file = _files.get((found.st_dev, found.st_ino))
        if file is None:
            file = _files[found.st_dev, found.st_ino] = _LockFile(handle, found.st_ino)
        else:
            os.close(handle)
        return file

    def _open(self) -> int:
        """Made with the rights of the database, as SQLite makes its own files beside it."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        with suppress(FileNotFoundError):
            return os.open(self._path, flags)
        beside = Path(self._database).stat()
        handle = os.open(self._path, flags | os.O_CREAT, beside.st_mode & 0o666)
        if os.geteuid() == 0:
            os.fchown(handle, beside.st_uid, beside.st_gid)
        return handle


class NobodyKnown:
    """The owners of a store that no other process can reach, and that ends with its own process."""

    def register(self, name: str) -> str:
        """See ``ports.Owners``."""
        return name

    def release(self, owner: str) -> None:
        """See ``ports.Owners``."""

    def state(self, _owner: str) -> OwnerState:
        """See ``ports.Owners``."""
        return "unknown"


def _inode_of(owner: str) -> int | None:
    try:
        return int(owner.rpartition(".")[2], 16) if "." in owner else None
    except ValueError:
        return None


def _request(kind: int, owner: str) -> bytes:
    place = int.from_bytes(blake2b(owner.encode(), digest_size=8).digest(), "big") & _PLACE_MASK
    return _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0)
