"""The bars of `make bench`: what each figure is held to, and whether it is met.

A figure is found by its path in what the sections measured (``bench/latest.json`` has the same shape). The floor must
be met, the goal is aimed at, the moonshot is not required. Most are ratios of the same round, so that the machine
cancels out; the rest is counted in bytes, calls or milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

Path = tuple[str | int, ...]


class Bar(msgspec.Struct, frozen=True):
    """One figure and what it is held to."""

    name: str
    path: Path
    floor: float
    goal: float | None = None
    moonshot: float | None = None
    at_most: bool = False
    form: str = "{:.2f}"
    latency: Path = ()
    """Where the p99 at half the load is, if there is one."""


class Verdict(msgspec.Struct, frozen=True):
    """A bar beside its figure. No figure: it was not measured here."""

    name: str
    figure: float | None
    floor: float
    goal: float | None
    moonshot: float | None
    at_most: bool
    p99_ms: float | None
    verdict: str


FRAMEWORKS = {"starlette": "Starlette", "fastapi": "FastAPI"}
WAYS_IN = {"asgi": "plain ASGI", "uvicorn": "`twophp.uvicorn`"}
# (framework, way in): handshake and auto-confirm, each with floor, goal and moonshot.
RATES = {
    ("starlette", "asgi"): ((0.22, 0.28, 0.35), (0.32, 0.40, 0.50)),
    ("fastapi", "asgi"): ((0.38, 0.45, 0.55), (0.52, 0.62, 0.75)),
    ("starlette", "uvicorn"): ((0.30, 0.38, 0.50), (0.42, 0.50, 0.75)),
    ("fastapi", "uvicorn"): ((0.45, 0.53, 0.80), (0.55, 0.65, 1.0)),
}
REPLAY = {"asgi": 1.0, "uvicorn": 2.0}
UNTOUCHED = 0.97
BARE_US = 60.0  # The CPU of the bare request that the bar's microseconds were stated for.
STORE_64 = 2  # The row of 64 callers.


def _of_rates() -> Iterable[Bar]:
    for (framework, way), (handshake, auto) in RATES.items():
        many: Path = ("server", framework, way, "connections_64")
        held = {
            "handshake": handshake,
            "auto": auto,
            "replay": (REPLAY[way], None, None),
            "untouched": (UNTOUCHED, None, None),
        }
        for mode, (floor, goal, moonshot) in held.items():
            said = {"auto": "auto-confirm"}.get(mode, mode)
            name = f"{FRAMEWORKS[framework]}, {WAYS_IN[way]}: {said} ÷ bare"
            latency = (*many, f"{mode}_p99_ms")
            yield Bar(name, (*many, f"{mode}_ratio"), floor, goal, moonshot, latency=latency)


def _of_costs() -> Iterable[Bar]:
    for framework, name in FRAMEWORKS.items():
        path: Path = ("server", framework, "asgi", "connections_1", "ratio")
        yield Bar(f"{name}, one connection: handshake ÷ (2 bare trips + 3 fsyncs)", path, 2.0, 1.6, at_most=True)
    cost: Path = ("server", "starlette", "asgi", "cost")
    yield Bar(
        "server CPU of a handshake ÷ of a bare request",
        (*cost, "cpu_ratio"),
        240 / BARE_US,
        200 / BARE_US,
        at_most=True,
    )
    yield Bar("log of a handshake, bytes", (*cost, "log_bytes"), 5_000, at_most=True, form="{:,.0f}")
    yield Bar("pauses of the collector, p99.9 ms", (*cost, "gc_p999_ms"), 5.0, at_most=True, form="{:.1f}")


def _of_files() -> Iterable[Bar]:
    yield Bar("two workers ÷ one, on one file", ("workers", "two_to_one"), 1.2)
    yield Bar("two workers ÷ one, the worst round", ("workers", "least_two_to_one"), 1.0)
    yield Bar("four workers ÷ two, the worst round", ("workers", "least_four_to_two"), 1.0)
    yield Bar("1.2M stored intents ÷ an empty file", ("stored", "ratio"), 0.95)
    each: Path = ("store", STORE_64, "ratio_to_one_transaction_each")
    yield Bar("the store alone, 64 callers ÷ one transaction each", each, 10.0, form="{:.1f}")
    yield Bar("own transaction ÷ the same handler with a commit of its own", ("own", "own_ratio"), 0.5)
    yield Bar("own transaction ÷ the same handler without 2PHP", ("own", "plain_ratio"), 0.5)
    yield Bar("Redis, 64 callers ÷ one change each", ("redis", "ratio"), 1.5, form="{:.1f}")
    for what, most in (("calls", 150), ("files", 18), ("opcodes", 4_000)):
        yield Bar(f"{what} of one handshake", ("trace", "handshake", what), most, at_most=True, form="{:,.0f}")


def _of_postgres() -> Iterable[Bar]:
    for way, said in WAYS_IN.items():
        yield Bar(
            f"PostgreSQL, Starlette, {said}: handshake ÷ bare", ("postgres", "handshakes", way, "ratio"), 0.15, 0.25
        )
    yield Bar("two workers ÷ one, on one PostgreSQL", ("postgres", "workers", "two_to_one"), 1.0)
    yield Bar("four workers ÷ one, on one PostgreSQL", ("postgres", "workers", "four_to_one"), 1.0)
    changes: Path = ("postgres", "changes", "ratio")
    yield Bar("PostgreSQL, 64 callers ÷ one transaction each", changes, 7.0, 14.0, form="{:.1f}")


BARS = (*_of_rates(), *_of_costs(), *_of_files(), *_of_postgres())


def found_at(found: Any, path: Path) -> float | None:
    """The figure at a path, if it was measured."""
    for step in path:
        try:
            found = found[step]
        except (KeyError, IndexError, TypeError):
            return None
    return found if isinstance(found, int | float) else None


def verdict_of(bar: Bar, figure: float | None) -> str:
    """What is met, the highest of them, or that the floor is missed."""
    if figure is None:
        return "not measured"

    def met(bound: float | None) -> bool:
        return bound is not None and (figure <= bound if bar.at_most else figure >= bound)

    if not met(bar.floor):
        return "missed"
    return "met: moonshot" if met(bar.moonshot) else "met: goal" if met(bar.goal) else "met"


def judged(found: dict[str, Any]) -> list[Verdict]:
    """Every bar beside its figure."""
    verdicts = []
    for bar in BARS:
        figure = found_at(found, bar.path)
        p99_ms = found_at(found, bar.latency) if bar.latency else None
        bounds = bar.floor, bar.goal, bar.moonshot, bar.at_most
        verdicts.append(Verdict(bar.name, figure, *bounds, p99_ms, verdict_of(bar, figure)))
    return verdicts


HEAD = ("", "figure", "floor", "goal", "moonshot", "verdict", "p99 at half the load")


def rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """The bars as a table's cells; those of a section that did not run are left out."""
    cells = []
    for bar, verdict in zip(BARS, judged(found), strict=True):
        if bar.path[0] not in found:
            continue
        sign = "≤ " if bar.at_most else "≥ "
        held = [
            sign + bar.form.format(bound) if bound is not None else "" for bound in (bar.floor, bar.goal, bar.moonshot)
        ]
        figure = "—" if verdict.figure is None else bar.form.format(verdict.figure)
        p99 = "" if verdict.p99_ms is None else f"{verdict.p99_ms:.1f} ms"
        cells.append((bar.name, figure, *held, verdict.verdict, p99))
    return cells
