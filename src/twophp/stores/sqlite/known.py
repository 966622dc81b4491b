"""What this handle knows without asking: the records it wrote last, for as long as nobody else writes.

A handshake reads its intent three times, and most often it is read by the process that wrote it. SQLite counts the
commits of other connections (``data_version``); while that number stands still, what we wrote is what is there, and
where we ended is where the journal ends. One commit by anybody else, or one failed batch of ours, and everything is
forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import apsw

from twophp.core.errors import StoreError
from twophp.core.records import Instant, Key
from twophp.kernel.overlay import Slot
from twophp.stores.sqlite.sql import sql
from twophp.stores.sqlite.table import Row

GENERATION: Final = 8_192  # keys; two generations are kept, so memory does not grow with what is stored


class Head(NamedTuple):
    """Where the journal, the time and the ids have come to."""

    seq: int
    hash: bytes
    at: Instant
    next_id: int


def read_head(connection: apsw.Connection) -> Head:
    """The head as this connection sees it. Without one, nobody knows where the journal ended: nothing can be added."""
    row: Row | None = connection.execute(sql("read_head")).fetchone()
    if row is None:
        message = f"{connection.filename}: the head of the journal is gone; restore the database from its backup"
        raise StoreError(message, code="store_corrupt")
    return Head(*row)


class Known:
    """A bounded cache of slots by every key their records hold, in two generations, and the head of the journal.

    A batch works on ``slots`` itself. If it fails, everything is forgotten, so nothing has to be undone.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._version = -1
        self.slots: dict[Key, Slot] = {}
        self._old: dict[Key, Slot] = {}
        self._head: Head | None = None

    def refresh(self) -> bool:
        """Whether another connection has written. Call it inside the write transaction, in which nobody else can."""
        version = self._connection.execute("PRAGMA data_version").get
        if version != self._version:
            self.forget()
            is_first, self._version = self._version == -1, version
            return not is_first
        if len(self.slots) > GENERATION:
            self._old, self.slots = self.slots, {}
        return False

    def has(self, key: Key) -> bool:
        """Whether the record under ``key`` is in ``slots``; it is brought there from the older generation."""
        if key in self.slots:
            return True
        slot = self._old.get(key)
        if slot is None:
            return False
        for held in slot.keys:
            self.slots[held] = self._old.pop(held)
        return True

    def head(self) -> Head:
        """Where things have come to. To be asked for inside the write transaction, and after ``refresh``."""
        return self._head or read_head(self._connection)

    def flushed(self, slots: Iterable[Slot], head: Head) -> None:
        """Everything about these was written, and this is how far it went."""
        self._head = head
        for slot in slots:
            slot.stored, slot.entry_is_new = slot.record.version, False
            slot.entry = slot.seals = None

    def forget(self) -> None:
        """Nothing is known."""
        self.slots, self._old, self._head = {}, {}, None
