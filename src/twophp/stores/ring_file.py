"""Ring files: created once by the first process, changed under a lock, read again by running services.

A file is never written in place. A new ring goes to a temporary file, is synced, and then takes the name in one step:
``link`` when the ring must not exist yet, so that of two processes which start at once one wins and both use its ring;
``rename`` when it is changed, so that no reader ever sees half of one.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shlex
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

import msgspec

from twophp.core.errors import ConfigError, StoreUnavailable, VaultError
from twophp.ports import Clock
from twophp.stores.clock import pause, system_clock
from twophp.stores.keys import KEYS_FILE_VARIABLE, RING_VERSION, StoredRing, fresh_ring, parse_keys
from twophp.stores.vault import AesGcmVault, KeyRing

log: Final = logging.getLogger("twophp.vault")

OTHERS: Final = 0o077
LOCK_ATTEMPTS: Final = 100
LOCK_PAUSE_S: Final = 0.05
"""An editor holds the lock for milliseconds. One that cannot get it in five seconds waits for an editor that hangs."""

Stamp: TypeAlias = tuple[int, int, int, int]


class RingFile:
    """The ring beside a database, in the format that ``stores.keys`` describes."""

    def __init__(self, path: str | Path, *, clock: Clock = system_clock) -> None:
        self.path = Path(path).resolve()  # A link stays a link when the ring behind it is replaced.
        self._clock = clock

    @classmethod
    def beside(cls, database: str, *, clock: Clock = system_clock) -> RingFile:
        """The ring of ``orders.db`` is ``orders.db.keys``."""
        return cls(f"{database}.keys", clock=clock)

    def exists(self) -> bool:
        """Whether there is a ring yet."""
        return self.path.exists()

    def ring(self) -> KeyRing:
        """The ring as it is now."""
        return self.load().ring()

    def load(self) -> StoredRing:
        """The content of the file. Refuses a file that other users can read: its keys are no secret any more."""
        try:
            raw = _read_private(self.path)
        except FileNotFoundError as error:
            message = f"the key ring {self.path} is missing"
            raise ConfigError(message, code="ring_missing") from error
        except OSError as error:
            message = f"the key ring {self.path} cannot be read: {error.strerror}"
            raise ConfigError(message, code="ring_unreadable") from error
        return _decode(raw, self.path)

    def ensure(self, holds_seals: Callable[[], bool]) -> StoredRing:
        """The ring, made now if this is the first start. A database with sealed rows had a ring: it is never remade.

        The order matters when two processes start at once: rows sealed by the other prove that its ring exists.
        """
        if not self.exists() and holds_seals() and not self.exists():
            message = (
                f"the key ring {self.path} is missing, and the database beside it holds sealed payloads that only its "
                "keys open; put the ring back from its backup"
            )
            raise ConfigError(message, code="ring_missing")
        if not self.exists():
            self._create()
        sync_folder(self.path)  # Also if another process made it: sealed bytes must not be more durable than their key.
        return self.load()

    def _create(self) -> None:
        with _temporary(self.path, _encode(fresh_ring(self._clock()))) as temporary:
            try:
                os.link(temporary, self.path)
            except FileExistsError:  # Another process was quicker.
                return
        log.warning("made a key ring: %s. Back it up apart from the database: without it no payload opens.", self.path)

    def edit(self, change: Callable[[StoredRing, int], StoredRing]) -> StoredRing:
        """Replace the ring by ``change(ring, now)``, one editor at a time: no editor undoes another's key."""
        self.load()  # Raises if the file is damaged or readable by others.
        with self._locked():
            before = self.load()
            after = change(before, self._clock())
            if after != before:
                with _temporary(self.path, _encode(after)) as temporary:
                    os.replace(temporary, self.path)  # noqa: PTH105 - os beside os.link reads better.
                sync_folder(self.path)
        return after

    @contextmanager
    def _locked(self) -> Iterator[None]:
        for _ in range(LOCK_ATTEMPTS):
            with self.path.open("rb") as file:
                # The last holder of the lock may have replaced the file: then this lock is on a file without a name.
                if _lock(file) and os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                    yield
                    return
        message = (
            f"another process keeps the key ring {self.path} locked; end the `twophp keys` that still runs, "
            "then try again"
        )
        raise StoreUnavailable(message, code="ring_busy")


class KeysFile:
    """A file in the format of ``TWOPHP_KEYS``, as secret managers mount it. Its mode is theirs to choose."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def ring(self) -> KeyRing:
        """The ring as it is now."""
        try:
            return parse_keys(self.path.read_text(encoding="utf-8"), str(self.path))
        except (OSError, UnicodeDecodeError) as error:
            message = f"{KEYS_FILE_VARIABLE} names {self.path}, which cannot be read: {type(error).__name__}"
            raise ConfigError(message, code="bad_key_ring") from error


class Watch:
    """Tells a vault when the ring behind it has changed: a call costs one ``stat``."""

    def __init__(self, source: RingFile | KeysFile) -> None:
        self._source = source
        self._stamp: Stamp | None = None

    def __call__(self) -> KeyRing | None:
        """The ring, if the file is another than at the last call.

        A ring that vanished is an error also for a service that has its keys in memory: what it seals now could not be
        opened after its next start.
        """
        try:
            stamp = _stamp(self._source.path)
        except OSError as error:
            message = f"the key ring {self._source.path} has vanished; put it back"
            raise VaultError(message, code="ring_missing") from error
        if stamp == self._stamp:
            return None
        ring = self._source.ring()
        self._stamp = stamp  # Taken before reading: a change in between is found by the next call.
        return ring


def watching_vault(source: RingFile | KeysFile) -> AesGcmVault:
    """A vault that follows every change of its ring."""
    return AesGcmVault(source.ring(), Watch(source))


def _lock(file: BinaryIO) -> bool:
    """Whether we hold the lock; after a short wait if another does."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pause(LOCK_PAUSE_S)
        return False
    return True


def _stamp(path: Path) -> Stamp:
    found = os.stat(path)  # noqa: PTH116 - this runs once for every payload.
    # The mode as well: a ring that others can read since is refused, though its bytes are the same.
    return found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode


def _read_private(path: Path) -> bytes:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_mode & OTHERS:
            message = f"the key ring {path} can be read by others; run: chmod 600 {shlex.quote(str(path))}"
            raise ConfigError(message, code="ring_readable")
        return file.read()


def _encode(stored: StoredRing) -> bytes:
    return msgspec.json.format(msgspec.json.encode(stored)) + b"\n"


def _decode(raw: bytes, path: Path) -> StoredRing:
    try:
        stored = msgspec.json.decode(raw, type=StoredRing)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"the key ring {path} is damaged; restore it from its backup"  # The cause might quote a key.
        raise ConfigError(message, code="bad_key_ring") from error
    if stored.version != RING_VERSION:
        message = f"the key ring {path} has version {stored.version}, this twophp knows {RING_VERSION}"
        raise ConfigError(message, code="bad_key_ring")
    return stored


@contextmanager
def _temporary(path: Path, content: bytes) -> Iterator[str]:
    """A synced file beside ``path`` that only its owner can read (mkstemp: O_EXCL, 0600)."""
    name = ""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield name
    except OSError as error:
        message = f"the key ring {path} cannot be written: {error.strerror}"
        raise ConfigError(message, code="ring_cannot_write") from error
    finally:
        if name:
            Path(name).unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Until the folder is synced, a power cut may forget the new name and with it the key."""
    handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
