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
_UUID_DIGITS: Final = 32
_DRAWN_AT_ONCE: Final = 256

# Digits for the next ids: to ask the system for each id apart takes longer than all the rest of making it. Each is
# taken once, whichever thread comes for it, and a forked child draws its own.
_drawn: Final[list[str]] = []
os.register_at_fork(after_in_child=_drawn.clear)


def system_clock() -> Instant:
    """Milliseconds since the epoch, UTC."""
    return time_ns() // 1_000_000


def steady_clock() -> Instant:
    """Milliseconds from some beginning of its own. Nobody can set it, so it measures waits and deadlines (A-25)."""
    return time.monotonic_ns() // 1_000_000


def steady_seconds() -> float:
    """Seconds from some beginning of its own, as fine as the machine has them: for measuring what something took."""
    return time.monotonic()


def pause(seconds: float) -> None:
    """Let another process go on. Blocks: not for the loop of a service."""
    time.sleep(seconds)


def mint_uuid() -> str:
    """A fresh UUID v4 from the operating system's generator (draft §13.1: nobody may guess an id)."""
    try:
        drawn = _drawn.pop()
    except IndexError:
        drawn = _draw()
    variant = _VARIANT[drawn[16]]  # Written out: the standard library's object takes three times as long.
    return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-{variant}{drawn[17:20]}-{drawn[20:]}"


def _draw() -> str:
    digits = os.urandom(_UUID_DIGITS // 2 * _DRAWN_AT_ONCE).hex()
    drawn = [digits[start : start + _UUID_DIGITS] for start in range(0, len(digits), _UUID_DIGITS)]
    _drawn.extend(drawn[1:])
    return drawn[0]


def ids_in_order() -> MintId:
    """A source of ids that no other source makes: a random stem and a number that rises.

    For what nobody has to guess right or wrong: the next one is easily told. In exchange they cost next to nothing, and
    land side by side in an index.
    """
    stem = os.urandom(16).hex()
    return map(f"{stem}-%x".__mod__, count(1)).__next__  # No frame of Python's: every obligation takes one.
