"""Which endpoints have answered as 2PHP servers, for as long as this process lives.

Enrolment is per endpoint, so nothing less than the same method and the same URL counts.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from twophp.wire.targets import Target

MOST: Final = 4_096


class Known:
    """A bounded set; the oldest is forgotten first. Safe to use from any thread, and after a fork: it has no lock."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], None] = {}

    def add(self, method: str, target: Target) -> None:
        """It has just answered as one."""
        self._known[method, target.resource] = None
        while len(self._known) > MOST:
            with suppress(RuntimeError):  # Another thread came between the two steps that find the oldest.
                self._known.pop(next(iter(self._known)), None)

    def has(self, method: str, target: Target) -> bool:
        """Whether it has."""
        return (method, target.resource) in self._known
