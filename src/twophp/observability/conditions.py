"""Known conditions in the log: one line when one begins, then how often it came again, once in ten seconds at most.

A full disk meets every request alike. A line with a traceback for each would hide what it says; ``known`` says it once,
without a traceback, and counts the rest: ``... (x 37 in the last 10 s)``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from twophp.core.errors import TwoPHPError
from twophp.core.intent import Intent

INTERVAL_S: Final = 10.0
MOST_CONDITIONS: Final = 256
"""Beyond so many at a time, further conditions are not counted: each of their lines is written."""

Later: TypeAlias = Callable[[float, Callable[[], None]], object]


class _Open(msgspec.Struct):
    """A condition that was logged lately."""

    level: int
    line: str
    loop: asyncio.AbstractEventLoop  # Whose timer sums it up: one that has ended never will.
    count: int = 0


class Conditions:
    """What one part of a service knows to happen. Lines of one message and one error's code are one condition."""

    def __init__(self, log: logging.Logger, later: Later | None = None) -> None:
        self._log = log
        self._later = later
        self._open: dict[tuple[str, str], _Open] = {}

    def known(self, level: int, message: str, *args: object, error: TwoPHPError, intent: Intent | None = None) -> None:
        """Log it, unless it was logged within the last ten seconds: then count it."""
        line = f"{message % args}: {error}"
        extra: dict[str, Any] = {}
        if intent is not None:
            line = f"{line} ({named(intent)})"
            extra = ids_of(intent)
        key = message, error.code
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # Under trio there is no timer to sum it up, so every one is logged.
            self._log.log(level, "%s", line, extra=extra)
            return
        said = self._open.get(key)
        if said is not None and said.loop is loop:
            said.count, said.line = said.count + 1, line
            return
        self._log.log(level, "%s", line, extra=extra)
        if len(self._open) < MOST_CONDITIONS:
            self._open[key] = _Open(level, line, loop)
            self._call_later(lambda: self._sum_up(key))

    def _call_later(self, do: Callable[[], None]) -> None:
        (self._later or asyncio.get_running_loop().call_later)(INTERVAL_S, do)

    def _sum_up(self, key: tuple[str, str]) -> None:
        said = self._open[key]
        if not said.count:
            del self._open[key]  # It is over, as far as one can tell: the next one is news.
            return
        self._log.log(said.level, "%s (x %d in the last %d s)", said.line, said.count, INTERVAL_S)
        said.count = 0
        self._call_later(lambda: self._sum_up(key))


def named(intent: Intent) -> str:
    """Both ids, for the text of a line."""
    return f"client {intent.client_correlation_id}, server {intent.server_correlation_id}"


def ids_of(intent: Intent) -> dict[str, str]:
    """Both correlation ids, for every log line about an intent."""
    return {
        "client_correlation_id": intent.client_correlation_id,
        "server_correlation_id": intent.server_correlation_id,
    }
