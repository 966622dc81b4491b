"""``twophp registrar``: prove a surface, open or hold the gate, and look at what was registered and refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import click
import msgspec

from twophp.cli.output import FOUND, counted, database_url, examples, out, print_json, show, table
from twophp.core.registrar import Decision
from twophp.core.surface import CRITERIA, SurfaceReport
from twophp.registrar import Registrar, Status, evaluate_surface, select_surface
from twophp.registrar.opening import witnessing
from twophp.registrar.surface import evaluate_own
from twophp.registrar.witness import Witness
from twophp.wire.instant import format_instant

MOST_LINES: Final = 10_000

T = TypeVar("T")

json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")


@click.group(short_help="Prove a replay surface; look at registrations.")
def registrar() -> None:
    """Prove a replay surface, open or hold the gate, look at registrations."""


@registrar.command(
    short_help="Prove that a table may serve as a replay store.",
    epilog=examples(
        "registrar surface sqlite:///effects.db registrar_consumed",
        "registrar surface postgresql://reader@db/app iu_route_attempt --json",
        "registrar surface sqlite:///effects.db",
    ),
)
@click.argument("url")
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@json_option
@click.pass_context
def surface(ctx: click.Context, url: str, tables: tuple[str, ...], *, as_json: bool) -> None:
    """Prove or refute, criterion by criterion, that TABLE may serve as a replay store.

    By its schema and by trying: everything tried is rolled back. Without TABLE every table there is examined. Exit code
    0 means fit; without TABLE, that at least one is.
    """
    url = _url(url)
    if tables:
        reports = [evaluate_surface(url, name) for name in tables]
        fine = all(report.fit for report in reports)
    else:
        selection = select_surface(url)
        reports, fine = list(selection.evaluated), selection.chosen is not None
    if as_json:
        documents = [_document(report) for report in reports]
        print_json(documents[0] if len(tables) == 1 else documents)
    else:
        for report in reports:
            _print_report(report)
    ctx.exit(0 if fine else FOUND)


def _url(url_or_path: str) -> str:
    """A plain path will do for a file."""
    return url_or_path if ":" in url_or_path.partition("/")[0] else f"sqlite:///{url_or_path}"


def _document(report: SurfaceReport) -> dict[str, Any]:
    return {
        "table": report.table,
        "fit": report.fit,
        "code": report.code,
        "domain_status": report.verdict.domain_status,
        "failed": report.verdict.failed,
        "criteria": {
            letter: {"asks": asks, "proven": not report.reasons[letter], "reasons": report.reasons[letter]}
            for letter, asks in CRITERIA.items()
        },
    }


def _print_report(report: SurfaceReport) -> None:
    made = table("", "proven", "criterion", "reasons against it")
    for letter, asks in CRITERIA.items():
        reasons = report.reasons[letter]
        made.add_row(letter, "no" if reasons else "yes", asks, "\n".join(reasons))
    show(made)
    out().print(f"{report.table}: {report.code}", markup=False)


@registrar.command(
    short_help="Say whether anything may be registered; open or hold.",
    epilog=examples(
        "registrar gate effects.db",
        "registrar gate effects.db --open board-2026-07",
        'registrar gate effects.db --hold "audit under way"',
    ),
)
@click.argument("url_or_path")
@click.option("--open", "authority", metavar="AUTHORITY", help="Open it on this authority's word; proves the surface.")
@click.option("--hold", "reason", metavar="REASON", help="Close it.")
@json_option
@click.pass_context
def gate(ctx: click.Context, url_or_path: str, authority: str | None, reason: str | None, *, as_json: bool) -> None:
    """Say whether anything may be registered; open the gate or hold it.

    Exit code 0 means that registrations can proceed.
    """
    if authority is not None and reason is not None:
        raise click.UsageError("--open or --hold, not both")
    url = database_url(url_or_path)
    if authority is not None:
        status = _with(url, lambda found: found.open_gate(authority))
    elif reason is not None:
        status = _with(url, lambda found: found.hold(reason))
    else:
        now = _look(url, lambda witness: witness.gate())
        status = Status.of(now, evaluate_own(url))
    if as_json:
        print_json(status)
    else:
        out().print(_said(status), markup=False)
    ctx.exit(0 if status.can_proceed else FOUND)


def _said(status: Status) -> str:
    why = status.reason or ", ".join(status.failed_criteria) or ("" if status.can_proceed else "nobody opened it")
    on_whose_word = f"on the word of {status.authority_ref}" if status.can_proceed else why
    return f"{status.gate}: {on_whose_word}\n{status.surface}: {status.surface_status}"


@registrar.command(
    epilog=examples("registrar resolve effects.db lrk-1", "registrar resolve effects.db lrk-1 --json"),
    short_help="Find out for good what became of a key.",
)
@click.argument("url_or_path")
@click.argument("logical_request_key")
@json_option
@click.pass_context
def resolve(ctx: click.Context, url_or_path: str, logical_request_key: str, *, as_json: bool) -> None:
    """Find out for good what became of a key, after a commit whose end is unknown.

    Exit code 0 means CONSUMED, 1 ABSENT: no earlier attempt can come through any more, and the request may be issued
    again with the same key.
    """
    decision: Decision = _with(database_url(url_or_path), lambda found: found.resolve(logical_request_key))
    if as_json:
        print_json(decision)
    else:
        _print_decision(logical_request_key, decision)
    ctx.exit(0 if decision.result is not None else FOUND)


def _print_decision(key: str, decision: Decision) -> None:
    out().print(f"{key}: {decision.code}, {decision.state}", markup=False)
    if decision.result is not None:
        made = table("field", "value")
        for name, value in msgspec.structs.asdict(decision.result).items():
            made.add_row(name, format_instant(value) if name.endswith("_at") else str(value))
        show(made)


@registrar.command(epilog=examples("registrar audit effects.db", "registrar audit effects.db --key lrk-1 --json"))
@click.argument("url_or_path")
@click.option("--key", "logical_request_key", help="Only what was refused under this logical request key.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, MOST_LINES), help="How many lines.")
@json_option
def audit(url_or_path: str, logical_request_key: str | None, limit: int, *, as_json: bool) -> None:
    """List what was refused, newest first."""
    lines = _look(database_url(url_or_path), lambda witness: witness.failures(logical_request_key, limit))
    if as_json:
        print_json(lines)
        return
    if not lines:
        out().print("nothing was refused")
        return
    made = table("at", "code", "row", "key", "attempt")
    for line in lines:
        made.add_row(format_instant(line.at), line.code, line.row, line.logical_request_key, line.attempt_id)
    show(made)


@registrar.command(
    epilog=examples("registrar check effects.db"), short_help="Prove that nothing consumed has disappeared."
)
@click.argument("url_or_path")
@json_option
@click.pass_context
def check(ctx: click.Context, url_or_path: str, *, as_json: bool) -> None:
    """Prove that nothing consumed has disappeared, by every other row and by the whole journal."""
    url = database_url(url_or_path)
    by_rows = _look(url, lambda witness: witness.erased(MOST_LINES, by_history=False))
    by_history = _look(url, lambda witness: witness.erased(MOST_LINES, by_history=True))
    erased = sorted({*by_rows, *by_history})
    if as_json:
        print_json({"holds": not erased, "erased": erased})
    elif erased:
        out().print(f"{counted(len(erased), 'consumed key')} gone: {', '.join(erased[:10])}", markup=False)
    else:
        out().print("everything consumed is there")
    ctx.exit(FOUND if erased else 0)


def _look(url: str, at: Callable[[Witness], Awaitable[T]]) -> T:
    """A look from outside: nothing is made or migrated."""

    async def look() -> T:
        async with witnessing(url) as witness:
            return await at(witness)

    return asyncio.run(look())


def _with(url: str, act: Callable[[Registrar], T]) -> T:
    """Act as a registrar on a database that is there."""
    _look(url, lambda witness: witness.gate())
    with Registrar(url) as found:
        return act(found)
