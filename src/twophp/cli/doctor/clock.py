"""The clock: deadlines are promises about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from twophp.cli.doctor.findings import Finding, fail, ok, warn
from twophp.cli.rows import lasted
from twophp.core.policy import SECOND_MS
from twophp.core.records import Instant

STEP_MS: Final = 100
AHEAD_MS: Final = 60 * SECOND_MS
SYNC: Final = "let NTP or chrony discipline the clock, slewing and not stepping it"


def check_clock(wall_ms: int, steady_ms: int) -> Finding:
    """Two clocks over the same while: one that people may set, and one that cannot be set."""
    off_ms = abs(wall_ms - steady_ms)
    if off_ms > STEP_MS:
        means = f"the clock was set while this ran: {lasted(off_ms)} in {lasted(max(steady_ms, 0))}"
        return warn("clock.steady", means, SYNC)
    return ok("clock.steady", f"wall clock and steady clock went alike for {lasted(steady_ms)}")


def check_store_time(written_at: Instant, now: Instant) -> Iterator[Finding]:
    """A store's time never runs backwards (A-29): if the clock does, the store's time goes on ahead of it."""
    ahead_ms = written_at - now
    if ahead_ms > STEP_MS:
        means = f"the store was written {lasted(ahead_ms)} in the future, and its time goes on from there"
        level = fail if ahead_ms > AHEAD_MS else warn
        yield level("clock.store", means, f"correct this machine's clock; {SYNC}")
    else:
        yield ok("clock.store", "the store was last written in the past")
