"""What a store keeps: how a record is found, what it looks like, and how it is audited.

Values here and in the machines are small, frozen and never part of a cycle; ``gc=False`` spares the collector from
looking at the hundreds of thousands a busy second makes.

A *record* is the state of one machine: an intent, an obligation. A record is found by its keys; the first is its
identity, the others are unique while the record holds them. ``due_at`` says when a record next wants attention, so a
sweep costs what is due and not what is stored.
"""

from __future__ import annotations

from typing import NewType, Protocol

import msgspec

Instant = int
"""Milliseconds since the epoch, UTC."""

Sealed = NewType("Sealed", bytes)
"""Bytes that only a vault can open. Stores never see anything else of a payload or a response."""


class Key(msgspec.Struct, frozen=True, order=True, cache_hash=True, gc=False):
    """One way to find a record: the name of an index and the values to look for."""

    by: str
    values: tuple[str, ...]


class Record(Protocol):
    """What a store needs to know of a record's type."""

    @property
    def version(self) -> int:
        """Rises by one with every change that is written."""
        ...

    @property
    def due_at(self) -> Instant | None:
        """When the record next wants attention, if ever."""
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
    observed_at: Instant  # ... though somebody noticed later.
    fence: int = 0
    trace_id: str = ""
    detail: str = ""
