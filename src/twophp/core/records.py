"""The port's words for stored records: keys, the protocol of a record, and the lines of its history.

Values here and in the machines are small, frozen and never part of a cycle; ``gc=False`` spares the garbage collector
from visiting the hundreds of thousands that a busy second makes.

A *record* is the state of one machine: an intent, an obligation. A record is found by its keys; the first is its
identity, the others are unique while the record holds them. ``due_at`` says when a record must next be processed, so
the cost of a sweep grows with the due records and not with all that are stored.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, NewType, Protocol

import msgspec

Instant = int
"""Milliseconds since the epoch, UTC."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

Sealed = NewType("Sealed", bytes)
"""Bytes that only a vault can open. Stores never see anything else of a payload or a response."""


def since_epoch(at: datetime) -> Instant:
    """The instant of a datetime with a time zone; what is finer than a millisecond is cut off."""
    return (at - EPOCH) // _MILLISECOND


class Key(msgspec.Struct, frozen=True, order=True, cache_hash=True, gc=False):
    """One way to find a record: the name of an index and the values to look for."""

    by: str
    values: tuple[str, ...]


class Record(Protocol):
    """The members of a record that a store uses."""

    @property
    def version(self) -> int:
        """Rises by one with every change that is written."""
        ...

    @property
    def due_at(self) -> Instant | None:
        """When the record must next be processed, if ever."""
        ...

    def keys(self) -> tuple[Key, ...]:
        """The record's identity first, then every other key it holds right now."""
        ...


class JournalEvent(msgspec.Struct, frozen=True, gc=False):
    """One line of history, written in the same change as the state it explains, and never again."""

    kind: str
    subject: str
    event: str
    before: str
    after: str
    at: Instant  # When it became true. An expiry happens at the deadline ...
    observed_at: Instant  # ... though a visit noticed it later.
    fence: int = 0
    trace_id: str = ""
    detail: str = ""
