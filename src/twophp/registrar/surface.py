"""Which table may serve as the replay store, and whether anything may be registered there.

Proven or refuted criterion by criterion, and never taken on trust; ``Status`` says it in the contract's own words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Literal, Self, TypeVar

import msgspec

from twophp.core.errors import words_of
from twophp.core.registrar_records import Gate
from twophp.core.rulebook import REGISTRATION_HOLD, REPLAY_SURFACE_NOT_FIT
from twophp.core.surface import CRITERIA, DOMAIN_FAIL_CLOSED, SurfaceReport, report_surface
from twophp.registrar.criteria import examine
from twophp.registrar.memory_bench import Bench, MemoryBench
from twophp.registrar.opening import OWN_AUDIT, OWN_SURFACE, Opened
from twophp.stores import postgres_surface
from twophp.stores.portal import Portal
from twophp.stores.postgres.driver import place_of
from twophp.stores.postgres_surface import PostgresBench
from twophp.stores.sqlite import surface as sqlite_surface
from twophp.stores.sqlite.surface import SQLiteBench
from twophp.stores.surfaces import NoSuchTable
from twophp.stores.urls import REDIS, parse_store_url

REGISTRATION_OPEN: Final = "REGISTRATION_OPEN"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The gate, and what it stands on. ``registration_can_proceed`` is the contract's YES or NO (REG-7-05)."""

    gate: str = REGISTRATION_HOLD
    registration_can_proceed: Literal["YES", "NO"] = "NO"
    domain_status: str = DOMAIN_FAIL_CLOSED
    surface: str = ""
    surface_status: str = REPLAY_SURFACE_NOT_FIT
    failed_criteria: tuple[str, ...] = ()
    authority_ref: str = ""
    reason: str = ""

    @property
    def can_proceed(self) -> bool:
        """Whether registrations may proceed, as a truth value."""
        return self.registration_can_proceed == "YES"

    @classmethod
    def of(cls, gate: Gate | None, report: SurfaceReport | None) -> Self:
        """Fit proven and the gate opened on top of it, or hold (A-94)."""
        if report is None:
            return cls(reason="the surface was not probed")
        proceeds = report.fit and gate is not None and gate.is_open
        return cls(
            gate=REGISTRATION_OPEN if proceeds else REGISTRATION_HOLD,
            registration_can_proceed="YES" if proceeds else "NO",
            domain_status=report.verdict.domain_status,
            surface=report.table,
            surface_status=report.verdict.code,
            failed_criteria=report.verdict.failed,
            authority_ref="" if gate is None else gate.authority_ref,
            reason="" if gate is None else gate.reason,
        )


POSTGRES: Final = ("postgresql://", "postgres://")
SQLITE: Final = "sqlite:"
OWN_TABLES: Final = "registrar_"

T = TypeVar("T")


def evaluate_surface(url: str, table: str, *, audit_table: str = OWN_AUDIT) -> SurfaceReport:
    """Prove or refute every criterion for ``table``: by its schema, and by trying, all of which is rolled back.

    It changes nothing, it makes nothing, and it raises nothing: what cannot be probed is not fit (REG-6-09).
    ``audit_table`` is the failure audit that goes with it.
    """
    return _run(_evaluate(url, table, audit_table))


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Every existing surface that was looked at, with its reasons, and the one that may be used (A-95)."""

    chosen: str | None
    evaluated: Sequence[SurfaceReport]


def select_surface(url: str, tables: Sequence[str] = ()) -> Selection:
    """Look at what is there before anything new is made: these tables, or all. The first that is fit is chosen."""
    return _run(_select(url, tables))


async def _select(url: str, tables: Sequence[str]) -> Selection:
    names = list(tables) or sorted(await _table_names(url), key=lambda name: name.startswith(OWN_TABLES))
    reports = [await _evaluate(url, name, OWN_AUDIT) for name in names]
    chosen = next((report.table for report in reports if report.fit), None)
    return Selection(chosen=chosen, evaluated=reports)


async def _table_names(url: str) -> list[str]:
    if url.startswith(POSTGRES):
        return await postgres_surface.table_names(url)
    if url.startswith(REDIS):
        return []
    where = parse_store_url(url)
    return [OWN_SURFACE] if where.kind == "memory" else sqlite_surface.table_names(where.path)


def evaluate_own(url: str) -> SurfaceReport:
    """As ``evaluate_surface``, for the table that the registrar writes in."""
    return msgspec.structs.replace(evaluate_surface(url, _own_name(url)), table=OWN_SURFACE)


def _own_name(url: str) -> str:
    return f"{place_of(url).schema}.{OWN_SURFACE}" if url.startswith(POSTGRES) else OWN_SURFACE


async def examine_own(parts: Opened, table: str) -> SurfaceReport:
    """The proof that a registrar stands on. It can write in its own table only: no other is fit for it."""
    if parts.url.startswith(SQLITE):  # It blocks.
        report = await asyncio.to_thread(evaluate_surface, parts.url, table)
    else:
        report = await _evaluate(parts.url, _own_name(parts.url) if table == OWN_SURFACE else table, OWN_AUDIT)
        report = msgspec.structs.replace(report, table=table)
    if table == OWN_SURFACE or not report.fit:
        return report
    reason = f"the registrar writes in {OWN_SURFACE} alone"
    return report_surface(table, {**report.reasons, "e": (reason,)})


async def _evaluate(url: str, table: str, audit_table: str) -> SurfaceReport:
    opened: list[Bench] = []
    try:
        bench = await _open(url, table)
        opened.append(bench)
        audit = await _open(url, _beside(table, audit_table))
        opened.append(audit)
        return report_surface(table, await examine(bench, await _if_there(audit)))
    except Exception as error:  # noqa: BLE001 - fail closed: no trouble at all makes a surface fit (REG-6-09).
        said = str(error) if isinstance(error, NoSuchTable) else f"it cannot be probed: {words_of(error)}"
        return report_surface(table, dict.fromkeys(CRITERIA, (said,)))
    finally:
        for one in opened:
            await one.close()


async def _open(url: str, table: str) -> Bench:
    if url.startswith(POSTGRES):
        return await PostgresBench.open(url, table)
    if url.startswith(REDIS):
        raise NoSuchTable("a store whose keys expire forgets what was consumed")
    where = parse_store_url(url)
    return MemoryBench(table) if where.kind == "memory" else SQLiteBench(where.path, table)


def _beside(table: str, audit_table: str) -> str:
    """The audit's name: without a schema of its own it lies in the table's."""
    schema, dot, _name = table.rpartition(".")
    return audit_table if "." in audit_table else f"{schema}{dot}{audit_table}"


async def _if_there(audit: Bench) -> Bench | None:
    try:
        await audit.describe()
    except NoSuchTable:
        return None
    return audit


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run it from any thread, also inside a running event loop."""
    with Portal("twophp-surface") as portal:
        return portal.run(coroutine)


Evaluate = Callable[[str, str], SurfaceReport]
