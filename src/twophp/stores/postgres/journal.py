"""The journal read back. Each writer has a chain of its own; joined, they are one, in an order that is settled once.

Whoever asks for the journal joins what was written since: links take the next numbers, and are chained once more. That
is written down, so the numbers of lines never change and a head that somebody noted stays provable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from twophp.core.records import JournalEvent
from twophp.kernel.journal import FIRST_FACT, PREVIOUS, RECORD, Link, decode_lines
from twophp.ports import JournalLine
from twophp.stores.chains import placed
from twophp.stores.postgres.script import Script

JOINED_AT_ONCE: Final = 500


async def join(connection: Any, script: Script) -> None:
    """Give every link that has none its place among all. Inside a transaction; one at a time."""
    number, digest = await connection.fetchrow(script.named("lock_joined"))
    while links := await connection.fetch(script.named("links_to_join"), JOINED_AT_ONCE):
        rows = []
        for row in links:
            link = placed(row, number + 1, digest)
            rows.append((number + 1, row["id"], link.count, link.hash))
            number, digest = link.last_line, link.hash
        await connection.execute(script.named("append_joined"), *map(list, zip(*rows, strict=True)))
    await connection.execute(script.named("move_joined"), number, digest)


async def links_after(connection: Any, script: Script, after: int, limit: int) -> list[Link]:
    """The joined links whose lines come after this one, in order."""
    found = await connection.fetch(script.named("joined_after"), after, limit + 1)
    links = [replace(placed(row, row["first"]), hash=row["joined_hash"]) for row in found if row["first"] > after]
    return links[:limit]


async def lines_after(connection: Any, script: Script, after: int, limit: int) -> list[JournalLine]:
    """The lines after this one, in order, and no more than ``limit``."""
    found = await connection.fetch(script.named("joined_after"), after, limit + 1)
    told = [
        JournalLine(row["first"] + place, JournalEvent(*line[FIRST_FACT:-1]), row["joined_hash"])
        for row in found
        for place, line in enumerate(decode_lines(row["lines"]))
    ]
    return [line for line in told if line.seq > after][:limit]


async def history(connection: Any, script: Script, record: int, last_line: int) -> Sequence[JournalLine]:
    """Every line about a record, oldest first: from its newest line back to its first."""
    found: list[JournalLine] = []
    row: Any = None
    lines: list[list[Any]] = []
    while last_line:
        if row is None or not row["id"] <= last_line < row["id"] + len(lines):
            row = await connection.fetchrow(script.named("link_with_line"), last_line)
            lines = [] if row is None else decode_lines(row["lines"])
        place = -1 if row is None else last_line - row["id"]
        if not 0 <= place < len(lines) or lines[place][RECORD] != record:
            break  # Somebody has cut the journal. What is left is still told.
        line = lines[place]
        found.append(JournalLine(row["first"] + place, JournalEvent(*line[FIRST_FACT:-1]), row["joined_hash"]))
        last_line = line[PREVIOUS] if line[PREVIOUS] != last_line else 0
    found.reverse()
    return found
