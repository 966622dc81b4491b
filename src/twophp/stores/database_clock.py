"""The time of a database that several processes share, as each of them carries it on between two looks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from twophp.core.records import Instant
from twophp.ports import Clock
from twophp.stores.clock import AnchoredClock, since_boot_ns, wall_clock

log: Final = logging.getLogger("twophp.store")

_STEP_NS: Final = 500_000_000
_DRIFT: Final = 5_000
"""Two clocks drift apart by a part of time that is no greater than this one's reciprocal."""
_FOLLOWS: Final = 1_000
_NS_PER_MS: Final = 1_000_000


class DatabaseClock(AnchoredClock):
    """The database's time, carried on between looks by a clock that nobody can set. It never turns back.

    A look says that the database's time was ``at`` at some moment between our question and its answer. So each gives
    two bounds, and what several looks say is narrowed down; in between the bounds widen, for no two clocks run alike.
    Our time is the lower bound: however slow a look was it is never ahead of the database, and behind it by no more
    than the quickest answer took. Where a look shows that we are ahead, time stands until that has passed.

    Before the first look it is 0: this machine's own time may be ahead of the database's by any amount.

    Bounds of a look that lie further than half a second from what is known cannot come from a slow message: somebody
    has set the clock of the database's machine. That is not believed (ADR 29), since it would end leases and deadlines.
    It is followed at a thousandth of the time that passes while it is seen, which is harmless to both.
    """

    def __init__(self, wall: Clock = wall_clock, steady_ns: Callable[[], int] = since_boot_ns) -> None:
        super().__init__(wall, steady_ns)
        self._last: Instant = 0
        self._lowest_ns = self._highest_ns = 0  # Bounds of the anchor: the database's time minus the steady clock's.
        self._bounded_at_ns: int | None = None
        self._is_set = False

    def __call__(self) -> Instant:
        """See ``AnchoredClock``."""
        if self._bounded_at_ns is None:
            return 0
        self._last = max(self._last, super().__call__())
        return self._last

    def steady_ns(self) -> int:
        """What a look is measured by."""
        return self._steady_ns()

    def measured(self, at: Instant, before_ns: int) -> None:
        """The database said ``at`` after we asked at ``before_ns``, and it is heard now."""
        after_ns = self._steady_ns()
        lowest, highest = at * _NS_PER_MS - after_ns, (at + 1) * _NS_PER_MS - before_ns
        passed_ns = 0 if self._bounded_at_ns is None else after_ns - self._bounded_at_ns
        known_lowest, known_highest = self._lowest_ns - passed_ns // _DRIFT, self._highest_ns + passed_ns // _DRIFT
        off_ns = max(lowest - known_highest, 0) + min(highest - known_lowest, 0)
        if self._bounded_at_ns is not None and abs(off_ns) > _STEP_NS:
            self._follow(off_ns, passed_ns)
        else:
            if self._bounded_at_ns is None or off_ns:
                known_lowest, known_highest = lowest, highest
            self._lowest_ns, self._highest_ns = max(lowest, known_lowest), min(highest, known_highest)
            self._is_set = False
        self._anchor_ns, self._bounded_at_ns = self._lowest_ns, after_ns

    def _follow(self, off_ns: int, passed_ns: int) -> None:
        """Somebody has set the database's clock. Only time in which that was seen counts: no idle hour is caught up."""
        if self._is_set:
            moved_ns = passed_ns // _FOLLOWS if off_ns > 0 else -(passed_ns // _FOLLOWS)
            self._lowest_ns += moved_ns
            self._highest_ns += moved_ns
        else:
            log.warning(
                "the database's clock was set, by about %+.1f s; leases and deadlines do not move with it, and this"
                " process follows by a millisecond a second",
                off_ns / 1e9,
            )
        self._is_set = True
