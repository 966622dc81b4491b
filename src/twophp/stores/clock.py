"""The wall clock and the source of ids: the only places where time and chance come in."""

from __future__ import annotations

import time
import uuid

from twophp.core.records import Instant


def system_clock() -> Instant:
    """Milliseconds since the epoch, UTC."""
    return time.time_ns() // 1_000_000


def pause(seconds: float) -> None:
    """Let another process go on. Blocks: not for the loop of a service."""
    time.sleep(seconds)


def mint_uuid() -> str:
    """A fresh UUID v4 from the operating system's generator (draft §13.1: nobody may guess an id)."""
    return str(uuid.uuid4())
