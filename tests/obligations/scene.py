"""A tracker with a clock that the test sets, over either store, and short ways to look at it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from twophp.obligations import AuditLine, Effect, ObligationError, ObligationTracker
from twophp.stores.testing.scene import T0, HandClock

STORES = ("memory", "sqlite", "postgresql")
KEYS = "one:" + "a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="
TIMEOUT_MS = 30_000
GUARD_S = PATIENCE_S
"""Longer than any test runs. Only what would hang for ever meets it."""

__all__ = ["GUARD_S", "STORES", "T0", "TIMEOUT_MS", "HandClock", "Scene", "Sink", "codes", "refused"]


class Scene:
    """One store's URL and the clock of everything that opens it."""

    def __init__(self, kind: str, folder: Path, url: str = "") -> None:
        """``url`` is a database's on a server."""
        self.kind = kind
        self.path = folder / "effects.db"
        self.url = url or ("memory:" if kind == "memory" else f"sqlite:///{self.path}")
        self.clock = HandClock()

    def tracker(self, **options: Any) -> ObligationTracker:
        """Open a tracker that scans only when the test asks for it, unless the test says otherwise."""
        return ObligationTracker(self.url, **({"clock": self.clock, "scan_interval_secs": None} | options))


def codes(tracker: ObligationTracker) -> list[str]:
    """The event codes of the audit log, in order."""
    return [line.code for line in tracker.audit()]


def lines_of(tracker: ObligationTracker, obligation_id: str) -> list[AuditLine]:
    return [line for line in tracker.audit() if line.obligation_id == obligation_id]


@contextmanager
def refused(code: str) -> Iterator[pytest.ExceptionInfo[ObligationError]]:
    """The block is refused with this very code of the contract."""
    with pytest.raises(ObligationError) as found:
        yield found
    assert found.value.code == code


class Sink:
    """Where effects become visible. It fails ``failures`` times, and lets a test wait for what arrives."""

    def __init__(self, failures: int = 0) -> None:
        self.seen: list[Effect] = []
        self.attempts = 0
        self._failures = failures
        self._news = threading.Condition()

    def __call__(self, effect: Effect) -> None:
        with self._news:
            self.attempts += 1
            self._news.notify_all()
            if self.attempts <= self._failures:
                raise ConnectionError("the receiver is away")
            self.seen.append(effect)

    @property
    def ids(self) -> list[str]:
        with self._news:
            return [effect.obligation_id for effect in self.seen]

    def wait_for(self, count: int) -> None:
        """Until so many have arrived."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.seen) >= count, GUARD_S), self.seen

    def wait_for_attempts(self, count: int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: self.attempts >= count, GUARD_S), self.attempts
