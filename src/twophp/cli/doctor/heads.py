"""The head of the journal, kept apart from the ledger: whether the ledger was set back since it was noted."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from twophp.cli.doctor.findings import Finding, fail, ok, warn
from twophp.core.errors import ConfigError
from twophp.core.records import Instant
from twophp.stores.sqlite.reading import reading
from twophp.stores.sqlite.sql import sql
from twophp.stores.sqlite.verify import ProvenHead
from twophp.wire.instant import format_instant

CHECK: Final = "journal.noted"
RESTORED: Final = (
    "hold the traffic: what ran since is not in the ledger and would run again; see docs/how-to/operations.md, and"
    " remove the note when that is done"
)


class Note(msgspec.Struct, frozen=True):
    """What is in the file."""

    head: str
    noted_at: str


def noted_in(file: Path) -> Note | None:
    """The head that was noted; None before the first time."""
    if not file.exists():
        return None
    try:
        note = msgspec.json.decode(file.read_bytes(), type=Note)
    except (msgspec.DecodeError, OSError) as error:
        raise ConfigError(f"{file} is no note of a head: {error}", code="bad_head") from error
    ProvenHead.parse(note.head)
    return note


def heads_of_file(path: str, line: int) -> tuple[ProvenHead | None, bytes | None]:
    """The newest head of a ledger's file, and the hash of a line that ends a link."""
    with reading(path) as connection:
        newest = connection.execute(sql("newest_head")).get
        return (None if newest is None else ProvenHead(*newest)), connection.execute(sql("hash_of_line"), (line,)).get


def check_noted(file: Path, note: Note | None, newest: ProvenHead | None, found: bytes | None, now: Instant) -> Finding:
    """Compare, and note the newer head if all is well. A note that does not fit stays as it is."""
    if note is not None:
        noted = ProvenHead.parse(note.head)
        if newest is None or newest.seq < noted.seq:
            gone = f"line {noted.seq:,}, noted on {note.noted_at}, is gone"
            means = f"{gone}: the ledger was restored to an older point, or cut"
            return fail(CHECK, means, RESTORED)
        if found != noted.digest:
            means = f"line {noted.seq:,} is not the one that was noted on {note.noted_at}: this is another history"
            return fail(CHECK, means, RESTORED)
    if newest is None:
        return warn(CHECK, "the journal has no line yet, so there is no head to note", "come again when it has")
    file.write_bytes(msgspec.json.encode(Note(str(newest), format_instant(now))))
    kept = "there was none before" if note is None else f"the head of {note.noted_at} is still part of it"
    return ok(CHECK, f"line {newest.seq:,} was noted as the head; {kept}")
