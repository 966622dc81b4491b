"""What this handle knows without asking: the records it wrote last, for as long as nobody else writes.

A handshake reads its intent three times, and most often it is read by the process that wrote it. SQLite counts the
commits of other connections (``data_version``); while that number stands still, what we wrote is what is there. One
commit by anybody else, or one failed batch of ours, and everything is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import apsw
import msgspec

from twophp.core.entry import LedgerEntry
from twophp.core.records import Key, Record, Sealed
from twophp.ports import Part
from twophp.stores.sqlite.table import Table

GENERATION: Final = 8_192  # keys; two generations are kept, so memory does not grow with what is stored


class Slot(msgspec.Struct, eq=False, gc=False):
    """A record as it was found and as it is by now, with what is still to be written of it.

    Thousands are kept, and the collector would look at every one of them again and again: it is spared (``gc=False``),
    and so are the record's keys, which are asked for in place of being kept.
    """

    id: int
    record: Record
    table: Table
    is_new: bool
    is_dropped: bool = False
    entry: LedgerEntry | None = None
    entry_is_new: bool = False
    seals: Mapping[Part, Sealed | None] | None = None


class Known:
    """A bounded cache of slots by every key their records hold, in two generations.

    A batch works on ``slots`` itself. If it fails, everything is forgotten, so nothing has to be undone.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._version = -1
        self.slots: dict[Key, Slot] = {}
        self._old: dict[Key, Slot] = {}

    def refresh(self) -> None:
        """To be called inside the write transaction: from here on nobody else can write."""
        version = self._connection.execute("PRAGMA data_version").get
        if version != self._version:
            self.forget()
            self._version = version
        elif len(self.slots) > GENERATION:
            self._old, self.slots = self.slots, {}

    def has(self, key: Key) -> bool:
        """Whether the record under ``key`` is in ``slots``; it is brought there from the older generation."""
        if key in self.slots:
            return True
        slot = self._old.get(key)
        if slot is None:
            return False
        for held in slot.record.keys():  # noqa: SIM118 - a record, no mapping.
            self.slots[held] = self._old.pop(held)
        return True

    def flushed(self, slots: Iterable[Slot]) -> None:
        """Everything about these was written."""
        for slot in slots:
            slot.is_new = slot.entry_is_new = False
            slot.entry = slot.seals = None

    def forget(self) -> None:
        """Nothing is known."""
        self.slots, self._old = {}, {}
