"""The changes that wait for the writer, in three lanes, and the order among them (ADR 30).

- ``accepted``: changes that accepted work depends on: confirm, settle, renew, look up. They go first, and have room of
  their own.
- ``new``: registrations. While ``capacity`` changes wait they are refused at once: the caller may retry.
- ``background``: changes that no request waits for: sweeps, purges, rotation. They go in small bites. After a bite that
  took t seconds the next one waits for ``REST`` times t, unless no request has come lately.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from twophp.core.errors import StoreOverloaded
from twophp.kernel.apply import Job
from twophp.ports import Admission

BITE: Final = 64
"""Background changes that are written together."""
REST: Final = 9
"""A bite's time and nine times as much of rest: a tenth of the writer at most."""
QUIET_S: Final = 1.0
"""So long after the last request's change the background no longer rests."""
NEW_SHARE: Final = 4
"""One in so many places of a batch is kept for new work, so that a flood of repeats cannot keep it out for ever."""


class Queue:
    """The three lanes of one writer."""

    def __init__(self, *, capacity: int, batch_limit: int, seconds: Callable[[], float]) -> None:
        self._capacity = capacity
        self._batch_limit = batch_limit
        self._seconds = seconds
        self._accepted: deque[Job] = deque()
        self._new: deque[Job] = deque()
        self._background: deque[Job] = deque()
        self._asked_at = -QUIET_S  # When a request's change was last written.
        self._bite_at = 0.0  # When the next bite may be taken.
        self.is_closing = False  # Then nothing rests any more.

    def __len__(self) -> int:
        """Changes that a request waits for."""
        return len(self._accepted) + len(self._new)

    @property
    def size(self) -> int:
        """All changes in the three lanes."""
        return len(self) + len(self._background)

    def add(self, job: Job, admission: Admission) -> None:
        """Take it in, or raise StoreOverloaded: nothing was written."""
        if admission == "accepted":
            lane, waiting = self._accepted, len(self._accepted)
        elif admission == "new":
            lane, waiting = self._new, len(self._accepted) + len(self._new)
        else:
            lane, waiting = self._background, len(self._background)
        if waiting >= self._capacity:
            raise StoreOverloaded(f"{waiting} changes are waiting for the disk")
        lane.append(job)

    def take(self) -> list[Job]:
        """The next batch of changes that requests wait for; ``accepted`` goes first."""
        accepted, new, limit = self._accepted, self._new, self._batch_limit
        kept_free = min(len(new), max(limit // NEW_SHARE, 1)) if limit > 1 else 0
        jobs = [accepted.popleft() for _ in range(min(len(accepted), limit - kept_free))]
        jobs += [new.popleft() for _ in range(min(len(new), limit - len(jobs)))]
        return jobs

    def asked(self) -> None:
        """Note that requests are active, here or on another handle: the background rests between its bites."""
        self._asked_at = self._seconds()

    def take_bite(self) -> list[Job]:
        """The background's next bite, or nothing while it rests."""
        if not self._background or self.rest_s() > 0:
            return []
        return [self._background.popleft() for _ in range(min(len(self._background), BITE))]

    def bitten(self, began: float) -> None:
        """Note that a bite was written that began at ``began``."""
        ended = self._seconds()
        self._bite_at = ended + REST * (ended - began)

    def rest_s(self) -> float:
        """How long the background still rests, should no request come; zero or negative when it may go."""
        now = self._seconds()
        quiet_at = self._asked_at + QUIET_S
        return 0.0 if self.is_closing or now >= quiet_at else min(self._bite_at, quiet_at) - now

    @property
    def has_background(self) -> bool:
        """Whether the background has changes to write."""
        return bool(self._background)
