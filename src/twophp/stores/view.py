"""What one decision may see, whichever store it runs in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from twophp.core.records import Instant, Key, Record


class Slot(Protocol):
    """Where a store keeps a record while somebody decides about it."""

    @property
    def record(self) -> Record:
        """The record as it is by now."""
        ...


class View:
    """The ``Records`` of one transaction: the keys it named, and nothing else."""

    __slots__ = ("_found", "keys", "now")

    def __init__(self, keys: Sequence[Key], found: Mapping[Key, Slot], now: Instant) -> None:
        self.keys = keys
        self._found = found
        self.now = now

    def get(self, key: Key) -> Any | None:
        """See ``Records.get``. A key that was not named was not read, so nobody may conclude anything from it."""
        if key not in self.keys:
            raise KeyError(f"the transaction did not name {key}")
        slot = self._found.get(key)
        return None if slot is None else slot.record
