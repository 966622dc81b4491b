"""Charts over time, with their scales: stacked bars for counts, lines for percentiles, a line small enough for a table.

A chart is a picture of a table that stands beside it on the page, so it carries one sentence for those who cannot see
it and no more. Series are told apart by their place, their label or their stroke, never by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec
from markupsafe import Markup

from twophp.central.drawing.svg import element, line, number, text
from twophp.central.drawing.words import Written

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


WIDTH: Final = 620
WIDE: Final = 1260
HEIGHT: Final = 190
LEFT: Final = 48
RIGHT: Final = 44  # Room for the labels at the lines' ends.
TOP: Final = 14
BOTTOM: Final = 26
MOST_LABELS: Final = 8
LABEL_HEIGHT: Final = 13


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One row of numbers, one for each place on the axis; None where there is nothing to measure."""

    name: str
    class_: str
    values: Sequence[float | None]


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """What every chart needs to know. ``labels`` stand under the axis, ``titles`` say what one place is about."""

    summary: str
    labels: Sequence[str]
    titles: Sequence[str]
    series: Sequence[Series]
    words: Written
    width: int = WIDTH


def stacked_bars(chart: Chart) -> Markup:
    """Counts, one bar for each place, the first series at the bottom."""
    totals = [sum(series.values[place] or 0 for series in chart.series) for place in range(len(chart.labels))]
    steps = ticks(max(totals, default=0))
    scale = Scale(0, steps[-1], HEIGHT - BOTTOM, TOP)
    right = chart.width - 8
    slot = (right - LEFT) / max(len(chart.labels), 1)
    bars = [_bar(chart, place, LEFT + place * slot, slot, scale) for place in range(len(chart.labels))]
    return _frame(chart, [*_grid(steps, scale, chart.words, right), *bars, *_axis(chart, slot)])


def _bar(chart: Chart, place: int, left: float, slot: float, scale: Scale) -> Markup:
    parts, base, gap = [], 0.0, min(slot * 0.2, 3)
    for series in chart.series:
        value = series.values[place] or 0
        if value:
            top, foot = scale.at(base + value), scale.at(base)
            height = max(foot - top, 0.75)
            parts.append(
                element(
                    "rect", x=left + gap / 2, y=top, width=slot - gap, height=height, class_=f"fill {series.class_}"
                )
            )
        base += value
    told = [
        f"{series.name} {chart.words(series.values[place] or 0)}" for series in chart.series if series.values[place]
    ]
    title = element("title", f"{chart.titles[place]}: {', '.join(told) or 'none'}")
    hit = element("rect", x=left, y=TOP, width=slot, height=HEIGHT - BOTTOM - TOP, class_="hit")
    return element("g", title, *parts, hit, class_="bar")


def percentile_lines(chart: Chart) -> Markup:
    """Durations on a scale of powers of ten, one line each, with its name at its end."""
    known = [value for series in chart.series for value in series.values if value is not None]
    steps = log_ticks(min(known, default=1), max(known, default=10))
    scale = LogScale(steps[0], steps[-1], HEIGHT - BOTTOM, TOP)
    right = chart.width - RIGHT
    slot = (right - LEFT) / max(len(chart.labels), 1)
    lines = [mark for series in chart.series for mark in _line(series, slot, scale)]
    hits = [_hit(chart, place, slot) for place in range(len(chart.labels))]
    ends = _ends(chart.series, scale, right)
    return _frame(chart, [*_grid(steps, scale, chart.words, right), *lines, *ends, *_axis(chart, slot), *hits])


def _line(series: Series, slot: float, scale: LogScale) -> list[Markup]:
    """A line for every stretch without a gap, and a dot for a value that stands alone."""
    points = [
        None if value is None else (LEFT + (place + 0.5) * slot, scale.at(value))
        for place, value in enumerate(series.values)
    ]
    drawn = [element("path", d=path, class_=f"line {series.class_}") for path in _paths(points)]
    return drawn + [element("circle", cx=x, cy=y, r=2.5, class_=f"dot {series.class_}") for x, y in _alone(points)]


def _paths(points: Sequence[tuple[float, float] | None]) -> list[str]:
    paths: list[list[str]] = [[]]
    for point in points:
        if point is None:
            paths.append([])
        else:
            paths[-1].append(f"{number(point[0])} {number(point[1])}")
    return ["M" + "L".join(path) for path in paths if len(path) > 1]


def _alone(points: Sequence[tuple[float, float] | None]) -> list[tuple[float, float]]:
    fenced = [None, *points, None]
    middles = zip(fenced, fenced[1:], fenced[2:], strict=False)
    return [point for before, point, after in middles if point is not None and before is None and after is None]


def _ends(series: Sequence[Series], scale: LogScale, right: float) -> list[Markup]:
    """The lines' names where they end, moved apart where they would cover each other."""
    last = [(one, next((value for value in reversed(one.values) if value is not None), None)) for one in series]
    known = [(scale.at(value), one) for one, value in last if value is not None]
    known.reverse()  # Of two that end at one height, the later stands above.
    placed = sorted(known, key=lambda end: end[0])
    heights = [height for height, _one in placed]
    for above, below in pairwise(range(len(heights))):
        heights[below] = max(heights[below], heights[above] + LABEL_HEIGHT)
    over = max((heights or [0])[-1] - (HEIGHT - BOTTOM), 0)
    named = zip(heights, placed, strict=True)
    return [text(one.name, right + 6, height + 4 - over, f"end {one.class_}") for height, (_at, one) in named]


def _hit(chart: Chart, place: int, slot: float) -> Markup:
    told = [
        f"{series.name} {chart.words(value)}" for series in chart.series if (value := series.values[place]) is not None
    ]
    title = element("title", f"{chart.titles[place]}: {', '.join(told) or 'nothing to measure'}")
    return element("rect", title, x=LEFT + place * slot, y=TOP, width=slot, height=HEIGHT - BOTTOM - TOP, class_="hit")


def _grid(steps: Sequence[float], scale: Scale | LogScale, words: Written, right: float) -> list[Markup]:
    marks = []
    for step in steps:
        height = scale.at(step)
        marks.append(line(LEFT, height, right, height, "grid"))
        marks.append(text(words(step), LEFT - 8, height + 4, "tick", anchor="end"))
    return marks


def _axis(chart: Chart, slot: float) -> list[Markup]:
    places = thinned(len(chart.labels), MOST_LABELS * chart.width // WIDTH)
    return [
        text(chart.labels[place], LEFT + (place + 0.5) * slot, HEIGHT - 8, "tick", anchor="middle") for place in places
    ]


def _frame(chart: Chart, marks: Sequence[Markup]) -> Markup:
    size, class_ = f"0 0 {chart.width} {HEIGHT}", "chart wide" if chart.width > WIDTH else "chart"
    return element("svg", *marks, class_=class_, view_box=size, role="img", aria_label=chart.summary)


def spark(values: Sequence[float | None], class_: str, summary: str) -> Markup:
    """A line of one series, the size of a word."""
    width, height = 96, 22
    known = [value for value in values if value is not None]
    scale = Scale(min(known, default=0), max(known, default=1), height - 3, 3)
    step = (width - 6) / max(len(values) - 1, 1)
    points = [None if value is None else (3 + place * step, scale.at(value)) for place, value in enumerate(values)]
    marks = [element("path", d=path, class_=f"line {class_}") for path in _paths(points)]
    if points and (last := points[-1]) is not None:
        marks.append(element("circle", cx=last[0], cy=last[1], r=2, class_=f"dot {class_}"))
    return element("svg", *marks, class_="spark", view_box=f"0 0 {width} {height}", role="img", aria_label=summary)


def proportions(series: Sequence[tuple[str, str, float]], summary: str) -> Markup:
    """One bar of shares: a name, a class and a number each."""
    total = sum(value for _name, _class, value in series)
    scale, base, marks = Scale(0, total or 1, 0, 600), 0.0, []
    for name, class_, value in series:
        if value:
            title = element("title", f"{name}: {number(100 * value / total)} %")
            left, right = scale.at(base), scale.at(base + value)
            marks.append(
                element("rect", title, x=left, y=0, width=max(right - left, 1), height=10, class_=f"fill {class_}")
            )
        base += value
    empty = element("rect", x=0, y=0, width=600, height=10, class_="fill nothing")
    shape = {"view_box": "0 0 600 10", "preserveAspectRatio": "none"}
    return element("svg", empty, *marks, class_="shares", role="img", aria_label=summary, **shape)
