"""What is asked of a ledger, for a running store and for readers from outside: rows, and the journal read back.

The draft's questions (§10.4) are statements. History is lines by number, and that of one record by its pointers.

Lines up to a certain number may be in the old journal, a row each; all later ones are in links. See ADR 33.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import apsw
import msgspec

from twophp.core.obligation import State
from twophp.core.records import JournalEvent
from twophp.kernel.journal import FIRST_FACT, PREVIOUS, RECORD, Link, decode_lines
from twophp.ports import MOST_ROWS, Calls, Find, Initiated, JournalLine, Obligations, Question, Stalled, Tail, Tree
from twophp.stores.sqlite.sql import sql
from twophp.stores.sqlite.table import Row


def asked(question: Question) -> tuple[str, tuple[Any, ...]]:
    """The statement that answers a question, and its bindings. Never more than ``MOST_ROWS`` (A-53)."""
    match question:
        case Tree(root):
            return sql("entries_of_tree"), (root, MOST_ROWS)
        case Initiated(source):
            return sql("entries_initiated"), (source, MOST_ROWS)
        case Stalled(lease_ended_by):
            return sql("entries_stalled"), (lease_ended_by or 0, MOST_ROWS)
        case Find(correlation_id):
            return sql("entries_found"), (correlation_id, MOST_ROWS)
        case Calls(ids):
            return sql("entries_of_calls"), (msgspec.json.encode(ids).decode(), MOST_ROWS)
        case Tail(limit):
            return sql("entries_newest"), (min(limit, MOST_ROWS),)


def obligations_asked(wanted: Obligations) -> tuple[str, tuple[Any, ...]]:
    """The statement that finds these obligations, by the narrowest index there is, and its bindings."""
    name = "obligations_found"
    if wanted.state == State.RESERVED:
        name = "obligations_reserved_by_intent" if wanted.intent else "obligations_reserved"
    facts = (wanted.flow, wanted.state, wanted.key, wanted.intent, wanted.trace_id, wanted.before)
    return sql(name), (*facts, min(wanted.limit, MOST_ROWS))


_LINK: Final = sql("link_with_line")


def history(connection: apsw.Connection, record: int, last_line: int) -> list[JournalLine]:
    """Every line about a record, oldest first: from its newest line back to its first."""
    found: list[JournalLine] = []
    link: tuple[int, bytes, list[list[Any]]] = (0, b"", [])
    while last_line:
        if not link[0] <= last_line < link[0] + len(link[2]):
            row: Row | None = connection.execute(_LINK, (last_line,)).fetchone()
            link = (0, b"", []) if row is None else (row[0], row[1], decode_lines(row[2]))
        number, digest, lines = link
        if not number <= last_line < number + len(lines) or lines[last_line - number][RECORD] != record:
            break  # The journal was cut. The lines that are left are still returned, and ``verify`` names the place.
        line = lines[last_line - number]
        found.append(_line_of(line, digest))
        last_line = line[PREVIOUS] if line[PREVIOUS] < last_line else 0
    found.reverse()
    return [*map(_old_line, connection.execute(sql("old_lines_of"), (record,))), *found]


def lines_after(connection: apsw.Connection, after: int, limit: int) -> Iterator[JournalLine]:
    """The lines after this one, in order, and no more than ``limit``."""
    for row in connection.execute(sql("old_lines_after"), (after, limit)):
        yield _old_line(row)
        after, limit = row[0], limit - 1
    if limit <= 0:
        return
    for _id, digest, lines in connection.execute(sql("links_after"), (after,)):
        for line in decode_lines(lines):
            if line[0] > after:
                yield _line_of(line, digest)
                limit -= 1
                if not limit:
                    return


def links_after(connection: apsw.Connection, after: int, limit: int) -> Iterator[Link]:
    """The links whose lines come after this one, in order."""
    for row in connection.execute(sql("whole_links_after"), (after, limit)):
        yield link_of(row)


def link_of(row: Row) -> Link:
    """A link, read back."""
    return Link(*row[:-1], row[-1].encode())  # type: ignore[call-arg]


def _line_of(line: list[Any], digest: bytes) -> JournalLine:
    return JournalLine(line[0], JournalEvent(*line[FIRST_FACT:-1]), digest)


def _old_line(row: Row) -> JournalLine:
    seq, _record, *fields, digest = row
    return JournalLine(seq, JournalEvent(*fields), digest)
