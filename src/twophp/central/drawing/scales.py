"""Scales and ticks: where a value stands on an axis, and which values are written beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

NICE: Final = (1, 2, 2.5, 5, 10)
MOST_STEPS: Final = 6
SMALLEST: Final = 0.1


class Scale(msgspec.Struct, frozen=True):
    """A straight axis from ``low`` at ``start`` to ``high`` at ``end``."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The place of a value on the axis. A value outside of the range stands outside."""
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.0
        return self.start + share * (self.end - self.start)


class LogScale(msgspec.Struct, frozen=True):
    """A logarithmic axis; a value below ``low`` stands at its foot."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The place of a value on the axis."""
        span = math.log10(self.high / self.low)
        share = math.log10(max(value, self.low) / self.low) / span if span else 0.0
        return self.start + share * (self.end - self.start)


def ticks(high: float, most: int = 4) -> list[float]:
    """Round numbers from nought to at least ``high``, about ``most`` steps."""
    if high < SMALLEST:
        return [0, 1]
    step = _nice(high / most)
    step = max(step, 1.0) if high >= 1 else step
    return [step * count for count in range(math.ceil(high / step - 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers on a scale of powers of ten, from the last below ``low`` to the first above ``high``."""
    low, high = max(low, SMALLEST), max(high, SMALLEST)
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1  # Logarithms are not exact.
    steps = [digit * 10.0**power for power in range(first, last + 1) for digit in (1, 2, 5)]
    begin = max(place for place, step in enumerate(steps) if step <= low)
    end = min(place for place, step in enumerate(steps) if step >= high)
    chosen = steps[begin : max(end, begin + 2) + 1]
    if len(chosen) <= MOST_STEPS:
        return chosen
    return steps[begin // 3 * 3 : end + 3 : 3]  # The powers of ten alone.


def thinned(count: int, most: int) -> Sequence[int]:
    """Which of so many places get a label, evenly, the last one always."""
    every = max(math.ceil(count / most), 1)
    return range((count - 1) % every, count, every) if count else range(0)


def _nice(raw: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(raw))
    return magnitude * next(nice for nice in NICE if nice * magnitude >= raw * (1 - 1e-9))
