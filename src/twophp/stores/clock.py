"""The wall clock and the source of ids: the only places where time and chance come in."""

from __future__ import annotations

import os
import time
from itertools import count
from time import time_ns
from typing import Final

from twophp.core.records import Instant
from twophp.ports import MintId

_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def system_clock() -> Instant:
    """Milliseconds since the epoch, UTC."""
    return time_ns() // 1_000_000


def steady_clock() -> Instant:
    """Milliseconds from some beginning of its own. Nobody can set it, so it measures waits and deadlines (A-25)."""
    return time.monotonic_ns() // 1_000_000


def pause(seconds: float) -> None:
    """Let another process go on. Blocks: not for the loop of a service."""
    time.sleep(seconds)


def mint_uuid() -> str:
    """A fresh UUID v4 from the operating system's generator (draft §13.1: nobody may guess an id)."""
    drawn = os.urandom(16).hex()  # Written out: the standard library's object takes three times as long.
    variant = _VARIANT[drawn[16]]
    return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-{variant}{drawn[17:20]}-{drawn[20:]}"


def ids_in_order() -> MintId:
    """A source of ids that no other source makes: a random stem and a number that rises.

    For what nobody has to guess right or wrong: the next one is easily told. In exchange they cost next to nothing, and
    land side by side in an index.
    """
    stem = os.urandom(16).hex()
    return map(f"{stem}-%x".__mod__, count(1)).__next__  # No frame of Python's: every obligation takes one.
