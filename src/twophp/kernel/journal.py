"""The hash chain of the journal: one link for the lines of a batch.

A link's hash covers its lines, its own numbers and the hash before it, so an edited, deleted or reordered line breaks
its link and every link after it. Within a link each line has its number and a checksum of its own: they prove nothing,
but they say which line was changed. Each writer keeps the hash of its last link apart from the journal, so a truncated
tail shows as well. An auditor who noted an old head elsewhere can prove more: that the history up to there was not
rewritten as a whole.

Journals that are older than links have a hash for each line (``link_line``); the first link is chained to the last such
line.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final
from zlib import crc32

import msgspec

from twophp.core.records import JournalEvent

GENESIS: Final = b""
"""The hash before the first link."""

# The places in a line: its number, the number of the line before it about the same record, the record, then the event's
# fields, and at last the checksum.
PREVIOUS: Final = 1
RECORD: Final = 2
FIRST_FACT: Final = 3

_encode: Final = msgspec.json.Encoder().encode
_fields: Final = msgspec.structs.astuple
decode_lines: Final = msgspec.json.Decoder(list[list[Any]]).decode


class Link(msgspec.Struct, frozen=True, gc=False):
    """The lines of one batch, as they are stored."""

    id: int  # The number of its first line.
    writer: int
    seq: int  # The writer's own count of its links.
    count: int
    at: int  # The store's time.
    next_id: int  # The next id that is free.
    hash: bytes
    lines: bytes  # A JSON array with an array for each line.

    @property
    def last_line(self) -> int:
        """The number of its last line."""
        return self.id + self.count - 1

    def expected(self, previous: bytes) -> bytes:
        """The hash that the link must have when ``previous`` is the hash before it."""
        facts = (self.id, self.writer, self.seq, self.count, self.at, self.next_id)
        return sha256(previous + _encode(facts) + self.lines).digest()


class Writer(msgspec.Struct, frozen=True, gc=False):
    """A handle that adds links, and the number that it has added. Its id is its first link's; 0 before that."""

    id: int = 0
    links: int = 0


def new_link(
    previous: bytes, first: int, writer: Writer, lines: Sequence[tuple[int, int, JournalEvent]], at: int, next_id: int
) -> Link:
    """The next link. Its lines are numbered from ``first``; each comes with the line before it and its record's id."""
    texts = []
    for number, (before, record, event) in enumerate(lines, first):
        text = _encode((number, before, record, *_fields(event)))
        texts.append(b"%b,%d]" % (text[:-1], crc32(text)))
    blob = b"[%b]" % b",".join(texts)
    facts = (first, writer.id or first, writer.links + 1, len(lines), at, next_id)
    return Link(*facts, sha256(previous + _encode(facts) + blob).digest(), blob)


def is_intact(line: Sequence[Any]) -> bool:
    """Whether a line fits its own checksum."""
    return bool(line) and crc32(_encode(line[:-1])) == line[-1]


def link_line(previous: bytes, seq: int, record: int, event: JournalEvent) -> bytes:
    """The hash of one line of an old journal: SHA-256 over the hash before it and the line as a compact JSON array."""
    return sha256(previous + _encode((seq, record, *_fields(event)))).digest()
