"""Whether a database is well: what its head says, whether its newest history holds, whether its disk keeps a write."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw
import msgspec

from twophp.core.errors import StoreUnavailable
from twophp.core.records import Instant, JournalEvent
from twophp.kernel.journal import GENESIS, Link, link_line
from twophp.ports import Clock
from twophp.stores.sqlite.connection import open_connection
from twophp.stores.sqlite.reading import snapshot
from twophp.stores.sqlite.record_cache import read_head
from twophp.stores.sqlite.sql import sql

SCRATCH: Final = ".twophp-doctor-"
PROOFS: Final = 20
_HEADER_BYTES: Final = 20
_WAL_VERSIONS: Final = b"\x02\x02"  # Read and write version in the file's header: only a library with WAL may open it.


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a database."""

    written_at: Instant  # The store's time when it was last written.
    lines: int  # How many there are in the journal, and how many of the newest were looked at.
    checked: int
    broken: str = ""  # Why the newest history does not hold, if it does not.


def look_at(path: str, lines: int) -> Health:
    """Read the head, and follow the chain through the newest ``lines`` of the journal to it."""
    with snapshot(path) as connection:
        seq, _digest, written_at, _next_id = read_head(connection)
        begin = max(seq - lines, 0)
        try:
            broken = _broken(connection, begin)
        except UnicodeDecodeError:
            broken = "the text of a line cannot be read"
    return Health(written_at=written_at, lines=seq, checked=seq - begin, broken=broken)


def _broken(connection: apsw.Connection, begin: int) -> str:
    """Why the lines after ``begin`` do not lead to where the writers say that they ended."""
    links: list[Link] = []
    anchor = (0, GENESIS)
    for row in connection.execute(sql("newest_links")):
        link = Link(*row)
        if link.last_line <= begin:
            anchor = link.last_line, link.hash
            break
        links.append(link)
    else:
        anchor = next(connection.execute(sql("read_old_head")))
        if broken := _old_lines_broken(connection, begin, anchor):
            return broken
    ends: dict[int, Link] = {}
    for link in reversed(links):
        if link.id != anchor[0] + 1:
            return f"line {anchor[0] + 1} is missing"
        if link.hash != link.expected(anchor[1]):
            return (
                f"line {link.id}, one of the {link.count} that were written with it, or the hash before it was changed"
            )
        anchor = link.last_line, link.hash
        ends[link.writer] = link
    for writer, seq, last, digest in connection.execute(sql("all_writers")):
        if last > anchor[0] or (writer in ends and (seq, last, digest) != _end(ends[writer])):
            return f"a writer says that it wrote line {last}; the journal ends at line {anchor[0]} or with another hash"
        ends.pop(writer, None)
    return "the row of a writer is missing" if ends else ""


def _end(link: Link) -> tuple[int, int, bytes]:
    return link.seq, link.id, link.hash


def _old_lines_broken(connection: apsw.Connection, begin: int, head: tuple[int, bytes]) -> str:
    """The same of the lines from before there were links. The line before them, if there is one, is their anchor."""
    end, previous = begin, GENESIS
    for seq, record, *fields, digest in connection.execute(sql("old_lines_from"), (max(begin - 1, 0),)):
        is_anchor = seq == begin
        if not is_anchor and seq != end + 1:
            return f"line {end + 1} is missing"
        if not is_anchor and digest != link_line(previous, seq, record, JournalEvent(*fields)):
            return f"line {seq} or the hash before it was changed"
        end, previous = seq, digest
    if begin <= head[0] and (end != head[0] or (end and previous != head[1])):
        return f"its head says line {head[0]}, it ends at line {end} or with another hash"
    return ""


def is_wal(path: str) -> bool:
    """Whether the file keeps a write-ahead log, by its own header."""
    with Path(path).open("rb") as file:
        return file.read(_HEADER_BYTES)[18:20] == _WAL_VERSIONS


def prove_writes(folder: Path, steady: Clock) -> float:
    """Make a scratch database in the folder, commit to it as a store does, and remove it; milliseconds for one commit.

    Raises what opening a store raises, such as ``weak_durability`` or ``disk_full``.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder) as scratch:
            return _timed(str(Path(scratch) / "scratch.db"), steady)
    except OSError as error:
        message = f"{folder} cannot be written: {error.strerror}"
        raise StoreUnavailable(message, code="store_read_only") from error


def _timed(path: str, steady: Callable[[], int]) -> float:
    connection = open_connection(path)
    try:
        begun = steady()
        for number in range(PROOFS):
            connection.execute(sql("begin"))
            connection.execute(f"PRAGMA user_version = {number + 1}")
            connection.execute(sql("commit"))
        return (steady() - begun) / PROOFS
    finally:
        connection.close()
