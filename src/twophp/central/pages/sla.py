"""The SLA report: per endpoint and day, how calls ended and how long they took."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Final

import msgspec
from markupsafe import Markup
from starlette.responses import Response

from twophp.central.drawing.charts import spark
from twophp.central.pages.frame import Routes, Visit, reading
from twophp.central.pages.overview import COUNTS, percentiles_of, stacked_outcomes
from twophp.central.ports import Sla
from twophp.core.policy import DAY_MS
from twophp.core.records import EPOCH

SPANS: Final = (7, 14, 30, 90)
DEFAULT_DAYS: Final = 14


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint over all days. Percentiles cannot be added up: ``worst`` are those of its slowest day."""

    name: str
    calls: int
    committed: int
    failed: int
    indeterminate: int
    unconfirmed: int
    open: int
    confirmed: float
    worst_confirm_p95_ms: float | None
    worst_settle_p95_ms: float | None
    trend: Markup


async def sla(visit: Visit) -> Response:
    """The page."""
    asked = visit.asked("days")
    span = int(asked) if asked in {str(days) for days in SPANS} else DEFAULT_DAYS
    today = visit.now // DAY_MS * DAY_MS
    lines = await visit.central.store.sla(today - (span - 1) * DAY_MS, today + DAY_MS)
    days = [_day_name(today - back * DAY_MS) for back in range(span - 1, -1, -1)]
    endpoints = summed(lines, days)
    chosen = visit.asked("endpoint") if any(one.name == visit.asked("endpoint") for one in endpoints) else ""
    shown = [line for line in lines if not chosen or line.service_endpoint == chosen]
    return visit.page(
        "sla.html",
        spans=SPANS,
        span=span,
        endpoints=endpoints,
        chosen=chosen,
        lines=sorted(shown, key=lambda line: (line.day, line.calls), reverse=True),
        outcomes=_outcomes(shown, days),
        confirm=_percentiles(shown, days, "confirm", "Phase 1 to Phase 2") if chosen else None,
        settle=_percentiles(shown, days, "settle", "Phase 2 to the outcome") if chosen else None,
    )


def summed(lines: Sequence[Sla], days: Sequence[str]) -> list[Endpoint]:
    """Every endpoint over all days, the busiest first."""
    by_name: dict[str, list[Sla]] = {}
    for line in lines:
        by_name.setdefault(line.service_endpoint, []).append(line)
    made = [_endpoint(name, own, days) for name, own in by_name.items()]
    return sorted(made, key=lambda endpoint: (-endpoint.calls, endpoint.name))


def _endpoint(name: str, lines: Sequence[Sla], days: Sequence[str]) -> Endpoint:
    calls = sum(line.calls for line in lines)
    by_day = {line.day: line for line in lines}
    trend = [by_day[day].calls if day in by_day else 0 for day in days]
    return Endpoint(
        name=name,
        calls=calls,
        committed=sum(line.committed for line in lines),
        failed=sum(line.failed for line in lines),
        indeterminate=sum(line.indeterminate for line in lines),
        unconfirmed=sum(line.ttl_expired + line.abandoned for line in lines),
        open=sum(line.open for line in lines),
        confirmed=sum((line.confirmation_rate or 0) * line.calls for line in lines),
        worst_confirm_p95_ms=max(
            (line.confirm_p95_ms for line in lines if line.confirm_p95_ms is not None), default=None
        ),
        worst_settle_p95_ms=max((line.settle_p95_ms for line in lines if line.settle_p95_ms is not None), default=None),
        trend=spark(trend, "trend", f"Calls per day, from {trend[0]} to {trend[-1]}"),
    )


def _outcomes(lines: Sequence[Sla], days: Sequence[str]) -> Markup:
    of_day = {day: [line for line in lines if line.day == day] for day in days}
    steps = [
        SimpleNamespace(**{field: sum(getattr(line, field) for line in own) for _label, _class, field in COUNTS})
        for own in of_day.values()
    ]
    summary = f"Calls by outcome and day, {sum(line.calls for line in lines)} in all; the table below has the numbers."
    return stacked_outcomes(steps, summary, list(map(day_label, days)), days)


def _percentiles(lines: Sequence[Sla], days: Sequence[str], what: str, told: str) -> Markup:
    by_day = {line.day: line for line in lines}
    summary = f"Time from {told}, percentiles by day; the table below has the numbers."
    return percentiles_of([by_day.get(day) for day in days], what, summary, list(map(day_label, days)), days)


def day_label(day: str) -> str:
    """``5 Nov``, of ``2026-11-05``."""
    return f"{datetime.fromisoformat(day):%d %b}".lstrip("0")


def _day_name(at: int) -> str:
    return f"{EPOCH + timedelta(milliseconds=at):%Y-%m-%d}"


ROUTES: Final[Routes] = (("/sla", reading(sla), ("GET",)),)
