"""Which endpoints have answered as 2PHP servers, for as long as this process lives.

Enrolment is per endpoint, so nothing less than the same method and the same URL counts. To speak 2PHP is not to
recognise a client correlation id: the draft makes no server answer a repeated Phase 1 alike. That is known of twophp's
own middleware only (A-32), which shows itself by the form of its refusals.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from twophp.wire.targets import Target

MOST: Final = 4_096


class KnownEndpoints:
    """A bounded set; the oldest is forgotten first. Safe to use from any thread, and after a fork: it has no lock."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], bool] = {}  # Whether it recognises ids.

    def add(self, method: str, target: Target, *, recognises_ids: bool = False) -> None:
        """Note that this endpoint has just answered as a 2PHP server; what was known of it stays known."""
        key = method, target.resource
        self._known[key] = recognises_ids or self._known.get(key, False)
        while len(self._known) > MOST:
            with suppress(RuntimeError):  # Another thread came between the two steps that find the oldest.
                self._known.pop(next(iter(self._known)), None)

    def has(self, method: str, target: Target) -> bool:
        """Whether this endpoint has answered as a 2PHP server."""
        return (method, target.resource) in self._known

    def recognises_ids(self, method: str, target: Target) -> bool:
        """Whether the same Phase 1 again is the same intent there."""
        return self._known.get((method, target.resource), False)
