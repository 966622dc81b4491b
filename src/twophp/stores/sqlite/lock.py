"""Waiting for the write lock while another process has it. Blocks: for a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import apsw

from twophp.stores.clock import pause
from twophp.stores.sqlite.sql import sql

PAUSE_S: Final = 0.000_2


def begin_when_free(connection: apsw.Connection, seconds: Callable[[], float], patience_s: float) -> None:
    """Begin a write transaction, or raise BusyError when patience has ended.

    It looks often. The lock is held for a few milliseconds at a time, and SQLite's own pauses grow with each look: the
    process that had waited longest would look least often, and find the lock taken again.
    """
    until = seconds() + patience_s

    def is_patient(_looks: int) -> bool:
        pause(PAUSE_S)
        return seconds() < until

    connection.set_busy_handler(is_patient)
    connection.execute(sql("begin"))
