"""The first page: how calls ended, how long they took, what is stuck, who has synced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from markupsafe import Markup
from starlette.responses import Response

from twophp.central.drawing import words
from twophp.central.drawing.charts import WIDE, Chart, Series, percentile_lines, proportions, stacked_bars
from twophp.central.pages.frame import Routes, Visit, reading
from twophp.central.pages.rendering import clock_time, day
from twophp.central.pages.stalled import PER_PAGE, Stuck, stuck
from twophp.central.ports import Activity, RowFilter
from twophp.core.policy import DAY_MS, HOUR_MS

MOST_STUCK: Final = 8
MOST_SERVICES: Final = 8


class Range(msgspec.Struct, frozen=True):
    """How far back, in which steps."""

    label: str
    span_ms: int
    step_ms: int


RANGES: Final[Mapping[str, Range]] = {
    "1h": Range("1 hour", HOUR_MS, words.MINUTE_MS),
    "24h": Range("24 hours", DAY_MS, HOUR_MS // 2),
    "7d": Range("7 days", 7 * DAY_MS, 3 * HOUR_MS),
    "30d": Range("30 days", 30 * DAY_MS, DAY_MS // 2),
}
DEFAULT: Final = "24h"

COUNTS: Final = (
    ("Committed", "committed", "committed"),
    ("Failed", "failed", "failed"),
    ("Indeterminate", "indeterminate", "indeterminate"),
    ("Expired", "ttl-expired", "ttl_expired"),
    ("Abandoned", "abandoned", "abandoned"),
    ("Open", "processing", "open"),
)
"""Label, class and field of what is counted."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """All steps of a range together."""

    calls: int
    committed: int
    failed: int
    indeterminate: int
    unconfirmed: int
    open: int

    @property
    def ended(self) -> int:
        """Those of which the end is known."""
        return self.calls - self.open


async def overview(visit: Visit) -> Response:
    """The page."""
    key = visit.asked("range") if visit.asked("range") in RANGES else DEFAULT
    steps = await _steps(visit, RANGES[key])
    found = await stuck(visit, RowFilter(), None, PER_PAGE)
    services = await visit.central.store.services()
    return visit.page(
        "overview.html",
        ranges=RANGES,
        chosen=key,
        totals=totals(steps),
        counts=[(label, class_, sum(getattr(step, field) for step in steps)) for label, class_, field in COUNTS],
        steps=steps,
        outcomes=outcomes_chart(steps, RANGES[key]),
        confirm=percentiles_chart(steps, RANGES[key], "confirm", "Phase 1 to Phase 2"),
        settle=percentiles_chart(steps, RANGES[key], "settle", "Phase 2 to the outcome"),
        shares=shares(steps),
        latest=_latest(steps),
        stuck=[call for call in found.calls if call.kind is not Stuck.CLEANED][:MOST_STUCK],
        services=sorted(services, key=lambda one: (one.last_sync_at or 0, one.rows), reverse=True)[:MOST_SERVICES],
        more_services=max(len(services) - MOST_SERVICES, 0),
        alarms=[alarm for alarm in await visit.central.store.alarms(limit=5) if visit.now - alarm.at < DAY_MS],
        head=await visit.central.store.head(),
    )


async def _steps(visit: Visit, wanted: Range) -> list[Activity]:
    """Every step of the range up to now; those without a call too."""
    last = visit.now // wanted.step_ms * wanted.step_ms
    starts = range(last - wanted.span_ms + wanted.step_ms, last + 1, wanted.step_ms)
    found = await visit.central.store.activity(starts[0], visit.now + 1, wanted.step_ms)
    by_start = {step.at: step for step in found}
    return [by_start.get(at, Activity(at=at)) for at in starts]


def totals(steps: Sequence[Activity]) -> Totals:
    """The sums."""
    sums = {
        name: sum(getattr(step, name) for step in steps) for name in ("committed", "failed", "indeterminate", "open")
    }
    unconfirmed = sum(step.ttl_expired + step.abandoned for step in steps)
    return Totals(calls=sum(sums.values()) + unconfirmed, unconfirmed=unconfirmed, **sums)


def _latest(steps: Sequence[Activity]) -> Activity | None:
    """The newest step that has something to say about time."""
    return next((step for step in reversed(steps) if step.confirm_p95_ms is not None), None)


def outcomes_chart(steps: Sequence[Activity], wanted: Range) -> Markup:
    """How many calls began in each step, by how they ended."""
    sums = totals(steps)
    summary = f"Calls by outcome: {sums.calls} in {wanted.label}, {sums.committed} committed, {sums.failed} failed."
    if sums.indeterminate:
        summary += f" {sums.indeterminate} indeterminate."
    return stacked_outcomes(steps, summary, *_axis(steps, wanted))


def percentiles_chart(steps: Sequence[Activity], wanted: Range, what: str, told: str) -> Markup:
    """How long it took, over time."""
    summary = f"Time from {told}, percentiles over {wanted.label}; the table below has the numbers."
    return percentiles_of(steps, what, summary, *_axis(steps, wanted))


def _axis(steps: Sequence[Activity], wanted: Range) -> tuple[list[str], list[str]]:
    label = clock_time if wanted.span_ms <= DAY_MS else day
    return [label(step.at) for step in steps], [f"{day(step.at)} {clock_time(step.at)}" for step in steps]


def stacked_outcomes(steps: Sequence[object], summary: str, labels: Sequence[str], titles: Sequence[str]) -> Markup:
    """Counts by outcome, of steps that have them as ``Activity`` does; a step without calls may be None."""
    series = [
        Series(name=label, class_=class_, values=[getattr(step, field, 0) for step in steps])
        for label, class_, field in COUNTS
    ]
    return stacked_bars(
        Chart(summary=summary, labels=labels, titles=titles, series=series, words=words.count, width=WIDE)
    )


def percentiles_of(
    steps: Sequence[object], what: str, summary: str, labels: Sequence[str], titles: Sequence[str]
) -> Markup:
    """How long something took, of the same steps."""
    series = [
        Series(name=name, class_=name, values=[getattr(step, f"{what}_{name}_ms", None) for step in steps])
        for name in ("p50", "p95", "p99")
    ]
    return percentile_lines(Chart(summary=summary, labels=labels, titles=titles, series=series, words=words.duration))


def shares(steps: Sequence[Activity]) -> Markup:
    """The outcomes of the whole range as one bar."""
    parts = [(label, class_, sum(getattr(step, field) for step in steps)) for label, class_, field in COUNTS]
    told = ", ".join(f"{label} {words.count(many)}" for label, _class, many in parts if many)
    return proportions(parts, f"Shares by outcome: {told or 'no calls'}")


ROUTES: Final[Routes] = (("/", reading(overview), ("GET",)),)
