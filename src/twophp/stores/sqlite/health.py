"""Whether a database is well: what its head says, whether its newest history holds, whether its disk keeps a write."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from twophp.core.errors import StoreUnavailable
from twophp.core.records import Instant
from twophp.kernel.journal import GENESIS, link
from twophp.ports import Clock, JournalLine
from twophp.stores.sqlite.connection import open_connection
from twophp.stores.sqlite.known import read_head
from twophp.stores.sqlite.reading import snapshot
from twophp.stores.sqlite.sql import sql
from twophp.stores.sqlite.tables import line_of

SCRATCH: Final = ".twophp-doctor-"
PROOFS: Final = 20
_HEADER_BYTES: Final = 20
_WAL_VERSIONS: Final = b"\x02\x02"  # Read and write version in the file's header: only whoever knows WAL may open it.


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a database."""

    written_at: Instant  # The store's time when it was last written.
    lines: int  # How many there are in the journal, and how many of the newest were looked at.
    checked: int
    broken: str = ""  # Why the newest history does not hold, if it does not.


def look_at(path: str, lines: int) -> Health:
    """Read the head, and follow the chain through the newest ``lines`` of the journal to it."""
    with snapshot(path) as connection:
        seq, digest, written_at, _next_id = read_head(connection)
        begin = max(seq - lines, 0)
        try:
            found = [line_of(row) for row in connection.execute(sql("journal_from"), (max(begin - 1, 0),))]
            broken = _broken(found, begin, (seq, digest))
        except UnicodeDecodeError:
            broken = "the text of a line cannot be read"
    return Health(written_at=written_at, lines=seq, checked=seq - begin, broken=broken)


def _broken(found: Sequence[JournalLine], begin: int, head: tuple[int, bytes]) -> str:
    """Why the lines after ``begin`` do not lead to the head. The line before them, if there is one, is their anchor."""
    end, previous = begin, GENESIS
    for line in found:
        is_anchor = line.seq == begin
        if not is_anchor and line.seq != end + 1:
            return f"line {end + 1} is missing"
        if not is_anchor and line.digest != link(previous, line.seq, line.record, line.event):
            return f"line {line.seq} or the hash before it was changed"
        end, previous = line.seq, line.digest
    if end != head[0] or (end and previous != head[1]):
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
