"""From a row for each part of an intent to one wide row: what migration 0013 leaves to do, in bounded steps.

Rows are moved in the order of their ids. Each step is a transaction that also notes how far it came, so a process that
is killed, or finds the disk full, loses nothing: the next one that opens the file goes on from there. The old rows stay
until every one was moved; only then 0014 drops them. Several processes may work at it, a step each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, TypeAlias

import apsw

from twophp.stores.sqlite import hashes
from twophp.stores.sqlite.sql import migrations, sql

STEP: Final = 2_000  # ids
TAKEN_OVER: Final = ("widen_intents", "widen_forgotten", "widen_client_entries", "widen_seals")
CHECKPOINT_STEPS: Final = 16
DONE_SCHEMA: Final = 14

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of ids that were processed and the number of all. It may raise to stop: the steps that it was
called for are durable."""


def widen(connection: apsw.Connection, progress: Progress) -> None:
    """Move the remaining rows, then make the indexes."""
    connection.create_scalar_function(
        "twophp_who", lambda *texts: hashes.who_hash(*map(str, texts)), 1, deterministic=True
    )
    last = _last_id(connection)
    steps = 0
    while (position := _step(connection, last)) is not None:
        steps += 1
        progress(min(position, last), last)
        if steps % CHECKPOINT_STEPS == 0:
            _checkpoint(connection)  # The log would grow to the size of the file.
    for statement in _indexes():
        _make_index(connection, statement)
    _checkpoint(connection)
    progress(last, last)


def _checkpoint(connection: apsw.Connection) -> None:
    """Fold the log into the file, unless another process is in the way, such as one that migrates as well."""
    with suppress(apsw.BusyError):
        connection.wal_checkpoint()


def _last_id(connection: apsw.Connection) -> int:
    connection.execute(sql("begin"))
    is_done = connection.execute("PRAGMA user_version").get >= DONE_SCHEMA
    last = 0 if is_done else int(connection.execute(sql("last_id_to_widen")).get)
    connection.execute(sql("rollback"))
    return last


def _step(connection: apsw.Connection, last: int) -> int | None:
    """One transaction. None: nothing is left, or another process has finished."""
    connection.execute(sql("begin"))
    if connection.execute("PRAGMA user_version").get >= DONE_SCHEMA:
        connection.execute(sql("rollback"))
        return None
    position = int(connection.execute(sql("widened_so_far")).get)
    if position >= last:
        connection.execute(sql("rollback"))
        return None
    for name in TAKEN_OVER:
        connection.execute(sql(name), (position, position + STEP))
    connection.execute(sql("note_widened"), (position + STEP,))
    connection.execute(sql("commit"))
    return position + STEP


def _indexes() -> Iterator[str]:
    """The indexes of 0014, made before it, each in its own transaction: a finished one stays if the next fails."""
    script = dict(migrations())[DONE_SCHEMA]
    return (statement for statement in script.split(";\n") if "INDEX IF NOT EXISTS" in statement)


def _make_index(connection: apsw.Connection, statement: str) -> None:
    connection.execute(sql("begin"))
    if connection.execute("PRAGMA user_version").get < DONE_SCHEMA:
        try:
            connection.execute(statement)
        except apsw.ConstraintError:
            _part_colliding(connection)
            connection.execute(statement)
    connection.execute(sql("commit"))


def _part_colliding(connection: apsw.Connection) -> None:
    """Two pairs of ids may have the same two hashes: all but the first get the next free number."""
    for number, who in list(connection.execute(sql("colliding_intents"))):
        taken = {row[0] for row in connection.execute(sql("places_taken"), (number,))}
        for (id_,) in list(connection.execute(sql("intents_at_place"), (number, who)))[1:]:
            free = who + 1
            while free in taken:
                free += 1
            taken.add(free)
            connection.execute(sql("move_intent"), (free, id_))
