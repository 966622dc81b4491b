"""Verification of the journal itself: old lines, links, and where each writer says that it has come to.

Each link is checked against the *stored* hash before it, so one edited line is one finding and not a finding for every
line after it. The hash proves that a link was changed; its lines' numbers and checksums then say which of them it was.

Every line that can be read is put into a temporary table, called ``journal`` like the view it stands in front of: there
it has an index by its record, which the file does without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import apsw
import msgspec

from twophp.core.records import JournalEvent
from twophp.kernel.journal import GENESIS, RECORD, Link, decode_lines, is_intact, link_line
from twophp.stores.sqlite.sql import sql
from twophp.stores.sqlite.table import Row

_FIELDS_OF_A_LINE = RECORD + 1 + len(JournalEvent.__struct_fields__) + 1

ChainFinding: TypeAlias = Literal["edited_line", "missing_lines", "truncated", "rewritten_head", "other_history"]


class Place(NamedTuple):
    """A place in the journal: the number of a line, and the hash that the chain has there."""

    seq: int
    digest: bytes


class Find(msgspec.Struct, frozen=True):
    """Whom to tell of a finding: what, the message, the line, the subject."""

    tell: Callable[[ChainFinding, str, int, str], None]

    def __call__(self, what: ChainFinding, message: str, *, seq: int, subject: str = "") -> None:
        """Tell of it."""
        self.tell(what, message, seq, subject)


class ChainInspection:
    """One walk through the journal, from its first line to its last."""

    def __init__(self, connection: apsw.Connection, find: Find, look: Callable[[], None], expect: Place | None) -> None:
        self._execute = connection.execute
        self._executemany = connection.executemany
        self._find = find
        self._look = look
        self._expect = expect
        self._writers: dict[int, Link] = {}  # The last link of each.
        self.lines = 0

    def run(self) -> None:
        """Check everything, and leave every line in the temporary table."""
        self._execute(sql("make_line_table"))
        last = self._check_links(self._check_old_lines())
        self._execute(sql("index_line_table"))
        self._check_writers(last)
        if self._expect is not None:
            message = f"line {self._expect.seq} was noted earlier as the head, and is not there"
            self._find("other_history", message, seq=self._expect.seq)

    def _pass(self, place: Place) -> None:
        if self._expect is not None and self._expect.seq == place.seq:
            expected, self._expect = self._expect, None
            if expected.digest != place.digest:
                message = f"line {place.seq}: the noted hash was {expected.digest.hex()}, found {place.digest.hex()}"
                self._find("other_history", message, seq=place.seq)

    def _missing(self, first: int, last: int) -> None:
        message = f"line {first} is missing" if first == last else f"lines {first} to {last} are missing"
        self._find("missing_lines", message, seq=first)

    # The old journal: a hash for each line.

    def _check_old_lines(self) -> Place:
        """Every old line against the hash before it, then the head that was kept apart from them."""
        last = Place(0, GENESIS)
        for row in self._old_lines():
            self._look()
            self.lines += 1
            last = self._check_old_line(last, row)
            self._pass(last)
        self._execute(sql("copy_old_lines"))
        kept: Row | None = self._execute(sql("read_old_head")).fetchone()
        if kept is None:
            self._find("rewritten_head", f"the head is gone; the old journal ends at line {last.seq}", seq=last.seq)
            return last
        head = Place(*kept)
        if last.seq < head.seq:
            message = f"the journal ends at line {last.seq}; its head says that there are {head.seq}"
            self._find("truncated", message, seq=last.seq + 1)
        elif last.seq > head.seq:
            message = f"the head says that there are {head.seq} lines; the journal goes on to line {last.seq}"
            self._find("rewritten_head", message, seq=head.seq + 1)
        elif last.digest != head.digest:
            message = f"the head's hash is {head.digest.hex()}, expected that of line {last.seq}: {last.digest.hex()}"
            self._find("rewritten_head", message, seq=head.seq)
        return last if last.seq >= head.seq else head

    def _old_lines(self) -> Iterator[Row]:
        """Every line; one whose text cannot even be decoded comes with nothing but its number."""
        seq = 0
        while True:
            try:
                for row in self._execute(sql("old_lines_from"), (seq,)):
                    seq = row[0]
                    yield row
            except UnicodeDecodeError:
                seq = self._execute(sql("old_line_next"), (seq,)).get
                yield (seq,)
            else:
                return

    def _check_old_line(self, previous: Place, row: Row) -> Place:
        seq, *rest = row
        if not rest:
            self._find("edited_line", f"line {seq}: its text cannot be read", seq=seq)
            return Place(seq, b"")
        record, *fields, digest = rest
        event = JournalEvent(*fields)
        if seq != previous.seq + 1:
            self._missing(previous.seq + 1, seq - 1)
        elif (previous.digest or seq == 1) and (expected := link_line(previous.digest, seq, record, event)) != digest:
            message = (
                f"line {seq} ({event.kind} {event.subject}, {event.event}): the line or the hash before it was changed;"
                f" expected hash {expected.hex()}, found {digest.hex()}"
            )
            self._find("edited_line", message, seq=seq, subject=event.subject)
        return Place(seq, digest)

    # Links.

    def _check_links(self, last: Place) -> Place:
        for row in self._execute(sql("links_as_bytes")):
            link = Link(*row)
            lines = _decoded(link)
            if link.id > last.seq + 1:
                self._missing(last.seq + 1, link.id - 1)
                self._check_lines(link, lines, last_resort="")
            elif link.id != last.seq + 1 or link.expected(last.digest) != link.hash:
                resort = f"the link of lines {link.id} to {link.last_line}, or the hash before it, was changed"
                self._check_lines(link, lines, last_resort=resort)
            for _line in lines:
                self._look()
            self.lines += len(lines)
            self._executemany(sql("keep_line"), [_row(line, link) for line in lines if _is_whole(line)])
            self._writers[link.writer] = link
            last = Place(link.last_line, link.hash)
            self._pass(last)
        return last

    def _check_lines(self, link: Link, lines: list[Any], *, last_resort: str) -> None:
        """Which lines of a link that does not hold were changed. If its numbers cannot tell, the link is named."""
        if not lines:
            message = f"lines {link.id} to {link.last_line}: their text cannot be read"
            self._find("edited_line", message, seq=link.id)
            return
        told = sum(self._name_edited(link.id + place, line) for place, line in enumerate(lines)) > 0
        numbers = [line[0] for line in lines if _is_whole(line)]
        gone = sorted(set(range(link.id, link.last_line + 1)) - set(numbers))
        if gone and len(lines) < link.count:
            told = True
            self._missing(gone[0], gone[-1])
        if not told and numbers != sorted(numbers):
            told = True
            place = next(place for place, number in enumerate(numbers) if number != link.id + place)
            message = f"line {numbers[place]} stands where line {link.id + place} was"
            self._find("edited_line", message, seq=link.id + place)
        if not told and last_resort:
            self._find("edited_line", last_resort, seq=link.id, subject=_subject(lines[0]))

    def _name_edited(self, expected: int, line: Any) -> bool:
        if _is_whole(line) and is_intact(line):
            return False
        number = line[0] if _is_whole(line) and isinstance(line[0], int) else expected
        message = f"line {number}{_about(line)}: it does not fit its checksum: it was changed"
        self._find("edited_line", message, seq=number, subject=_subject(line))
        return True

    # Writers.

    def _check_writers(self, last: Place) -> None:
        """A link that was cut off at the end is missing to the writer that has written it."""
        rows: dict[int, Row] = {row[0]: row[1:] for row in self._execute(sql("all_writers"))}
        for writer in sorted({*rows, *self._writers}):
            self._check_writer(writer, rows.get(writer), self._writers.get(writer), last)

    def _check_writer(self, writer: int, row: Row | None, link: Link | None, last: Place) -> None:
        if row is None:
            assert link is not None
            message = f"the row of writer {writer} is gone; its last link begins with line {link.id}"
            self._find("rewritten_head", message, seq=link.id)
        elif link is None or row[1] > link.id:
            message = f"the journal ends at line {last.seq}, or lacks line {row[1]}, which writer {writer} has written"
            self._find("truncated", message, seq=row[1])
        elif row != (link.seq, link.id, link.hash):
            message = (
                f"writer {writer} says that its last link begins with line {row[1]}: it is line {link.id}, or its hash"
            )
            self._find("rewritten_head", message, seq=link.id)


def _decoded(link: Link) -> list[Any]:
    try:
        return list(decode_lines(link.lines))
    except msgspec.DecodeError:
        return []


def _is_whole(line: Any) -> bool:
    return isinstance(line, list) and len(line) == _FIELDS_OF_A_LINE


def _subject(line: Any) -> str:
    return str(line[RECORD + 2]) if _is_whole(line) else ""


def _about(line: Any) -> str:
    return f" ({line[RECORD + 1]} {line[RECORD + 2]}, {line[RECORD + 3]})" if _is_whole(line) else ""


def _row(line: list[Any], link: Link) -> Row:
    return (line[0], *line[RECORD:-1], link.hash)
