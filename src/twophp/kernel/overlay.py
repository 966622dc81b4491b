"""Records by key, as a batch finds them and as its commands leave them.

A driver fills ``slots`` with the records that it has loaded. A change is made on the slots at once, so the next command
of the same batch sees it. A change that is not allowed is refused before any part of it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace as copy_of

from twophp.core.entry import LedgerEntry
from twophp.core.errors import ConstraintViolation, StoreError
from twophp.core.fence import Fence
from twophp.core.records import Instant, JournalEvent, Key, Record, Sealed
from twophp.core.registrar_records import WrittenOnce
from twophp.ports import Change, Part, Put


class Slot(msgspec.Struct, eq=False, gc=False):
    """A record as it was found and as it is now, with the parts of it that are still to be written.

    Thousands are kept, and the garbage collector would visit every one of them again and again: ``gc=False`` avoids it.
    """

    record: Record
    keys: tuple[Key, ...] = ()
    id: int = 0  # The driver's own number for the record's row; 0 until it gives one.
    stored: int = 0  # The version that the store has: the guard of an update. 0: the store has none.
    last_line: int = 0  # The driver's own: the number of the newest line about the record, ...
    place: int = 0  # ... and the place of its key in an index.
    is_dropped: bool = False
    entry: LedgerEntry | None = None
    entry_is_new: bool = False
    seals: Mapping[Part, Sealed | None] | None = None


Slots: TypeAlias = dict[Key, Slot]
Check: TypeAlias = Callable[[Slot | None, LedgerEntry], None]
"""Raises if the ledger row is wrong for the record in this slot."""


class View:
    """The ``Records`` of one command: the keys it named, and nothing else."""

    __slots__ = ("_slots", "keys", "now")

    def __init__(self, keys: Sequence[Key], slots: Mapping[Key, Slot], now: Instant) -> None:
        self.keys = keys
        self._slots = slots
        self.now = now

    def get(self, key: Key) -> Any | None:
        """See ``Records.get``. A key that was not named was not read, so its absence here would prove nothing."""
        if key not in self.keys:
            raise KeyError(f"the transaction did not name {key}")
        slot = self._slots.get(key)
        return None if slot is None else slot.record


_BAD_VERSION: Final = "a record's version begins with 1 and rises by one"
_Note: TypeAlias = tuple[Slot, Slot, bool]
"""A slot, a copy of it from before a change that may have to be undone, and whether it was to be written then."""


class Overlay:
    """The slots of one batch. ``changed`` are those that a driver has to write, ``dropped`` those it has to delete."""

    __slots__ = ("_check", "changed", "dropped", "lines", "slots")

    def __init__(self, slots: Slots, check: Check | None = None) -> None:
        self.slots = slots
        self._check = check
        self.changed: dict[Slot, None] = {}
        self.dropped: dict[Slot, None] = {}
        self.lines: list[tuple[Slot | None, JournalEvent]] = []

    def make(self, change: Change, named: Sequence[Key]) -> None:
        """Make all of its puts and drops or, if one of them is refused, none."""
        # Every check runs before the first slot is changed, so there is nothing to undo. Checks do not see each other's
        # puts: a change of which one part may depend on another goes the longer way.
        checked = None if change.drops else self._checked(change.puts, named)
        if checked is None:
            self._make_or_undo(change, named)
            return
        for slot, put in checked:
            if put.held is None:
                for key in slot.keys:
                    self.slots[key] = slot
            self._enter(slot, put)

    def _checked(self, puts: Sequence[Put], named: Sequence[Key]) -> list[tuple[Slot, Put]] | None:
        """Each put with its slot, a new one for a new record. None if another put than the first is of a new record."""
        checked: list[tuple[Slot, Put]] = []
        for put in puts:
            if put.held is not None:
                slot = self._held(put, named)
                if checked and any(other is slot for other, _put in checked):
                    return None
            else:
                record = put.record
                keys = record.keys()
                if checked or put.replaces is not None or any(map(self.slots.__contains__, keys)):
                    return None
                if record.version != 1:
                    raise StoreError(f"{keys[0]}: {_BAD_VERSION}", code="bad_change")
                if put.entry is not None and (self._check is not None or not put.journal):
                    self._check_entry(put, None)
                slot = Slot(record, keys)
            checked.append((slot, put))
        return checked

    def _make_or_undo(self, change: Change, named: Sequence[Key]) -> None:
        notes: list[_Note] = []
        line_count = len(self.lines)
        try:
            for put in change.puts:
                if put.replaces is not None:
                    self._drop(put.replaces, named, notes)
                if put.held is not None:
                    self._held(put, named)
                self._put(put, put.record.keys(), named, notes)
            for key in change.drops:
                self._drop(key, named, notes)
        except BaseException:
            self._undo(notes)
            del self.lines[line_count:]
            raise

    def _held(self, put: Put, named: Sequence[Key]) -> Slot:
        """The slot for a record that keeps the keys of its previous version."""
        slot = self.slots.get(put.held) if put.held in named else None  # type: ignore[arg-type]
        if slot is None or put.record.version != slot.record.version + 1:
            raise StoreError(f"{put.held}: {_BAD_VERSION}", code="bad_change")
        if put.entry is not None and (self._check is not None or not put.journal):
            self._check_entry(put, slot)
        return slot

    def _put(self, put: Put, keys: tuple[Key, ...], named: Sequence[Key], notes: list[_Note] | None) -> None:
        record = put.record
        slot = self.slots.get(keys[0])
        if slot is not None and keys[0] not in named:
            slot = _seen(slot, named, notes)
        if record.version != (1 if slot is None else slot.record.version + 1):
            raise StoreError(f"{keys[0]}: {_BAD_VERSION}", code="bad_change")
        if put.entry is not None and (self._check is not None or not put.journal):
            self._check_entry(put, slot)
        if slot is None or keys != slot.keys:
            slot = self._taking(keys, slot, record, notes)
        elif notes is not None:
            notes.append((slot, copy_of(slot), slot in self.changed))
        self._enter(slot, put)

    def _enter(self, slot: Slot, put: Put) -> None:
        """Enter a put that has passed every check."""
        slot.record = put.record
        if put.seals:
            slot.seals = {**slot.seals, **put.seals} if slot.seals else put.seals
        entry = put.entry
        if entry is not None:
            slot.entry = entry
            if entry.version == 1:
                slot.entry_is_new = True
        self.changed[slot] = None
        for event in put.journal:
            self.lines.append((slot, event))

    def _check_entry(self, put: Put, slot: Slot | None) -> None:
        assert put.entry is not None
        if not put.journal:
            raise StoreError(f"{put.entry}: a ledger row changes with a line of history", code="bad_change")
        if self._check is not None:
            self._check(slot, put.entry)

    def _taking(self, keys: tuple[Key, ...], slot: Slot | None, record: Record, notes: list[_Note] | None) -> Slot:
        """The slot, or a new one, under these keys and no others."""
        slots = self.slots
        for key in keys:
            if slots.get(key, slot) is not slot:
                raise ConstraintViolation(f"{key}: another record holds it")
        if slot is None:
            slot = Slot(record)
        if notes is not None:
            notes.append((slot, copy_of(slot), slot in self.changed))
        for key in slot.keys:
            del slots[key]
        for key in keys:
            slots[key] = slot
        slot.keys = keys
        return slot

    def _drop(self, key: Key, named: Sequence[Key], notes: list[_Note]) -> None:
        """Forget the record. Its ledger row and its history stay."""
        slot = self.slots.get(key)
        if slot is not None and key not in named:
            slot = _seen(slot, named, notes)
        if slot is None:
            raise StoreError(f"{key}: there is no record to drop", code="bad_change")
        if isinstance(slot.record, WrittenOnce | Fence):
            raise ConstraintViolation(f"{key}: what is written once stays")
        self._taking((), slot, slot.record, notes)
        slot.is_dropped = True
        self.dropped[slot] = None

    def _undo(self, notes: Sequence[_Note]) -> None:
        """Undo this change only: the changes of earlier commands in the batch stay to be written."""
        for slot, was, was_changed in reversed(notes):
            for key in slot.keys:
                del self.slots[key]
            self.dropped.pop(slot, None)
            if not was_changed:
                self.changed.pop(slot, None)
            for name in Slot.__struct_fields__:
                setattr(slot, name, getattr(was, name))
            for key in slot.keys:
                self.slots[key] = slot


def _seen(slot: Slot, named: Sequence[Key], notes: Sequence[_Note] | None) -> Slot | None:
    """The slot if the command has read its record under another key, or has put it itself."""
    if any(held in named for held in slot.keys) or any(one is slot for one, _was, _changed in notes or ()):
        return slot
    return None
