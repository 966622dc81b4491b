"""The journal of a ledger that several handles write: a chain of links for each, joined as one (ADR 38).

A handle's own chain waits for nobody. Whoever reads the journal joins what is new: links get their places among all
lines, in an order that is settled once, and are chained once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from twophp.core.records import Instant, JournalEvent
from twophp.kernel.journal import FIRST_FACT, GENESIS, PREVIOUS, RECORD, Link, Writer, decode_lines, new_link
from twophp.kernel.overlay import Slot

LINE_BITS: Final = 40
"""A line's number is its writer's, shifted by so much, and its place among that writer's lines."""

_NO_RECORD: Final = 0  # The journal's record id for history that belongs to no single record.


class Chain(msgspec.Struct, frozen=True):
    """Who writes, and how far it has come. Every handle has a row of its own, which no other updates."""

    id: int
    seq: int = 0
    link: int = 0
    lines: int = 0
    hash: bytes = GENESIS

    @property
    def last_line(self) -> int:
        """The number of its last line; also before there is one."""
        return self.id << LINE_BITS | self.lines


def beginning(previous: int, joined: int, digest: bytes) -> bytes:
    """What a writer's first link is chained to: the writer before it, and what was joined by then, with its hash.

    The database makes it (`begin_writer`). Writers of the first schema, which name no other, begin with nothing.
    """
    return GENESIS if previous < 0 else sha256(b"%d %d %b" % (previous, joined, digest)).digest()


def placed(row: Any, first: int, previous: bytes = GENESIS) -> Link:
    """A link as one of the joined chain: its lines have their numbers there."""
    lines = [(line[PREVIOUS], line[RECORD], JournalEvent(*line[FIRST_FACT:-1])) for line in decode_lines(row["lines"])]
    writer = Writer(row["writer"], row["seq"] - 1)
    return new_link(previous, first, writer, lines, row["at"], row["next_id"])


def numbered(
    lines: Iterable[tuple[Slot | None, JournalEvent]], chain: Chain
) -> Iterator[tuple[int, int, JournalEvent]]:
    """Each line with the one before it about the same record, which points to this one from now on."""
    for number, (slot, event) in enumerate(lines, chain.last_line + 1):
        if slot is None:
            yield 0, _NO_RECORD, event
        else:
            yield slot.last_line, slot.id, event
            slot.last_line = number


def add_link(
    chain: Chain, lines: Sequence[tuple[int, int, JournalEvent]], at: Instant, next_id: int
) -> tuple[Link, Chain]:
    """The lines of a batch, chained to the last link, and where the chain has come to then."""
    link = new_link(chain.hash, chain.last_line + 1, Writer(chain.id, chain.seq), lines, at, next_id)
    return link, Chain(chain.id, link.seq, link.id, chain.lines + len(lines), link.hash)
