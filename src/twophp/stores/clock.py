"""The clocks and the source of ids: the only places where time and chance come in.

Leases and deadlines must not move when an operator sets the wall clock. ``system_clock`` therefore reads the wall clock
once, when the process starts, and goes on by a clock that cannot be set. It counts the time that a machine is suspended
(CLOCK_BOOTTIME), because the deadline that a client was given passes during that time.

A process that starts after the wall clock was set has another anchor than one that started before. ``StoreTime`` brings
them together: a store's time is never behind a write in it, of any process, and goes on from there.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from time import time_ns
from typing import Final

from twophp.core.records import Instant
from twophp.ports import Clock, MintId

_NS_PER_MS: Final = 1_000_000
_STEP_MS: Final = 500  # Two readings one after the other differ by less; a clock that was set, by more.

_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_UUID_DIGITS: Final = 32
_DRAWN_AT_ONCE: Final = 256

# Digits for the next ids: to ask the system for each id apart takes longer than all the rest of making it. Each is
# taken once, whichever thread comes for it, and a forked child draws its own.
_drawn: Final[list[str]] = []
os.register_at_fork(after_in_child=_drawn.clear)


def wall_clock() -> Instant:
    """The machine's clock: milliseconds since the epoch, UTC. An operator may set it at any time.

    For times that others compare with their own clocks, such as the time in a signature or in a token.
    """
    return time_ns() // _NS_PER_MS


def steady_clock() -> Instant:
    """Milliseconds since an unspecified start. The clock cannot be set, so it measures waits and deadlines (A-25)."""
    return time.monotonic_ns() // _NS_PER_MS


since_boot_ns: Final[Callable[[], int]] = (
    partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic_ns
)
"""A clock that nobody can set. It counts the time that a machine is suspended, where it can."""


class AnchoredClock:
    """Wall time, read once; from then on no step of the wall clock moves it (A-29)."""

    def __init__(self, wall: Clock = wall_clock, steady_ns: Callable[[], int] = since_boot_ns) -> None:
        self.wall = wall
        self._steady_ns = steady_ns
        self._anchor_ns = wall() * _NS_PER_MS - steady_ns()

    def __call__(self) -> Instant:
        """Milliseconds since the epoch, UTC."""
        return (self._anchor_ns + self._steady_ns()) // _NS_PER_MS


system_clock: Final = AnchoredClock()
"""The time of everything that is stored, and of every lease and deadline."""


def wall_of(clock: Clock) -> Clock:
    """The wall clock behind ``clock``; a clock that was injected is its own."""
    return clock.wall if isinstance(clock, AnchoredClock) else clock


class StoreTime:
    """The time of one store (A-29): it never runs backwards, and it never stands still.

    ``clock`` may be behind the last write: it was set back before the process started, or another process wrote by a
    clock that is ahead. Then time goes on from the last instant that was written, at the pace of ``clock``.
    """

    def __init__(self, clock: Clock, at: Instant = 0) -> None:
        self._clock = clock
        self._wall = wall_of(clock)
        self._lock = threading.Lock()
        self._ahead = 0  # Of the clock.
        self._wall_ahead = 0
        self._read = clock()
        self.reach(at)

    def now(self) -> Instant:
        """The clock's time, never behind an instant that was reached."""
        with self._lock:  # ``_now``, written out: every request calls it.
            read = self._clock()
            if read < self._read:
                self._ahead += self._read - read
            self._read = read
            return read + self._ahead

    def reach(self, at: Instant) -> Instant:
        """Note a write at ``at``, which time never goes behind again, and return the time now."""
        with self._lock:
            now = self._now()
            if now < at:
                self._ahead += at - now
                return at
            return now

    def wall_ahead_ms(self) -> int:
        """How far the machine's clock is ahead of this time. It changes only when that clock is set."""
        with self._lock:
            ahead = self._wall() - self._now()
            if abs(ahead - self._wall_ahead) >= _STEP_MS:
                self._wall_ahead = ahead
            return self._wall_ahead

    def _now(self) -> Instant:
        read = self._clock()
        if read < self._read:  # Only an injected clock can be set back, an anchored one cannot.
            self._ahead += self._read - read
        self._read = read
        return read + self._ahead


def steady_seconds() -> float:
    """Seconds since an unspecified start, as fine as the machine has them: for measuring how long a step took."""
    return time.monotonic()


class _SchedStat:
    """The kernel's counters for one thread. The file is kept open: opening it takes longer than reading it."""

    _file: int | None = None

    def __init__(self) -> None:
        with suppress(OSError):
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def waited_s(self) -> float:
        """Never raises: an error of a measurement must not look like an error of the measured work."""
        if self._file is None:
            return 0.0
        try:
            return int(os.pread(self._file, 64, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)


_of_thread: Final = threading.local()


def _forget_the_parents_file() -> None:
    _of_thread.__dict__.clear()


os.register_at_fork(after_in_child=_forget_the_parents_file)


def seconds_without_cpu() -> float:
    """How long this thread has been ready to run without a processor so far; 0 where the kernel does not count it."""
    stat: _SchedStat | None = getattr(_of_thread, "stat", None)
    if stat is None:
        stat = _of_thread.stat = _SchedStat()
    return stat.waited_s()


def pause(seconds: float) -> None:
    """Sleep, so that another process can go on. It blocks: never call it on the loop of a service."""
    time.sleep(seconds)


def mint_uuid() -> str:
    """A fresh UUID v4 from the operating system's generator (draft §13.1: an id cannot be guessed)."""
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

    Only for ids that need no secrecy: the next one is easily guessed. In exchange they cost next to nothing, and land
    side by side in an index.
    """
    stem = os.urandom(16).hex()
    return map(f"{stem}-%x".__mod__, count(1)).__next__  # No frame of Python's: every obligation takes one.
