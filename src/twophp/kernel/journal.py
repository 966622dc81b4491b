"""The hash chain of the journal.

Each line's hash covers the line and the hash before it, so an edited, deleted or reordered line breaks every line
after it. A head kept apart from the journal holds the last hash, so a truncated tail shows as well. Whoever noted an
old head elsewhere can prove more: that history up to there was not rewritten as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final

import msgspec

from twophp.core.records import JournalEvent

GENESIS: Final = b""
"""What the first line is chained to."""

_encode: Final = msgspec.json.Encoder().encode


def link(previous: bytes, seq: int, record: int, event: JournalEvent) -> bytes:
    """The hash of one line: SHA-256 over the hash before it and the line as a compact JSON array."""
    return hash_line(previous, (seq, record, *msgspec.structs.astuple(event)))


def hash_line(previous: bytes, line: tuple[Any, ...]) -> bytes:
    """The same, of a line that is already spelled out."""
    return sha256(previous + _encode(line)).digest()


class Chain:
    """The end of the chain, to which a batch adds its lines."""

    __slots__ = ("hash", "seq")

    def __init__(self, seq: int, hash_: bytes) -> None:
        self.seq = seq
        self.hash = hash_

    def add(self, lines: Iterable[tuple[int, JournalEvent]]) -> list[tuple[Any, ...]]:
        """Number and hash these lines, each with the id of its record: rows of the journal."""
        rows = []
        seq, digest = self.seq, self.hash
        for record, event in lines:
            seq += 1
            line = (seq, record, *msgspec.structs.astuple(event))
            digest = hash_line(digest, line)
            rows.append((*line, digest))
        self.seq, self.hash = seq, digest
        return rows
