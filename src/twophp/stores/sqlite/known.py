"""What this handle knows without asking: the records it wrote last, for as long as nobody else writes.

A handshake reads its intent three times, and most often it is read by the process that wrote it. SQLite counts the
commits of other connections (``data_version``); while that number stands still, what we wrote is what is there. One
commit by anybody else, or one failed batch of ours, and everything is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import apsw

from twophp.core.entry import LedgerEntry
from twophp.core.records import Key, Record, Sealed
from twophp.ports import Part
from twophp.stores.sqlite.tables import Table

GENERATION: Final = 8_192  # keys; two generations are kept, so memory does not grow with what is stored


class Slot:
    """A record as it was found and as it is by now, with what is still to be written of it."""

    __slots__ = ("entry", "entry_is_new", "id", "is_dropped", "is_new", "keys", "record", "seals", "table")

    def __init__(self, id_: int, record: Record, keys: tuple[Key, ...], table: Table, *, is_new: bool) -> None:
        self.id = id_
        self.record = record
        self.keys = keys
        self.table = table
        self.is_new = is_new
        self.is_dropped = False
        self.entry: LedgerEntry | None = None
        self.entry_is_new = False
        self.seals: dict[Part, Sealed | None] = {}

    def flushed(self) -> None:
        """Everything was written."""
        self.is_new = self.entry_is_new = False
        self.entry = None
        self.seals.clear()


class Known:
    """A bounded cache of slots, in two generations."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._version = -1
        self._young: dict[Key, Slot] = {}
        self._old: dict[Key, Slot] = {}

    def refresh(self) -> None:
        """To be called inside the write transaction: from here on nobody else can write."""
        version = self._connection.execute("PRAGMA data_version").get
        if version != self._version:
            self.forget()
            self._version = version

    def get(self, key: Key) -> Slot | None:
        """The slot under ``key``, unless the record has let go of that key."""
        slot = self._young.get(key) or self._old.get(key)
        return slot if slot is not None and key in slot.keys else None

    def keep(self, slots: Iterable[Slot]) -> None:
        """These were flushed."""
        young = self._young
        for slot in slots:
            slot.flushed()
            if slot.keys and young.get(slot.keys[0]) is not slot:
                young.update(dict.fromkeys(slot.keys, slot))
        if len(self._young) > GENERATION:
            self._old, self._young = self._young, {}

    def forget(self) -> None:
        """Nothing is known."""
        self._young, self._old = {}, {}
